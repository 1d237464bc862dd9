"""Resolve once: globs, windows, DVC revisions, aliases, code and prices are looked up here and nowhere later."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from data_contracts.canonical import digest, is_name
from data_contracts.contract.suites import own_classes
from data_contracts.errors import SpecError, TrainwrightError, UserCodeError
from data_contracts.handoffs import Dataset, Ref, SourceFile
from data_contracts.lightning_config import check_lightning, inline_lightning
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.resolved import Resolved
from data_contracts.run_report import StageResult, Trigger
from infra import audit, code_bundle, settings
from infra.environments.cache import packages_in
from infra.environments.packages import Packages
from infra.models import registry
from infra.project import NOT_FOUND, ProjectFiles, choose, mentions, not_found_in
from infra.records.handoffs import find_dataset, find_dataset_by_id
from infra.sources import local_files, resolve_sources
from infra.store import Store, layout
from infra.weights import ENDING
from tasks.run.checkpointing import resolve_interval
from tasks.run.code_trial import refuse_incomplete
from tasks.run.drift_reference import resolve_drift
from tasks.run.environments import resolve_environment
from tasks.run.init_from import resolve_init
from tasks.run.layout_check import check_layouts
from tasks.run.options import RunOptions
from tasks.run.prices import run_prices
from tasks.run.spec_check import (
    data_suite,
    features_suite,
    named_suites,
    named_tokenizers,
    predictions_suite,
    refuse_unknown_code,
    refuse_unknown_expectations,
    refuse_without_expectations,
    run_window,
    set_suites,
)

log = logging.getLogger("trainwright")


def resolve(spec: PipelineSpec, path: Path, store: Store, *, run_id: str, options: RunOptions) -> Resolved:
    """Look up everything that a run of `spec` depends on; UsageError in one sentence if something does not exist."""
    root = path.parent
    window = run_window(spec, path, options.window, options.scheduled or datetime.now(UTC))
    lightning = inline_lightning(spec, root)
    for warning in check_lightning(lightning, spec):
        log.warning("%s", warning)
    check_layouts(spec, lightning)
    files = partial(
        resolve_sources,
        root=root,
        window=window,
        window_path=None if isinstance(spec.data, str) or spec.data.window is None else spec.data.window.path,
        cache=settings.state_folder() / "digests",
        rehash=options.rehash,
    )
    started_by = _audited(root, options.trigger)
    provenance = {**started_by, "run_id": run_id, "tags": spec.tags}
    packages = resolve_environment(spec, path, store, afresh=options.rehash)
    raw = partial(files, [] if isinstance(spec.data, str) else spec.data.source, field="data.source")
    bundle = _pack(spec, path, store, lightning, provenance, packages, raw)
    return Resolved(
        run_id=run_id,
        spec=spec.model_dump(mode="json"),
        spec_path=str(path),
        root=str(root),
        store=store.uri,
        window=None if window is None else (window.start.isoformat(), window.end.isoformat()),
        files=[] if isinstance(spec.data, str) else raw(),
        sets={
            name: files(one.source, field=f"evaluate.sets.{name}.source")
            for name, one in spec.evaluate.sets.items()
            if one.source is not None
        },
        suite=data_suite(spec, root),
        set_suites=set_suites(spec, root),
        features=features_suite(spec, root),
        predictions=predictions_suite(spec, root),
        lightning=lightning,
        code=bundle.ref,
        code_digest=bundle.digest,
        champion=champion(store, spec),
        mixture=_mixture(store, spec, path),
        init_from=resolve_init(spec, path, store, provenance),
        drift=resolve_drift(spec, path, store),
        checkpoint=resolve_interval(spec, store),
        fresh=options.fresh,
        **run_prices(spec, started_by["started"][:10], store.uri),
        **started_by,
    )


def _audited(root: Path, trigger: Trigger) -> dict[str, Any]:
    """Who or what starts a run, from which revision, and when."""
    commit, dirty = audit.revision(code_bundle.project_root(root))
    return {
        "actor": audit.actor(),
        "trigger": trigger,
        "commit": commit,
        "dirty": dirty,
        "lock_digest": audit.lock_digest(),
        "started": audit.now(),
    }


def _pack(
    spec: PipelineSpec,
    path: Path,
    store: Store,
    lightning: dict,
    provenance: dict[str, Any],
    packages: Packages | None,
    raw: Callable[[], list[SourceFile]],
) -> code_bundle.CodeBundle:
    """The user's project as a sealed bundle; UsageError if code that the spec names is not in it."""
    root = path.parent
    suites = list(named_suites(spec, root).values())
    if packages is not None and any(map(own_classes, suites)):
        refuse_without_expectations(packages, path)
    settings = _packing(spec, root, lightning, suites)
    bundle = code_bundle.pack(root, store, provenance=provenance, packages=packages, **settings)
    installed = None if packages is None else packages_in(packages)
    refuse_unknown_code(spec, path, lightning, bundle.root, installed)
    refuse_unknown_expectations(spec, root, bundle.root, installed)
    own = dict.fromkeys(name for suite in suites for name in own_classes(suite).values())
    refuse_incomplete(store, bundle, spec, lightning, own, raw, root)
    return bundle


def chosen_code(run: Resolved, store: Store) -> ProjectFiles:
    """The project files that are packed for a run as they are now, and those that are left out."""
    root = Path(run.root)
    spec = run.pipeline()
    suites = [one for one in (run.suite, *run.set_suites.values(), run.features, run.predictions) if one is not None]
    settings = _packing(spec, root, run.lightning, suites)
    named, environment = settings.pop("extra"), spec.environment is not None
    return choose(code_bundle.project_root(root), store, named=named, environment=environment, **settings)


def explain_left_out(error: TrainwrightError, run: Resolved, store: Store) -> None:
    """If the user's code did not find a file, say in the error's remedy why the bundle of its project lacks it."""
    # The lines of code in a traceback may speak of any file, except the last, which raised.
    lines = error.user_traceback.splitlines()
    text = "\n".join([error.message, *(line for line in lines if not line.startswith(" "))])
    if not isinstance(error, UserCodeError) or not NOT_FOUND.search(text):
        return
    error.remedy = (
        "Code runs in a copy of its project's packed files and opens relative paths from the project's root: name a "
        "file of the project in code.include, and open the dataset by ${dataset.path} and other files by full paths."
    )
    with contextlib.suppress(TrainwrightError, OSError):  # the project may lie on another machine, or have changed
        left_out = {one.path: one for one in chosen_code(run, store).left_out}
        raised_by = next((line for line in reversed(lines) if line.startswith("    ") and line.strip("^~ ")), "")
        raised_by = "" if re.search("['\"/]", text.splitlines()[-1]) else raised_by  # it names a file itself
        exact = not_found_in(text, list(left_out))
        alike = [path for path in left_out if not path.endswith("/") and _named_alike(path, text, raised_by)]
        for one in [left_out[path] for path in [*exact, *alike][:1]]:
            opened = "" if exact else f" and open it as {one.path}: relative paths begin at the project's root"
            error.remedy = (
                f"{one.path} is not in the bundle of the project's code: {one.why}. If it may be stored, name the file "
                f"by its exact path in code.include{opened}."
            )


def _named_alike(path: str, text: str, raised_by: str) -> bool:
    """Whether an exception's text, or the line of code that raised it, has the name of a file."""
    name = PurePosixPath(path).name
    return mentions(text, name, after_folder=False) or mentions(raised_by, name)


def _packing(spec: PipelineSpec, root: Path, lightning: dict, suites: list[dict[str, Any]]) -> dict[str, Any]:
    """The settings that decide which files of a project are packed."""
    extra = _named_files(spec, lightning, suites, code_bundle.project_root(root))
    return {"extra": extra, "include": spec.code.include, "sources": _local_sources(spec, root)}


def _local_sources(spec: PipelineSpec, root: Path) -> list[Path]:
    """Local files that the spec names and that are never packed: data, first weights, the signing key."""
    named = [] if isinstance(spec.data, str) else [one.uri for one in spec.data.source]
    named += [one.uri for each in spec.evaluate.sets.values() for one in each.source or []]
    kind, _, key = (spec.promote.sign or "").partition(":")
    named += [glob.escape(str(Path(key).expanduser()))] if kind == "file" else []
    begin = spec.train.init_from
    if begin is not None and begin.source == "outside":
        named += [begin.weights, f"{glob.escape(begin.weights.rstrip('/'))}/*{ENDING}"]
    return local_files(named, root)


def resolved_runs(store: Store, pipeline: str) -> Iterator[Resolved]:
    """A pipeline's resolved runs, the newest first."""
    for run_id in filter(is_name, reversed(store.list(layout.runs()))):
        path = layout.resolved(run_id)
        if store.exists(path):
            resolved = store.read_as(path, Resolved.from_json)
            if resolved.spec["name"] == pipeline:
                yield resolved


def champion(store: Store, spec: PipelineSpec) -> Ref | None:
    """The model version that the spec's alias names now."""
    pointer = registry.read_alias(store, spec.model_name, spec.promote.alias)
    return None if pointer is None else Ref.model_validate(pointer[0].value["model_version"])


def ci_key(resolved: Resolved) -> str:
    """The idempotency key of a run that CI triggers: commit, code, spec, and the content of all inputs.

    The code's digest is in it beside the commit, which does not cover uncommitted changes; the data's digests are in
    it, because corrected data needs a new run. Where the files lie does not count; nor does the champion, because the
    run itself may replace it.
    """
    content = {
        "commit": resolved.commit,
        "code": resolved.code_digest,
        "spec": resolved.spec,
        "window": resolved.window,
        "files": _contents(resolved.files),
        "sets": {name: _contents(files) for name, files in resolved.sets.items()},
        "suite": resolved.suite,
        "lightning": resolved.lightning,
        "mixture": {name: dataset.ref.id for name, dataset in resolved.mixture.items()},
        "init_from": resolved.init_from.id if resolved.init_from else None,
    }
    if resolved.set_suites:
        content["set_suites"] = resolved.set_suites
    for name in ("features", "predictions"):
        if getattr(resolved, name) is not None:
            content[name] = getattr(resolved, name)
    return digest(content)


def _contents(files: list[SourceFile]) -> list[Any]:
    """The part of resolved files that keys contain: their content, not their place."""
    return [
        [file.source, file.format, file.columns, file.blake3, *(["without index"] if file.hidden_index else [])]
        for file in files
    ]


def _mixture(store: Store, spec: PipelineSpec, path: Path) -> dict[str, Dataset]:
    """The datasets that the training mixes, by name."""
    wanted = spec.train.loader.mixture.datasets if spec.train.loader.mixture else {}
    mixed = {}
    for name, source in wanted.items():
        field = f"{path}: train.loader.mixture.datasets.{name}"
        if source.startswith("datasets/"):
            other, remedy = find_dataset(store, source), "Name a dataset of this store."
        else:
            other = _newest_dataset(store, source)
            remedy = f"Run the pipeline {source} with this store first, or name a dataset as datasets/…."
        if other is None:
            raise SpecError(f"{field}: this store has no dataset {source}.", remedy=remedy)
        if not other.rows("train"):
            raise SpecError(f"{field}: {other.ref.uri} has no rows in its train split.", remedy="Name another dataset.")
        mixed[name] = other
    return mixed


def _newest_dataset(store: Store, pipeline: str) -> Dataset | None:
    """The dataset of the newest run of a pipeline that has a dataset."""
    for run in resolved_runs(store, pipeline):
        with contextlib.suppress(FileNotFoundError):
            made = store.read_as(layout.stage(run.run_id, "shard"), StageResult.model_validate).id
            dataset = None if made is None else find_dataset_by_id(store, made)
            if dataset is not None:
                return dataset
    return None


def _named_files(spec: PipelineSpec, lightning: dict, suites: list[dict[str, Any]], project: Path) -> list[Path]:
    """Files of the project that arguments name, such as a vocabulary: like the code, they decide the result."""
    calls = [spec.train.transform, spec.shards.transform if spec.shards else None]
    own = [suite["expectations"][index]["kwargs"] for suite in suites for index in own_classes(suite)]
    init_args = [one.init_args for _, one in named_tokenizers(spec)]
    texts = [*_texts(lightning), *_texts(own), *(text for call in calls if call for text in _texts(call.args))]
    texts += _texts(init_args)
    inside = [text for text in texts if text and len(text) < 256 and "\n" not in text and not text.startswith("/")]
    # A link out of the project is reported where files are chosen.
    paths = {Path(os.path.normpath(project / text)) for text in inside if (project / text).is_file()}
    return sorted(path for path in paths if path.is_relative_to(project))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
