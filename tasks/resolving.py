"""Resolve once: globs, windows, DVC revisions, aliases, code and prices are looked up here and nowhere later."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import SpecError
from data_contracts.handoffs import Dataset, Ref, SourceFile, Trigger
from data_contracts.lightning_config import check_lightning, inline_lightning
from data_contracts.resolved import Price, Resolved
from data_contracts.spec import PipelineSpec, SourceSpec
from data_contracts.suites import load_suite
from infra import audit, code, machines, registry, settings
from infra.datasets import find_dataset, find_dataset_by_id
from infra.sources import Window, parse_window, resolve_sources
from infra.store import Store, layout
from tasks.parents import resolve_init

log = logging.getLogger("trainwright")


def resolve(
    spec: PipelineSpec,
    path: Path,
    store: Store,
    *,
    run_id: str,
    window: str | None,
    trigger: Trigger,
    scheduled: datetime | None = None,
    rehash: bool = False,
    fresh: bool = False,
) -> Resolved:
    """Look up everything that a run of `spec` depends on; UsageError in one sentence for what is not there."""
    root = path.parent
    span = _window(spec, path, window, scheduled or datetime.now(UTC))
    lightning = inline_lightning(spec, root)
    for idle in check_lightning(lightning, spec):
        log.warning("%s", idle)

    def files(sources: list[SourceSpec], field: str) -> list[SourceFile]:
        pattern = None if isinstance(spec.data, str) or spec.data.window is None else spec.data.window.path
        cache = settings.state_folder() / "digests"
        return resolve_sources(
            sources, root=root, window=span, window_path=pattern, cache=cache, rehash=rehash, field=field
        )

    commit, dirty = audit.revision(code.project_root(root))
    who = {
        "actor": audit.actor(),
        "trigger": trigger,
        "commit": commit,
        "dirty": dirty,
        "lock_digest": audit.lock_digest(),
        "started": audit.now(),
    }
    named = _named_files(spec, lightning, code.project_root(root))
    bundle = code.pack(root, store, named, provenance={**who, "run_id": run_id, "tags": spec.tags})
    for name in _named_code(spec, lightning):
        code.find_class(bundle.root, name)
    machine = machines.machine(spec.train.machine)
    machines.check_devices(machine, spec.train.devices, lightning)
    return Resolved(
        run_id=run_id,
        spec=spec.model_dump(mode="json"),
        spec_path=str(path),
        root=str(root),
        store=store.uri,
        window=None if span is None else (span.start.isoformat(), span.end.isoformat()),
        files=[] if isinstance(spec.data, str) else files(spec.data.source, "data.source"),
        sets={
            name: files(one.source, f"evaluate.sets.{name}.source")
            for name, one in spec.evaluate.sets.items()
            if one.source is not None
        },
        suite=None if spec.contract is None else load_suite(spec.contract.suite, root),
        lightning=lightning,
        code=bundle.ref,
        code_digest=bundle.digest,
        champion=champion(store, spec),
        mixture=_mixture(store, spec, path),
        init_from=resolve_init(spec, path, store, {**who, "run_id": run_id, "tags": spec.tags}),
        fresh=fresh,
        price=Price(machine=machine.name, usd_per_hour=machine.usd_per_hour, price_date=machine.price_date),
        **who,
    )


def resolved_runs(store: Store, pipeline: str) -> Iterator[Resolved]:
    """What a pipeline's runs were resolved to, the newest run first."""
    for run_id in reversed(store.list(layout.runs())):
        path = layout.resolved(run_id)
        if store.exists(path):
            resolved = Resolved.from_json(store.read_json(path))
            if resolved.spec["name"] == pipeline:
                yield resolved


def champion(store: Store, spec: PipelineSpec) -> Ref | None:
    """The model version that the spec's alias names now."""
    found = registry.read_alias(store, spec.model_name, spec.promote.alias)
    return None if found is None else Ref.model_validate(found[0].value["model_version"])


def ci_key(resolved: Resolved) -> str:
    """The idempotency key of a run that CI triggers: commit, code, spec and resolved data window.

    The code's digest stands beside the commit, because a commit alone does not say what an uncommitted change did.
    """
    told = resolved
    return digest({"commit": told.commit, "code": told.code_digest, "spec": told.spec, "window": told.window})


def _window(spec: PipelineSpec, path: Path, window: str | None, now: datetime) -> Window | None:
    wanted = not isinstance(spec.data, str) and spec.data.window is not None
    if wanted and window is None:
        raise SpecError(
            f"{path}: data.window: the spec reads a window and none was given.",
            remedy="Give --window START..END, or a length such as --window 7d.",
        )
    if not wanted and window is not None:
        raise SpecError(
            f"{path}: data.window: --window {window} was given, but the spec has no window.",
            remedy="Add data.window to the spec or leave --window out.",
        )
    return None if window is None else parse_window(window, now)


def _mixture(store: Store, spec: PipelineSpec, path: Path) -> dict[str, Dataset]:
    """The datasets that the training is mixed with, by name."""
    wanted = spec.train.loader.mixture.datasets if spec.train.loader.mixture else {}
    found = {}
    for name, told in wanted.items():
        field = f"{path}: train.loader.mixture.datasets.{name}"
        if told.startswith("datasets/"):
            other, remedy = find_dataset(store, told), "Name one of this store."
        else:
            other = _newest_dataset(store, told)
            remedy = f"Run the pipeline {told} with this store first, or name a dataset as datasets/…."
        if other is None:
            raise SpecError(f"{field}: this store has no dataset {told}.", remedy=remedy)
        if not other.rows("train"):
            raise SpecError(f"{field}: {other.ref.uri} has no rows in a split train.", remedy="Name another dataset.")
        found[name] = other
    return found


def _newest_dataset(store: Store, pipeline: str) -> Dataset | None:
    """The dataset of the newest run of a pipeline that came as far as to have one."""
    for run in resolved_runs(store, pipeline):
        with contextlib.suppress(FileNotFoundError):
            made = store.read_json(layout.stage(run.run_id, "shard"))["id"]
            dataset = None if made is None else find_dataset_by_id(store, made)
            if dataset is not None:
                return dataset
    return None


def _named_files(spec: PipelineSpec, lightning: dict, project: Path) -> list[Path]:
    """Files of the project that arguments name, such as a vocabulary: they decide the result as the code does."""
    calls = [spec.train.transform, spec.shards.transform if spec.shards else None]
    texts = [*_texts(lightning), *(text for call in calls if call for text in _texts(call.args))]
    inside = [text for text in texts if text and len(text) < 256 and "\n" not in text and not text.startswith("/")]
    paths = {(project / text).resolve() for text in inside if (project / text).is_file()}
    return sorted(path for path in paths if path.is_relative_to(project))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _named_code(spec: PipelineSpec, lightning: dict) -> list[str]:
    """Dotted paths of the user's (or a library's) classes and functions."""
    calls = [spec.train.transform, spec.shards.transform if spec.shards else None]
    classes = [lightning.get(part, {}).get("class_path") for part in ("model", "data") if lightning.get(part)]
    metrics = [metric.class_path for metric in spec.evaluate.metrics.values()]
    return [*(call.call for call in calls if call), *(name for name in [*classes, *metrics] if name)]
