"""Resolve once: all that a spec names is looked up here and nowhere later.

Globs, windows, DVC revisions, aliases, code, prices, the packages of an environment, the first weights of a training
(`train.init_from`), the earlier data that `contract.drift` names, model versions by number or alias, and how often a
training saves a checkpoint with `train.checkpoint: auto`. `RunOptions` is how a run is started, by a command, a
schedule or CI.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from data_contracts.canonical import digest, is_name
from data_contracts.contract.suites import own_classes
from data_contracts.errors import CorruptError, SpecError, TrainwrightError, UsageError, UserCodeError
from data_contracts.executions import ExecutionUsage
from data_contracts.foreign_files import parse_json, read_plain
from data_contracts.handoffs import Dataset, ModelVersion, Ref, SourceFile, Suite
from data_contracts.lightning_config import check_lightning
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.price_book import PoolEntry
from data_contracts.records import Profile
from data_contracts.resolved import CheckpointInterval, DriftReference, Price, Resolved
from data_contracts.run_report import StageResult, Trigger
from infra import audit, code_bundle, machine, settings
from infra import prices as price_book
from infra.contract.file_statistics import read_profile
from infra.environments.cache import environment
from infra.environments.cache import resolve as resolve_packages
from infra.environments.packages import Packages, packages_folder_in
from infra.models import registry
from infra.prices import LOCAL, THIS_MACHINE
from infra.project import NOT_FOUND, ProjectFiles, choose, mentions, not_found_in
from infra.records.handoffs import find_dataset, find_dataset_by_id, is_verified
from infra.records.receipts import has_ended
from infra.sources import local_files, resolve_sources
from infra.store import Manifest, Store, layout
from infra.store.store import read_newest, read_several
from infra.usage import DAY_S, PastTrainings, executions_of, expected_loss, interval, node_mtbf, past_trainings
from infra.weights import ENDING, import_weights
from tasks.run.spec_check import (
    DATA,
    FEATURES,
    PREDICTIONS,
    LoadedSpec,
    check_layouts,
    check_pool_machine,
    named_tokenizers,
    run_window,
    set_contract_field,
)

log = logging.getLogger("trainwright")

# How the keys begin that a flow run gets if nobody chose one.
SCHEDULE_KEY, FLOW_RUN_KEY, SENSOR_KEY = "schedule:", "flow-run:", "sensor:"
_DRIFT_REMEDY = (
    "Name a model as MODEL@ALIAS, a dataset as datasets/…, a report as contracts/…, or a profile's JSON file."
)
# Between checkpoints as long as none was measured, and of a restart as long as none was.
DEFAULT_S, RESTART_S = 600.0, 120.0
# A shorter interval saves nothing: the conductor sees checkpoints in heartbeats, and a bucket charges each request.
LEAST_S = 30.0
# The newest runs of the store that are read: a request or more for each.
MOST_RUNS = 50
# A spec's own interval is named if it loses this many times as much, and this much more of the time.
_WORSE, _MUCH = 1.5, 0.005
_UNITS = ((DAY_S, "d"), (3600.0, "h"), (60.0, "min"))


def scheduled_key(deployment: object, time: datetime | None) -> str:
    """The idempotency key of the run that a deployment starts at a time of its schedule."""
    return f"{SCHEDULE_KEY}{deployment}:{time and time.astimezone(UTC)}"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a caller chooses beside the spec, its overrides and the store.

    Attributes:
        window: `START..END`, or a length that ends at `scheduled` (or now).
        key: idempotency key; None: for CI `ci_key`, else every call is a run of its own.
        trigger: what started the run.
        scheduled: when a schedule meant the run to start.
        fresh: begin a new training even if an unfinished or finished training has the same key.
        rehash: read every raw file again to take its digest.
    """

    window: str | None = None
    key: str | None = None
    trigger: Trigger = "cli"
    scheduled: datetime | None = None
    fresh: bool = False
    rehash: bool = False

    @property
    def has_own_key(self) -> bool:
        """Whether the key was made for this flow run; no other flow run has it."""
        return self.key is not None and self.key.startswith((SCHEDULE_KEY, FLOW_RUN_KEY, SENSOR_KEY))


DEFAULTS = RunOptions()


def resolve(loaded: LoadedSpec, store: Store, *, run_id: str, options: RunOptions) -> Resolved:
    """Look up everything that a run of a spec depends on; UsageError in one sentence if something does not exist."""
    spec, path, root = loaded.spec, loaded.path, loaded.root
    window = run_window(loaded, options.window, options.scheduled or datetime.now(UTC))
    lightning = loaded.lightning
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
    packages = resolve_environment(loaded, store, afresh=options.rehash)
    bundle = _pack(loaded, store, provenance, packages)
    suites, of_sets = loaded.suites, {name: set_contract_field(name) for name in spec.evaluate.sets}
    return Resolved(
        run_id=run_id,
        spec=spec.model_dump(mode="json"),
        spec_path=str(path),
        root=str(root),
        store=store.uri,
        window=None if window is None else (window.start.isoformat(), window.end.isoformat()),
        files=[] if isinstance(spec.data, str) else files(spec.data.source, field="data.source"),
        sets={
            name: files(one.source, field=f"evaluate.sets.{name}.source")
            for name, one in spec.evaluate.sets.items()
            if one.source is not None
        },
        suite=suites.get(DATA),
        set_suites={name: suites[field] for name, field in of_sets.items() if field in suites},
        features=suites.get(FEATURES),
        predictions=suites.get(PREDICTIONS),
        lightning=lightning,
        code=bundle.ref,
        code_digest=bundle.digest,
        champion=champion(store, spec),
        mixture=_mixture(store, spec, path),
        init_from=resolve_init(spec, path, store, provenance),
        drift=resolve_drift(spec, path, store),
        checkpoint=resolve_interval(spec, store),
        fresh=options.fresh,
        **run_prices(spec, started_by["started"][:10]),
        **started_by,
    )


class _Started(TypedDict):
    actor: str
    trigger: Trigger
    commit: str | None
    dirty: bool
    lock_digest: str
    started: str


def _audited(root: Path, trigger: Trigger) -> _Started:
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
    loaded: LoadedSpec,
    store: Store,
    provenance: Mapping[str, object],
    packages: Packages | None,
) -> code_bundle.CodeBundle:
    """The user's project as a sealed bundle; UsageError if code that the spec names is not in it."""
    spec, root = loaded.spec, loaded.root
    bundle = code_bundle.pack(
        root,
        store,
        _named_files(spec, loaded.lightning, loaded.suites.values(), loaded.project),
        provenance,
        include=spec.code.include,
        sources=_local_sources(spec, root),
        packages=packages,
    )
    installed = None if packages is None else packages_folder_in(environment(packages))
    loaded.refuse_unknown_code(installed)
    loaded.refuse_unknown_expectations(installed)
    return bundle


def chosen_code(run: Resolved, store: Store) -> ProjectFiles:
    """The project files that are packed for a run as they are now, and those that are left out."""
    root, spec = Path(run.root), run.pipeline()
    project = code_bundle.project_root(root)
    suites = [one for one in (run.suite, *run.set_suites.values(), run.features, run.predictions) if one is not None]
    return choose(
        project,
        store,
        named=_named_files(spec, run.lightning, suites, project),
        include=spec.code.include,
        sources=_local_sources(spec, root),
        environment=spec.environment is not None,
    )


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


def read_inputs(store: Store, run_id: str) -> Resolved:
    """The inputs of a run; CorruptError for those of another, which may be signed, too. FileNotFoundError."""

    def parse(value: dict[str, object]) -> Resolved:
        found = Resolved.from_json(value)
        if found.run_id != run_id:
            raise ValueError(f"these are the inputs of the run {found.run_id[:80]!a}")
        return found

    return store.read_as(layout.resolved(run_id), parse)


def find_inputs(store: Store, run_id: str) -> Resolved | None:
    """The inputs of a run; None for one that was stopped before it had any. CorruptError as in `read_inputs`."""
    try:
        return read_inputs(store, run_id)
    except FileNotFoundError:
        return None


def resolved_runs(store: Store, pipeline: str) -> Iterator[Resolved]:
    """A pipeline's resolved runs, the newest first."""
    # Made before the first run of the pipeline has inputs: without it, no run need be read.
    if not store.exists(layout.pipeline(slug(pipeline))):
        return
    newest_first = list(filter(is_name, reversed(store.list(layout.runs()))))
    for resolved in read_newest(store, partial(find_inputs, store), newest_first):
        if resolved is not None and resolved.spec["name"] == pipeline:
            yield resolved


def slug(name: str) -> str:
    """A pipeline's name in Prefect's artifact keys: `_` and `.` become `-`."""
    return re.sub(r"[._]", "-", name)


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


def _named_files(
    spec: PipelineSpec, lightning: Mapping[str, Any], suites: Iterable[Suite], project: Path
) -> list[Path]:
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


class RunPrices(TypedDict):
    """The fields of a run's resolved inputs that say what its work costs."""

    price: Price
    prices: dict[str, Price]


def run_prices(spec: PipelineSpec, day: str) -> RunPrices:
    """`price` and `prices` of a run's resolved inputs: of a node that trains, and of other places.

    `train.machine` is the machine of the nodes that train, and of everything on this machine. Without it, the price
    book gives the machine of a pool, and TRAINWRIGHT_MACHINE gives this machine. A machine that nothing names has an
    unknown price. UsageError as `check_pool_machine`.
    """
    check_pool_machine(spec)
    book, train = price_book.prices(), spec.train
    named = train.machine if train.machine != LOCAL else ""
    mine = price_book.this_machine()
    if train.pool is None and named:
        mine = named
    field = THIS_MACHINE if mine != named else "train.machine"
    here = price_book.machine(mine, field).price(day)
    if mine == LOCAL and not here.devices:
        here = _counted(here)
    if train.pool is None:
        trained = here
    elif named:
        place = book.pools.get(train.pool) or PoolEntry(machine=named)
        trained = price_book.machine(named).price(day, place.region, place.term, train.pool)
    else:
        trained = book.of_pool(train.pool, day)
    prices: dict[str, Price] = {"here": here}
    for name, section in (("verify", spec.verify), ("evaluate", spec.evaluate)):
        if section.pool is None:
            prices[name] = here
        else:
            prices[name] = trained if section.pool == train.pool else book.of_pool(section.pool, day)
    return {"price": trained, "prices": prices}


def _counted(here: Price) -> Price:
    """The price of this machine with its GPUs counted, where neither the spec nor the environment says what it is.

    Without a machine, nobody knows its GPUs; that is not 0.
    """
    number = machine.num_gpus()
    return here.model_copy(update={"machine": ""} if number is None else {"devices": number})


def resolve_environment(loaded: LoadedSpec, store: Store | None = None, *, afresh: bool = False) -> Packages | None:
    """The packages of the spec's environment, installed on this machine; None without an environment.

    Args:
        store: the age of a release counts by the earlier of its clock and this machine's: a wrong clock then refuses
            more, and lets nothing through that is too young.
        afresh: whether requirements that were resolved before are resolved again.

    Raises:
        SpecError: they cannot be installed.
    """
    spec, path, requirements = loaded.spec, loaded.path, loaded.requirements
    if spec.environment is None or requirements is None:
        return None
    wheels = None if spec.environment.wheels is None else path.parent / spec.environment.wheels
    if wheels is not None and not wheels.is_dir():
        raise SpecError(f"{path}: environment.wheels: {wheels} is not a folder.", remedy="Correct the path.")
    return resolve_packages(
        requirements,
        spec.environment.build,
        wheels,
        afresh=afresh,
        min_age_days=spec.environment.packages.min_age_days if spec.environment.packages else 0,
        clock=lambda: min(time.time(), store.now_s()) if store else time.time(),
    )


def resolve_init(spec: PipelineSpec, path: Path, store: Store, provenance: dict[str, object]) -> Ref | None:
    """The checkpoint or import that the training begins with, every byte read again; None without `train.init_from`.

    Raises:
        UsageError: there is no such checkpoint, model or file, or the checkpoint is not verified.
        CorruptError: its bytes do not match the seal or the digest.
    """
    wanted, field = spec.train.init_from, f"{path}: train.init_from"
    if wanted is None:
        return None
    if wanted.source == "outside":
        return import_weights(store, wanted, path.parent, provenance, field=field)
    if wanted.source == "checkpoint":
        return _verified_weights(store, wanted.weights, field)
    try:
        version, _ = find_version(store, wanted.weights)
    except UsageError as error:
        raise UsageError(f"{field}: {error.message}", remedy=error.remedy) from error
    held = _verified_weights(store, version.checkpoint.ref.uri, field)
    if held != version.checkpoint.ref:
        raise CorruptError(f"{field}: {held.uri} is not the checkpoint that {wanted.weights} was made from.")
    return held


def _verified_weights(store: Store, uri: str, field: str) -> Ref:
    if not store.claim("/".join(uri.split("/")[:2])):
        raise UsageError(f"{field}: {uri} was deleted.", remedy="Name another checkpoint.")
    if store.exists(layout.quarantined(uri)):
        reason = store.read_as(layout.quarantined(uri), lambda mark: str(mark["reason"]))
        raise UsageError(f"{field}: {uri} is quarantined: {reason}", remedy="Name another checkpoint.")
    try:
        held = store.verify(uri).ref
    except FileNotFoundError:
        raise UsageError(
            f"{field}: {store.uri} has no checkpoint {uri}.", remedy="`trainwright checkpoints RUN` lists a run's."
        ) from None
    try:
        is_usable = is_verified(store, held)
    except CorruptError as error:
        raise CorruptError(f"{field}: {error.message}", remedy=error.remedy, details=error.details) from error
    if not is_usable:
        raise UsageError(
            f"{field}: {uri} is not verified.",
            remedy="Run `trainwright verify` with the spec that trained it; only what train hands over is verified.",
        )
    return held


def resolve_drift(spec: PipelineSpec, path: Path, store: Store) -> DriftReference | None:
    """What the data is compared with; None without `contract.drift`. Without a champion, a reference with a note.

    Raises:
        UsageError: the named data does not exist or was deleted, or the file is not a profile that can be read.
        CorruptError: a byte on the way to the profile has changed.
    """
    wanted = None if spec.contract is None else spec.contract.drift
    if wanted is None:
        return None
    field, against = f"{path}: contract.drift.against", wanted.against
    if against.endswith(".json"):
        return DriftReference(
            name=against, path=against, digest=digest(_profile_from_file(path.parent, against, field).to_json())
        )
    if against.startswith(("datasets/", "contracts/")):
        return _drift_of_sealed(store, against, _existing_data(store, against, field))
    if against == "champion":
        pointer = registry.read_alias(store, spec.model_name, spec.promote.alias)
        name = f"{spec.model_name}@{spec.promote.alias}"
        if pointer is None:
            return DriftReference(name=name, note=f"there is no {name} yet, so the data is compared with nothing")
        return _drift_of_version(
            store, name, registry.model_version(store, Ref.model_validate(pointer[0].value["model_version"]))
        )
    if "@" not in against:
        raise SpecError(f"{field}: {against!r} names no data.", remedy=_DRIFT_REMEDY)
    try:
        version, _ = find_version(store, against)
    except UsageError as error:
        raise UsageError(f"{field}: {error.message}", remedy=error.remedy) from error
    return _drift_of_version(store, against, version)


def reference_profile(store: Store, reference: DriftReference, root: Path) -> Profile | None:
    """The profile that was looked up; None if the earlier data has none. CorruptError if it has changed since."""
    if reference.contract is not None:
        return read_profile(store, reference.contract)
    if reference.path is None:
        return None
    profile = _profile_from_file(root, reference.path, "contract.drift.against")
    if digest(profile.to_json()) != reference.digest:
        raise CorruptError(f"{reference.path} has changed since the run was resolved.")
    return profile


def _profile_from_file(root: Path, name: str, field: str) -> Profile:
    try:
        return Profile.from_json(parse_json(read_plain(root / name)))
    except FileNotFoundError as error:
        raise SpecError(f"{field}: there is no file {name} in {root}.", remedy=_DRIFT_REMEDY) from error
    except UsageError as error:
        raise UsageError(f"{field}: {name}: {error.message}", remedy=error.remedy) from error
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{field}: {name} is not a profile.", remedy="Copy profile.json of a contract report."
        ) from error


def _existing_data(store: Store, uri: str, field: str) -> Manifest:
    try:
        if store.claim(uri):
            return store.manifest(uri)
        why = "was deleted"
    except FileNotFoundError:
        why = f"is not in {store.uri}"
    raise UsageError(f"{field}: {uri} {why}.", remedy=_DRIFT_REMEDY)


def _drift_of_version(store: Store, name: str, version: ModelVersion) -> DriftReference:
    try:
        dataset = store.manifest(version.checkpoint.ref).parent_in("datasets")
        if dataset is None:
            return DriftReference(name=name, note=f"{name} was trained on external data, which has no profile")
        return _drift_of_sealed(store, name, store.manifest(dataset))
    except FileNotFoundError as error:
        raise CorruptError(f"What {name} was trained with is missing: {error}.") from error


def _drift_of_sealed(store: Store, name: str, manifest: Manifest) -> DriftReference:
    """The reference to a contract report, or to the report that is a parent of a dataset."""
    contract = manifest.ref if manifest.uri.startswith("contracts/") else manifest.parent_in("contracts")
    if contract is None or read_profile(store, contract) is None:
        note = f"the data of {name} has no profile, because an earlier version of Trainwright validated it"
        return DriftReference(name=name, note=note)
    return DriftReference(name=name, contract=contract)


def existing_version(store: Store, model: str, number: int) -> ModelVersion:
    """A version of a model by its number; UsageError if it does not exist, CorruptError if it is not the promoted
    version.
    """
    try:
        version = registry.read_version(store, model, number)
        _check_promoted(store, model, number, version)
        return version
    except FileNotFoundError as error:
        raise UsageError(
            f"{model} has no version {number} in {store.uri}.",
            remedy="`trainwright status` lists models, `trainwright show` their versions.",
        ) from error


def _check_promoted(store: Store, model: str, number: int, version: ModelVersion) -> None:
    """CorruptError unless the version stored under a number is the one that its promotion receipts name."""
    aliases = [name for name in store.list(layout.aliases(model)) if name != "history"]
    receipts = [receipt for alias in aliases for receipt in registry.history(store, model, alias)]
    named = [one.candidate for one in receipts if one.candidate and one.candidate.uri == version.ref.uri]
    if (version.name, version.version) != (model, number) or any(ref != version.ref for ref in named):
        path = layout.manifest(version.ref.uri)
        raise CorruptError(
            f"{path} is whole, but is not the version {number} that was promoted.", details={"file": path}
        )


def find_version(store: Store, name: str) -> tuple[ModelVersion, str | None]:
    """The version that `model`, `model@alias` or `model@3` names (default alias: champion), and the alias."""
    model, _, which = name.partition("@")
    if which.isdigit():
        return existing_version(store, model, int(which)), None
    alias = which or "champion"
    pointer = registry.read_alias(store, model, alias)
    if pointer is None:
        raise UsageError(
            f"There is no {model}@{alias} in {store.uri}.", remedy="`trainwright status` lists models and aliases."
        )
    if has_ended(pointer[0]):
        raise UsageError(
            f"{model} has no canary; version {pointer[1]} was the last.",
            remedy=f"Name a version: {model}@{pointer[1]}.",
        )
    return registry.model_version(store, Ref.model_validate(pointer[0].value["model_version"])), alias


@dataclass(frozen=True)
class CheckpointOutlook:
    """The interval that loses least, by the records of past runs.

    Attributes:
        every_s: the interval; loss: the share of the time that is expected to be lost with it.
        own_s, own_loss: the same for the spec's own interval; None if it is unknown, or equal to this interval. own:
          the field that sets the spec's own interval.
        why: the figures that the interval is computed from, as the rest of a sentence.
        is_measured: whether past runs measured a checkpoint; else `every_s` is the default, and nothing is expected.
    """

    every_s: float
    why: str
    is_measured: bool = False
    loss: float = 0.0
    own_s: float | None = None
    own_loss: float | None = None
    own: str = ""

    @property
    def line(self) -> str:
        """A sentence for a plan; without a measured checkpoint, about `auto` alone."""
        spacing = f"a checkpoint every {in_words(self.every_s)}"
        if not self.is_measured:
            return f"{spacing}, because {self.why}"
        best = f"{spacing} loses least (an expected {self.loss:.2%} of the time: {self.why})"
        if self.own_s is None or self.own_loss is None:
            return best
        if self.own_loss <= _WORSE * self.loss or self.own_loss - self.loss <= _MUCH:
            return best
        return f"{best}; {self.own} saves one about every {in_words(self.own_s)}, which loses {self.own_loss:.1%}"


def checkpoint_outlook(spec: PipelineSpec, past: PastTrainings) -> CheckpointOutlook:
    """The interval that loses least for the trainings of a spec."""
    if not past.saves:
        return CheckpointOutlook(DEFAULT_S, "no run of this pipeline has measured a checkpoint yet")
    nodes, stall_s = spec.train.nodes, past.stalled_s / past.saves
    mtbf_s = node_mtbf(past.failures, past.node_seconds) / nodes
    restart_s = past.restarting_s / past.restarts if past.restarts else RESTART_S
    every_s = max(interval(stall_s, mtbf_s), LEAST_S)
    own_s, own = _own_interval(spec, past)
    seen = "no failure" if not past.failures else "1 failure" if past.failures == 1 else f"{past.failures} failures"
    node_days = past.node_seconds / DAY_S
    gang = "a node fails" if nodes == 1 else f"one of {nodes} nodes fails"
    why = (
        f"a checkpoint stops the steps for {in_words(stall_s)}, and {gang} about once in {in_words(mtbf_s)}, from "
        f"{seen} in {node_days:{',.0f' if node_days >= 10 else '.2g'}} node-days and an assumed one in 150"
    )
    return CheckpointOutlook(
        every_s,
        why,
        is_measured=True,
        loss=expected_loss(every_s, stall_s, mtbf_s, restart_s),
        own_s=own_s,
        own_loss=None if own_s is None else expected_loss(own_s, stall_s, mtbf_s, restart_s),
        own=own,
    )


def look_at_past_checkpoints(spec: PipelineSpec, store: Store) -> CheckpointOutlook:
    """The interval that loses least, by the newest runs in a store. Records that cannot be read are not counted."""
    return checkpoint_outlook(spec, past_trainings(_past_executions(store), spec.name, spec.train.pool or ""))


def resolve_interval(spec: PipelineSpec, store: Store) -> CheckpointInterval | None:
    """What `train.checkpoint: auto` stands for in a run that begins now; None if the spec does not ask for it."""
    if spec.train.checkpoint.every_s != "auto":
        return None
    found = look_at_past_checkpoints(spec, store)
    return CheckpointInterval(every_s=round(found.every_s, 1), why=found.why)


def in_words(seconds: float) -> str:
    """A length of time in the largest unit that gives at least 1, such as `14 min`."""
    unit_s, unit = next(((unit_s, unit) for unit_s, unit in _UNITS if seconds >= unit_s), (1.0, "s"))
    return f"{seconds / unit_s:.3g} {unit}"


def _own_interval(spec: PipelineSpec, past: PastTrainings) -> tuple[float | None, str]:
    """Seconds between checkpoints by the spec and the past speed of steps, or None; and the field that sets them."""
    own = spec.train.checkpoint
    if own.every_s == "auto":
        return None, ""
    steps = own.every_steps or (past.steps_per_epoch if own.every_s is None else 0)
    known = [] if own.every_s is None else [(own.every_s, f"the spec's checkpoint.every_s: {own.every_s:g}")]
    if steps and past.steps and past.stepping_s > 0:
        field = f"the spec's checkpoint.every_steps: {steps}" if own.every_steps else "each end of an epoch"
        known.append((steps * past.stepping_s / past.steps, field))
    return min(known, default=(None, ""))


def _past_executions(store: Store) -> list[ExecutionUsage]:
    """The executions of the newest runs, oldest first."""

    def readable(run_id: str) -> list[ExecutionUsage]:
        with contextlib.suppress(CorruptError, UsageError):
            return executions_of(store, run_id)[0]
        return []

    newest = [name for name in store.list(layout.runs()) if is_name(name)][-MOST_RUNS:]
    return [execution for executions in read_several(store, readable, newest) for execution in executions]
