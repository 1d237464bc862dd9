"""A run: everything that a stage needs to know. `open_run` looks it up once; no later code looks it up again.

What was looked up are the run's inputs: written to the store once, and read when the run continues. An idempotency key
names the run that first claimed it: two triggers with one key are one run.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from data_contracts.canonical import digest, is_name, valid_name
from data_contracts.errors import Interrupted, TrainwrightError, UsageError
from data_contracts.executions import ExecutionUsage, Followed, GangUsage, StageUsage
from data_contracts.handoffs import Ref, SourceFile
from data_contracts.messages.children import StoreAddress
from data_contracts.pipeline_spec import PipelineSpec, SourceSpec
from data_contracts.pipeline_spec.data import MEMORY_SHARE
from data_contracts.resolved import Resolved
from data_contracts.run_report import Cost, StageResult
from infra import code_bundle, scratch, settings
from infra.audit import now
from infra.budgets import refuse_by_policy
from infra.gang.recovery import BudgetGuard, Replay
from infra.models.registry import seal_recipe
from infra.records.nodes import import_places, note_environment
from infra.signing.signatures import configured_key, sign_inputs
from infra.store import Store, absolute_address, layout, open_store
from tasks.run.resolve import DEFAULTS, RunOptions, ci_key, find_inputs, read_inputs, resolve, slug
from tasks.run.spec_check import LoadedSpec

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey


class UsageMeter(Protocol):
    """Records what the run uses while this process carries it out: a `tasks.run.meter.Meter`."""

    warned_of_machine: bool

    @property
    def so_far(self) -> ExecutionUsage:
        """The execution up to now."""

    def note(self, what: str | Followed) -> None:
        """Note the stage that begins, or the nodes that are to be launched."""

    def stage(self, usage: StageUsage) -> None:
        """Record a stage that ended."""

    def gang(self, usage: GangUsage) -> None:
        """Record a generation whose nodes are released."""


class BudgetUse(Protocol):
    """Reserves and settles what the run uses of its budgets: a `tasks.budgets.Spending`."""

    sentences: list[str]

    def admit(self) -> None:
        """Begin to reserve, before anything of the run is booked."""

    def budget_guard(self, section: str, *, local: bool) -> BudgetGuard:
        """What a gang that works for a section may use."""

    def over(self) -> TrainwrightError | None:
        """Why the run must end now; None if it may continue."""


@dataclass(frozen=True)
class RunInputs:
    """What was looked up for one run of a pipeline; enough for code that only reads a stored run.

    Attributes:
        recorded: whether it has a place under `runs/`; a stage command called alone has none.
        from_step: step of the committed checkpoint that an unfinished training resumes from; None: the newest.
        replay: the training that `train` makes again, generation by generation; None: it trains as the spec says.
        key: the idempotency key that named the run; None if it was opened by its id.
    """

    resolved: Resolved
    store: Store
    recorded: bool = True
    from_step: int | None = None
    replay: Replay | None = None
    key: str | None = None

    @property
    def run_id(self) -> str:
        """Our id; Prefect's flow runs are its attempts."""
        return self.resolved.run_id

    @cached_property
    def spec(self) -> PipelineSpec:
        """The spec after overrides."""
        return self.resolved.pipeline()

    @property
    def external(self) -> bool:
        """Whether the user's data module reads data of its own."""
        return self.resolved.spec["data"] == "external"

    @property
    def withholds(self) -> bool:
        """Whether texts that may quote rows stay on their machine, because the data has sensitive columns."""
        data = self.spec.data
        return not isinstance(data, str) and bool(data.sensitive)

    @property
    def memory_share(self) -> float:
        """The share of a machine's memory that reading raw files may take."""
        return MEMORY_SHARE if isinstance(self.spec.data, str) else self.spec.data.memory_share

    @property
    def root(self) -> Path:
        """The spec's folder."""
        return Path(self.resolved.root)

    def train_settings(self) -> dict[str, Any]:
        """`train` as JSON with the Lightning config inlined, for ranks, verifiers and evaluators."""
        settings = {**self.spec.train.model_dump(mode="json"), "lightning": self.resolved.lightning}
        if self.resolved.checkpoint is not None:
            settings["checkpoint"] = {**settings["checkpoint"], "every_s": self.resolved.checkpoint.every_s}
        return settings

    @property
    def store_address(self) -> StoreAddress:
        """What a child process needs to open the store: its address and the names of its credentials."""
        options = self.spec.store.storage_options
        return StoreAddress(uri=self.store.uri, options=options, pointers=self.store.pointers)

    def raw_provenance(self, files: Sequence[SourceFile], sources: Sequence[SourceSpec]) -> dict[str, object]:
        """Where raw files lay and their content's digests, for a proof that reads them again; credentials are names."""
        return {
            "raw_root": self.resolved.root,
            "raw_sources": [source.model_dump(mode="json") for source in sources],
            "raw": [file.to_json() for file in files],
        }


class LiveRun:
    """What changes while this process carries a run out.

    Attributes:
        results: how the stages ended so far, by name.
        spent: the cost of nodes so far.
        meter: records what this process and its nodes use; None outside of a flow.
        budget: what it uses of its budgets; None outside of a flow.
        environments: the digests of what its processes on this machine import from, by place (`import_places`).
    """

    def __init__(self) -> None:
        self.results: dict[str, StageResult] = {}
        self.spent: list[Cost] = []
        self.meter: UsageMeter | None = None
        self.budget: BudgetUse | None = None
        self.environments: dict[str, str] = {}

    @cached_property
    def _workspace(self) -> scratch.Scratch:
        return scratch.make("project")

    @property
    def workspace(self) -> Path:
        """A temporary folder of this process, removed with this object."""
        return self._workspace.path

    def add_result(self, result: StageResult) -> None:
        """Keep how a stage ended."""
        self.results[result.name] = result

    def add_cost(self, cost: Cost) -> None:
        """Add the cost of nodes that were released."""
        self.spent.append(cost)


@dataclass(frozen=True)
class Run(RunInputs):
    """A run that this process carries out: its inputs, and what changes meanwhile."""

    live: LiveRun = field(default_factory=LiveRun)

    def project(self, bundle: Ref | None = None) -> Path:
        """The user's project, unpacked from its sealed bundle into the workspace (this run's own by default)."""
        ref = bundle or self.resolved.code
        folder = self.live.workspace / f"project-{ref.id[:16]}"
        mine = self.resolved.code_digest if ref == self.resolved.code else None
        if not folder.exists():
            code_bundle.unpack(self.store, ref, folder, code_digest=mine)
            if self.live.environments:
                self.note_environments()
        return folder

    def note_environments(self, *projects: Path) -> list[str]:
        """Write down what this process, and those that run its unpacked projects, import from; returns the digests."""
        environments = self.live.environments
        for project in (None, *projects, *self.live.workspace.glob("project-*")):
            for place in import_places(project):
                if place not in environments:
                    environments[place] = note_environment(self.store, self.run_id, place)
        return sorted(environments.values())

    def with_recipe(self, provenance: dict[str, object]) -> dict[str, object]:
        """The provenance, with the sealed recipe of this run, by which `trainwright reproduce` makes a model again."""
        return {**provenance, "recipe": seal_recipe(self.store, self.resolved, provenance).to_json()}

    def provenance(self, *parents: Ref | None, started: str | None = None) -> dict[str, object]:
        """The provenance of this run's results: parents, code, spec, lock, times, actor, trigger, tags."""
        resolved = self.resolved
        return {
            "parents": [parent.to_json() for parent in parents if parent is not None],
            "run_id": resolved.run_id,
            "code": {"ref": resolved.code.to_json(), "commit": resolved.commit, "dirty": resolved.dirty},
            "spec_digest": digest(resolved.spec),
            "lock_digest": resolved.lock_digest,
            "environments": self.note_environments(),
            "started": started or resolved.started,
            "finished": now(),
            "actor": resolved.actor,
            "trigger": resolved.trigger,
            "tags": self.spec.tags,
        }


def open_run(
    loaded: LoadedSpec,
    *,
    store_uri: str | None = None,
    options: RunOptions = DEFAULTS,
    recorded: bool = True,
    remembered: bool = True,
) -> Run:
    """Resolve a spec once and name the run; two calls with one idempotency key open the same run.

    The second call resolves nothing: a file that changed or vanished since must not end a run that has its inputs.

    Args:
        store_uri: store to use instead of the spec's.
        recorded: False for a stage command, which leaves nothing under `runs/`.
        remembered: False for a store that is removed soon, so that no later command looks for it on this machine.

    Raises:
        UsageError: the spec, a source or the store cannot be used as given, the policy forbids its tags, or the key is
            of another pipeline's run.
    """
    spec = loaded.spec
    signer = configured_key(spec.promote.sign, loaded.root) if recorded else None
    store = open_spec_store(spec, loaded.root, store_uri, remembered=remembered)
    refuse_by_policy(spec, loaded.path, store)
    if recorded and (known := resolved_before(store, options.key)) is not None:
        _own_pages(store, spec.name)
        return Run(inputs_of_pipeline(spec.name, options, known), store, key=options.key)
    resolved = resolve(loaded, store, run_id=new_run_id(), options=options)
    if not recorded:
        return Run(resolved, store, recorded=False)
    _own_pages(store, spec.name)
    key = ci_key(resolved) if options.key is None and options.trigger == "ci" else options.key
    if key is not None:
        resolved = resolved.model_copy(update={"run_id": claim_key(store, key, resolved.run_id)})
    return Run(inputs_of_pipeline(spec.name, options, record_inputs(store, resolved, signer)), store, key=key)


def reopen_run(run_id: str, store_uri: str | None = None, from_step: int | None = None) -> Run:
    """The run with this id, as it was resolved; UsageError if no known store has it."""
    stores = known_store_list(store_uri)
    for store in stores if is_name(run_id) else ():
        path = layout.resolved(run_id)
        if store.exists(path) and store.claim(layout.run(run_id)):
            return Run(read_inputs(store, run_id), store, from_step=from_step)
    model = run_id.partition("@")[0]
    if any(store.list(layout.models(model)) for store in stores if is_name(model)):
        raise UsageError(f"{run_id} is a model, not a run.", remedy="Name a run's id; `trainwright status` lists runs.")
    raise not_found(f"run {run_id}", stores)


def not_found(what: str, stores: Sequence[Store]) -> UsageError:
    """The error for a run or model that is in none of the stores that were searched."""
    if not stores:
        return UsageError(
            f"There is no {what}: no store is known on this machine.",
            remedy="Name its store with --store, or run a pipeline: `trainwright run SPEC`.",
        )
    return UsageError(
        f"There is no {what} in {' or '.join(store.uri for store in stores)}.",
        remedy="`trainwright status` lists runs and models; name another store with --store.",
    )


def open_spec_store(spec: PipelineSpec, root: Path, store_uri: str | None = None, *, remembered: bool = True) -> Store:
    """The store that `--store` or the spec names; a relative folder is relative to the spec's folder."""
    uri = absolute_address(spec.store.uri, root) if store_uri is None else absolute_address(store_uri)
    pointers = spec.store.pointers if store_uri is None else None
    store = open_store(uri, spec.store.storage_options, pointers=pointers)
    if remembered:
        settings.remember_store(uri, spec.store.storage_options, store.pointers)
    return store


def new_run_id() -> str:
    """A new run id that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def known_store_list(store_uri: str | None = None) -> list[Store]:
    """The named store, or the stores to search: `.trainwright` here, then those used before, the latest first.

    Each is opened as it was when a spec named it here, with the same named credentials.
    """
    if store_uri is not None:
        uri = absolute_address(store_uri)
        before = [entry for entry in settings.known_stores() if entry["uri"].rstrip("/") == uri.rstrip("/")]
        return [open_store(uri, before[-1]["storage_options"] if before else {}, create=False, tested=True)]
    here = Path(".trainwright")
    known: dict[str, Mapping[str, object]] = {str(here.resolve()): {}} if here.is_dir() else {}
    for entry in reversed(settings.known_stores()):
        known.setdefault(entry["uri"], entry["storage_options"])
    stores = []
    for uri, options in known.items():
        try:
            stores.append(open_store(uri, options, create=False, tested=True))
        except (UsageError, Interrupted):
            continue
    return stores


def artifact_key(run: Run, stage: str) -> str:
    """The Prefect artifact key of a stage: `<pipeline>-<stage>`, where `_` and `.` become `-`."""
    return f"{slug(run.spec.name)}-{stage}"


def _own_pages(store: Store, name: str) -> None:
    """UsageError if another pipeline's name gives the same artifact keys: they would overwrite each other's pages."""
    path = layout.pipeline(slug(name))
    if store.create_once(path, {"schema_version": 1, "name": name}):
        return
    if (other := store.read_as(path, lambda owner: str(owner["name"]))) != name:
        raise UsageError(
            f"name: {name!r} and the pipeline {other!r} in this store would share their pages in Prefect "
            f"({slug(name)}-…).",
            remedy="Rename one of them; Prefect's pages do not distinguish '.', '_' and '-'.",
        )


def record_inputs(store: Store, resolved: Resolved, signer: SigningKey | None) -> Resolved:
    """Store what was resolved, signed if there is a key; returns that, or what another process of the run stored."""
    if store.create_once(layout.resolved(resolved.run_id), resolved.to_json()):
        if signer is not None:
            sign_inputs(store, resolved, signer)
        return resolved
    store.claim(layout.run(resolved.run_id))
    return read_inputs(store, resolved.run_id)


def claim_key(store: Store, key: str, run_id: str) -> str:
    """The run id that owns this idempotency key: ours, or the first one's."""
    path = layout.trigger(key)
    if store.create_once(path, {"schema_version": 1, "run_id": run_id}):
        return run_id
    return store.read_as(path, _run_named)


def resolved_before(store: Store, key: str | None) -> Resolved | None:
    """The inputs of the run that owns this idempotency key; None if there is no such run yet."""
    run_id = None if key is None else store.find_as(layout.trigger(key), _run_named)
    if run_id is None or not store.claim(layout.run(run_id)):
        return None
    return find_inputs(store, run_id)


def inputs_of_pipeline(name: str, options: RunOptions, inputs: Resolved) -> Resolved:
    """The inputs of the run with this key; UsageError if a person chose the key, and its run is another pipeline's.

    A flow run's own key belongs to one pipeline, which may have been renamed between two executions.
    """
    if (other := inputs.spec["name"]) == name or options.has_own_key:
        return inputs
    raise UsageError(
        f"The key {options.key!r} is of the run {inputs.run_id} of the pipeline {other!r}, so {name!r} cannot use it.",
        remedy="Choose another --key: one key is one run, whatever the pipeline.",
    )


def _run_named(trigger: Mapping[str, str]) -> str:
    return valid_name(trigger["run_id"])
