"""The child process that makes a model again in an empty store: `python -m tasks.reproduction.remake REQUEST`.

It runs with the interpreter of the environment that the model is made again in, without Prefect's server. It writes
`made.json` beside the request, or `error.json` with the cause. Here is also what is sealed about a model version:
everything that it can be made again from, and the ids to compare with. The raw files that it was made from are found by
their digests, before anything is made again.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from data_contracts.errors import CorruptError, TrainwrightError, UsageError
from data_contracts.handoffs import (
    Checkpoint,
    ContractReport,
    Dataset,
    Evaluation,
    ModelVersion,
    Record,
    Ref,
    SourceFile,
)
from data_contracts.messages.children import StoreAddress
from data_contracts.messages.gang import Segment
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.pipeline_spec.base import run_locally
from data_contracts.quoting import type_and_text
from data_contracts.resolved import Recipe, Resolved
from infra.audit import actor, now
from infra.gang.ledger import list_checkpoints
from infra.gang.recovery import Replay
from infra.models.registry import read_recipe
from infra.processes.processes import terminable
from infra.records.handoffs import verify_checkpoint
from infra.sources.named_places import NamedPlaces, digests_now
from infra.store import Manifest, Store, layout, open_store
from infra.store.records import parsed
from infra.store.seal import passing_over
from infra.store.store import copy_sealed
from tasks.run.resolve import find_version
from tasks.run.run import Run, new_run_id
from tasks.stages.evaluate import evaluate
from tasks.stages.shard import shard
from tasks.stages.train import train
from tasks.stages.validate import validate
from tasks.stages.verify import verify

REQUEST, MADE, ERROR, STORE = "request.json", "made.json", "error.json", "store"


@dataclass(frozen=True)
class Recorded:
    """A model version, as sealed.

    Attributes:
        recipe: of the run that made the version; trained: of the run that launched its training.
        segments: what the generations of the training did.
        steps: step → id of each checkpoint that the training kept or resumed from, in order.
        kept: step → those that still exist.
        contract, dataset: None with `data: external`, and for data without a contract.
        parents: datasets that hold shards of the dataset, or of the other datasets of a mixture: they were appended to.
    """

    version: ModelVersion
    recipe: Recipe
    trained: Recipe
    segments: list[Segment]
    steps: dict[int, str]
    kept: dict[int, Ref]
    contract: Ref | None = None
    dataset: Ref | None = None
    parents: list[Ref] = field(default_factory=list)

    @property
    def replay(self) -> Replay:
        """How the training is made again."""
        return Replay(self.segments, keep_steps=frozenset(self.steps))

    @property
    def copied(self) -> list[Ref]:
        """What is copied from the model's store and not made again."""
        return list({one.uri: one for one in [*copied(self.recipe), *self.parents]}.values())

    @property
    def external(self) -> bool:
        """Whether the user's data module read data of its own."""
        return self.recipe.resolved.spec["data"] == "external"


def read_recorded(store: Store, name: str) -> Recorded:
    """Everything that is sealed about `model`, `model@alias` or `model@3`.

    Raises:
        UsageError: something is missing; all of it is listed, also in `details["missing"]`.
        CorruptError: something is not as sealed.
    """
    version, _ = find_version(store, name)
    checkpoint = version.checkpoint
    try:
        manifest = verify_checkpoint(store, checkpoint)
    except FileNotFoundError as error:
        raise CorruptError(f"The checkpoint {checkpoint.ref.uri} of {name} is missing.") from error
    made = store.manifest(version.ref)
    missing = [] if manifest.provenance.get("generations") else ["the history of its generations"]
    trained = _recipe(store, manifest, missing, "the recipe of its training: lock, inputs and Trainwright's revision")
    recipe = _recipe(store, made, missing, "the recipe of its version") if "recipe" in made.provenance else trained
    needed = [] if recipe is None else copied(recipe)
    missing += [one.uri for one in needed if not store.exists(layout.manifest(one.uri))]
    if missing or recipe is None or trained is None:
        raise UsageError(
            f"{version.name} version {version.version} cannot be reproduced; missing: {', '.join(missing)}.",
            remedy="It was made by a Trainwright that did not seal this, or it was deleted; train it again with this "
            "one, and the new version can be reproduced.",
            details={"missing": missing},
        )
    segments = _segments(store, manifest, checkpoint)
    kept = _kept(store, checkpoint, segments)
    resumed = {one.first_step: one.resumed_from for one in segments if one.resumed_from is not None}
    steps = {step: ref.id for step, ref in kept.items()} | {step: one for step, one in resumed.items() if one}
    dataset, contract, parents = _data(store, manifest)
    for mixed in recipe.resolved.mixture.values():
        parents += _appended_to(store, store.manifest(mixed.ref))
    return Recorded(version, recipe, trained, segments, dict(sorted(steps.items())), kept, contract, dataset, parents)


def copied(recipe: Recipe) -> list[Ref]:
    """What a run took as it was: its code, and results of other runs."""
    resolved = recipe.resolved
    mixed = [dataset.ref for dataset in resolved.mixture.values()]
    drift = None if resolved.drift is None else resolved.drift.contract
    return [one for one in [resolved.code, resolved.init_from, drift, *mixed] if one is not None]


def _recipe(store: Store, manifest: Manifest, missing: list[str], what: str) -> Recipe | None:
    named = manifest.provenance.get("recipe")
    if named is None:
        missing.append(what)
        return None
    ref = parsed(layout.manifest(manifest.uri), Ref.model_validate, named)
    try:
        return read_recipe(store, ref)
    except FileNotFoundError:
        missing.append(f"{what} ({ref.uri})")
        return None


def _segments(store: Store, manifest: Manifest, checkpoint: Checkpoint) -> list[Segment]:
    """The generations up to the newest checkpoint that continues this one: training went on after it."""
    mine = _segments_in(manifest)
    longest = mine
    for one in list_checkpoints(store, checkpoint.training):
        if one.step <= checkpoint.step or one.state not in ("committed", "verified"):
            continue
        theirs = _segments_in(store.manifest(one.uri))
        if theirs[: len(mine)] == mine and len(theirs) > len(longest):
            longest = theirs
    return longest


def _segments_in(manifest: Manifest) -> list[Segment]:
    def read(value: Any) -> list[Segment]:
        segments = [Segment.model_validate(one) for one in value]
        steps = [one.first_step for one in segments]
        if steps != sorted(steps) or (steps and (steps[0], segments[0].resumed_from) != (0, None)):
            raise ValueError("the generations are not in the order of their steps")
        return segments

    return parsed(layout.manifest(manifest.uri), read, manifest.provenance.get("generations", []))


def _kept(store: Store, checkpoint: Checkpoint, segments: list[Segment]) -> dict[int, Ref]:
    """The checkpoints of the training that lie on the way that its generations took, by step; this one among them."""
    ends = [*(one.first_step for one in segments[1:]), None]
    spans = {(one.training, one.generation): (one.first_step, end) for one, end in zip(segments, ends, strict=True)}
    found = {checkpoint.step: checkpoint.ref}
    for one in list_checkpoints(store, checkpoint.training):
        if one.bytes is None:
            with passing_over():  # which names it if it is damaged
                store.manifest(one.uri)
        first, end = spans.get((checkpoint.training, one.generation), (one.step, one.step))
        if one.state in ("committed", "verified") and first < one.step and (end is None or one.step <= end):
            found.setdefault(one.step, store.manifest(one.uri).ref)
    return dict(sorted(found.items()))


def _data(store: Store, manifest: Manifest) -> tuple[Ref | None, Ref | None, list[Ref]]:
    """The dataset of a checkpoint, its contract report, and the datasets that it was appended to."""
    dataset = manifest.parent_in("datasets")
    if dataset is None:
        return None, None, []
    try:
        made = store.manifest(dataset)
    except FileNotFoundError:
        return dataset, None, []  # deleted; it is made again, and its id is known
    return dataset, made.parent_in("contracts"), _appended_to(store, made)


def _appended_to(store: Store, dataset: Manifest) -> list[Ref]:
    """The datasets that a dataset was appended to, the oldest first; CorruptError if one of them is missing."""
    parents, made = list[Ref](), dataset
    while (older := made.parent_in("datasets")) is not None:
        parents.insert(0, older)
        try:
            made = store.manifest(older)
        except FileNotFoundError as error:
            raise CorruptError(f"{older.uri}, which holds shards of {dataset.uri}, is missing.") from error
    return parents


def moved(resolved: Resolved, places: NamedPlaces) -> Resolved:
    """A run's inputs with the raw files below the spec's folder looked for in the reader's folder instead.

    UsageError for a file in a place that the reader did not name.
    """
    for files, sources in _groups(resolved):
        for file in files:
            places.require(file, sources[file.source])
    if places.folder is None:
        return resolved
    root = Path(resolved.root)
    return resolved.model_copy(
        update={
            "root": str(places.folder),
            "files": [places.moved(file, root) for file in resolved.files],
            "sets": {name: [places.moved(file, root) for file in files] for name, files in resolved.sets.items()},
        }
    )


def check_sources(resolved: Resolved, places: NamedPlaces) -> int:
    """Read every raw file, and return how many there are.

    Raises:
        CorruptError: the bytes of a file are not those that were validated; it is named.
        UsageError: a file no longer exists.
    """
    count = 0
    for files, sources in _groups(resolved):
        for file, digest in zip(files, digests_now(files, sources, Path(resolved.root), places), strict=True):
            _check(file, digest)
        count += len(files)
    return count


def _groups(resolved: Resolved) -> Iterator[tuple[list[SourceFile], list[SourceSpec]]]:
    spec = resolved.pipeline()
    yield resolved.files, [] if isinstance(spec.data, str) else spec.data.source
    for name, files in resolved.sets.items():
        yield files, spec.evaluate.sets[name].source or []


def _check(file: SourceFile, digest: str | None) -> None:
    name = f"{file.uri}@{file.rev}" if file.rev else file.uri
    if digest is None:
        raise UsageError(
            f"The raw file {name} no longer exists.",
            remedy="Restore it, or name the folder that has the data now with --data.",
        )
    if digest != file.blake3:
        raise CorruptError(
            f"The raw file {name} has changed: BLAKE3 {digest[:16]}…, but {file.blake3[:16]}… was trained on.",
            remedy="Restore the file, or name the folder that has the data as it was with --data.",
        )


class RemakeRequest(Record):
    """What is to be made again.

    Attributes:
        source: the store of the model; name: the model, with its version (`tiny@3`).
        data: the folder that has the raw files now; None: they are where they were.
        addresses: the places on S3 that may be read.
    """

    source: StoreAddress
    name: str
    data: str | None = None
    addresses: list[str] = Field(default_factory=list)


class Made(Record):
    """What was made: hand-offs in the new store; None where there is none."""

    contract: Ref | None = None
    dataset: Ref | None = None
    checkpoint: Checkpoint
    evaluation: Evaluation


def main(path: Path) -> int:
    """Carry the request out; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "fsspec", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    folder = path.parent
    try:
        with terminable():
            made = remake(RemakeRequest.model_validate_json(path.read_text()), folder)
    except BaseException as error:
        known = error if isinstance(error, TrainwrightError) else TrainwrightError(f"{type_and_text(error)}.")
        (folder / ERROR).write_text(json.dumps(known.to_json()))
        if known is not error:
            raise
        return known.exit_code
    (folder / MADE).write_text(made.model_dump_json())
    return 0


def remake(request: RemakeRequest, folder: Path) -> Made:
    """Make the model again in `folder/store`, which must be new."""
    address = request.source
    source = open_store(address.uri, address.options, create=False, pointers=address.pointers)
    recorded = read_recorded(source, request.name)
    store = open_store(str(folder / STORE))
    places = NamedPlaces(None if request.data is None else Path(request.data), tuple(request.addresses))
    resolved = moved(recorded.recipe.resolved, places)
    for ref in recorded.copied:
        copy_sealed(source, store, ref)
    run = Run(inputs_here(resolved, store), store, recorded=False, replay=recorded.replay)
    contract: ContractReport | None = validate(run)
    dataset: Dataset | None = shard(run, contract)
    checkpoint = verify(run, train(run, dataset))
    return Made(
        contract=None if contract is None else contract.ref,
        dataset=None if dataset is None else dataset.ref,
        checkpoint=checkpoint,
        evaluation=evaluate(run, checkpoint, dataset),
    )


def inputs_here(resolved: Resolved, store: Store) -> Resolved:
    """A run's inputs for an empty store on this machine: all work is done here, and there is no champion."""
    spec = {**run_locally(resolved.spec), "store": {"uri": store.uri}}
    for section in ("train", "verify", "evaluate"):
        spec[section] = {**spec[section], "launcher": "local", "pool": None, "queue": None, "job_variables": {}}
    changes = {"run_id": new_run_id(), "spec": spec, "store": store.uri, "champion": None, "fresh": False}
    changes |= {"actor": actor(), "trigger": "cli", "started": now()}
    return resolved.model_copy(update=changes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
