"""The sensor of a spec: what it lists, and when a file counts as complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import PipelineSpec, SourceSpec
from infra.sources.places import place_of
from infra.sources.resolve import listed_sources
from infra.store import Store
from tasks.schedules.sensing import Sensor, StillArriving


def sensor_of(spec: PipelineSpec, root: Path, store: Store, sleep: Callable[[float], None] = time.sleep) -> Sensor:
    """The sensor of a spec in its folder `root`; UsageError if the spec has none."""
    wanted = spec.schedule.sensor
    if wanted is None or isinstance(spec.data, str):
        raise UsageError(
            f"schedule.sensor: the spec of {spec.name} has no sensor.", remedy="Add `schedule: {sensor: {}}` to it."
        )
    sources = spec.data.source

    def listed() -> Mapping[str, str]:
        try:
            return {one.uri: one.stamp for one in listed_sources(sources, root)}
        except FileNotFoundError as error:
            raise StillArriving from error

    def complete(uris: Iterable[str]) -> set[str]:
        return _beside(uris, wanted.done_file, sources, root)

    return Sensor(store, spec.name, listed, complete, wanted.settle_s, sleep)


def _beside(uris: Iterable[str], done_file: str | None, sources: list[SourceSpec], root: Path) -> set[str]:
    """The files whose folder has the file that marks it as complete."""
    if done_file is None:
        return set(uris)
    folders: dict[str, set[str]] = {}
    for uri in uris:
        folders.setdefault(uri.rpartition("/")[0], set()).add(uri)
    places = [(one.uri.startswith("s3://"), place_of(one, root)) for one in sources]
    found: set[str] = set()
    for folder, files in folders.items():
        mine = (place for is_s3, place in places if is_s3 == folder.startswith("s3://"))
        if any(place.find(f"{folder}/{done_file}") for place in mine):
            found |= files
    return found
