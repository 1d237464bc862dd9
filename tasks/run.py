"""A run: everything a stage needs to know, looked up once. `open_run` resolves; nothing later looks things up again."""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import Interrupted, UsageError
from data_contracts.handoffs import Cost, Ref, SourceFile, StageResult, Trigger
from data_contracts.load import load_spec
from data_contracts.resolved import Resolved
from data_contracts.spec import PipelineSpec, SourceSpec
from infra import code, settings
from infra.audit import now
from infra.sources import Window
from infra.store import Store, layout, open_store
from tasks.resolving import ci_key, resolve


@dataclass(frozen=True)
class Run:
    """One run of a pipeline.

    Attributes:
        recorded: whether it has a place under `runs/`; a stage verb called alone has none.
        from_step: step of the committed checkpoint that an unfinished training shall go on from; None: the newest.
        results: how the stages ended so far, by name.
    """

    resolved: Resolved
    store: Store
    recorded: bool = True
    from_step: int | None = None
    results: dict[str, StageResult] = field(default_factory=dict)
    spent: list[Cost] = field(default_factory=list)

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
        """Whether the user's data module reads elsewhere."""
        return self.resolved.spec["data"] == "external"

    @property
    def root(self) -> Path:
        """The spec's folder."""
        return Path(self.resolved.root)

    @cached_property
    def _workspace(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="trainwright-")

    @property
    def workspace(self) -> Path:
        """A folder of this process for what need not last; removed with the run object."""
        return Path(self._workspace.name)

    def project(self, bundle: Ref | None = None) -> Path:
        """The user's project, unpacked from its sealed bundle into the workspace (this run's own by default)."""
        ref = bundle or self.resolved.code
        folder = self.workspace / f"project-{ref.id[:16]}"
        return folder if folder.exists() else code.unpack(self.store, ref, folder)

    def train_settings(self) -> dict[str, Any]:
        """`train` as JSON with the Lightning config inlined: what ranks, verifiers and evaluators are told."""
        return {**self.spec.train.model_dump(mode="json"), "lightning": self.resolved.lightning}

    def store_request(self) -> dict[str, Any]:
        """What a child process needs to open the store: its address and the names of its credentials."""
        return {"store": self.store.uri, "store_options": self.spec.store.storage_options}

    def reading_options(self) -> dict[str, Any]:
        """Keyword arguments for `read_batches` that every reading of this run's raw data shares."""
        data = self.spec.data
        assert not isinstance(data, str)
        span = self.resolved.window
        return {
            "root": self.root,
            "window": None if span is None else Window.from_iso(*span),
            "window_column": data.window.column if data.window else None,
        }

    def raw_provenance(self, files: Sequence[SourceFile], sources: Sequence[SourceSpec]) -> dict[str, Any]:
        """Where raw files lay and what they were, for a proof that looks at them again; credentials are names."""
        return {
            "raw_root": self.resolved.root,
            "raw_sources": [source.model_dump(mode="json") for source in sources],
            "raw": [file.to_json() for file in files],
        }

    def provenance(self, *parents: Ref | None, started: str | None = None) -> dict[str, Any]:
        """The provenance of what this run makes: parents, code, spec, lock, times, actor, trigger, tags."""
        told = self.resolved
        return {
            "parents": [parent.to_json() for parent in parents if parent is not None],
            "run_id": told.run_id,
            "code": {"ref": told.code.to_json(), "commit": told.commit, "dirty": told.dirty},
            "spec_digest": digest(told.spec),
            "lock_digest": told.lock_digest,
            "started": started or told.started,
            "finished": now(),
            "actor": told.actor,
            "trigger": told.trigger,
            "tags": self.spec.tags,
        }


def open_run(
    spec_path: str | Path,
    *,
    window: str | None = None,
    overrides: Sequence[str] = (),
    key: str | None = None,
    trigger: Trigger = "cli",
    scheduled: datetime | None = None,
    store_uri: str | None = None,
    fresh: bool = False,
    rehash: bool = False,
    recorded: bool = True,
) -> Run:
    """Resolve a spec once and name the run; two calls with one idempotency `key` open the same run.

    Args:
        window: `START..END` or a length that ends at `scheduled` (or now).
        overrides: `a.b=c` settings that replace fields of the spec.
        key: idempotency key; None: for CI commit + code + spec + window, else every call is a run of its own.
        fresh: begin a new training even if an unfinished or finished one has the same key.
        recorded: False for a stage verb, which leaves nothing under `runs/`.

    Raises:
        UsageError: the spec, a source or the store cannot be used as given.
    """
    path = Path(spec_path).resolve()
    spec = load_spec(path, overrides)
    store = open_spec_store(spec, path.parent, store_uri)
    resolved = resolve(
        spec,
        path,
        store,
        run_id=new_run_id(),
        window=window,
        trigger=trigger,
        scheduled=scheduled,
        rehash=rehash,
        fresh=fresh,
    )
    if not recorded:
        return Run(resolved, store, recorded=False)
    _own_pages(store, spec.name)
    if key is None and trigger == "ci":
        key = ci_key(resolved)
    if key is not None:
        resolved = resolved.model_copy(update={"run_id": _claim(store, key, resolved.run_id)})
    return Run(_record(store, resolved), store)


def reopen_run(run_id: str, store_uri: str | None = None, from_step: int | None = None) -> Run:
    """The run with this id, as it was resolved; UsageError if no store known here has it."""
    for store in known_store_list(store_uri):
        path = layout.resolved(run_id)
        if store.exists(path) and store.claim(layout.run(run_id)):
            return Run(Resolved.from_json(store.read_json(path)), store, from_step=from_step)
    raise UsageError(
        f"No run {run_id} in the stores known on this machine.", remedy="Name its store with --store, or see `status`."
    )


def open_spec_store(spec: PipelineSpec, root: Path, store_uri: str | None = None) -> Store:
    """The store that `--store` or the spec names; a relative folder is meant from the spec's folder."""
    uri = spec.store.uri
    if store_uri is not None:
        uri = store_uri if "://" in store_uri else str(Path(store_uri).resolve())
    elif "://" not in uri:
        uri = str((root / uri).resolve())
    pointers = spec.store.pointers if store_uri is None else None
    store = open_store(uri, spec.store.storage_options, pointers=pointers)
    settings.remember_store(uri, spec.store.storage_options)
    return store


def new_run_id() -> str:
    """A new run id that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def known_store_list(store_uri: str | None = None) -> list[Store]:
    """The store that is named, or those to look in: `.trainwright` here, then those used before, the latest first.

    Each is opened as it was when a spec named it here, with the same named credentials.
    """
    if store_uri is not None:
        uri = store_uri.rstrip("/") if "://" in store_uri else str(Path(store_uri).resolve())
        before = [entry for entry in settings.known_stores() if entry["uri"].rstrip("/") == uri]
        return [open_store(uri, before[-1]["storage_options"] if before else {}, create=False)]
    here = Path(".trainwright")
    known: dict[str, dict[str, Any]] = {str(here.resolve()): {}} if here.is_dir() else {}
    for entry in reversed(settings.known_stores()):
        known.setdefault(entry["uri"], entry["storage_options"])
    found = []
    for uri, options in known.items():
        try:
            found.append(open_store(uri, options, create=False))
        except (UsageError, Interrupted):
            continue
    return found


def slug(name: str) -> str:
    """A pipeline's name as Prefect's artifact keys have it: `_` and `.` become `-`."""
    return re.sub(r"[._]", "-", name)


def _own_pages(store: Store, name: str) -> None:
    """Two pipelines must not write each other's pages; UsageError if another one's name looks the same there."""
    path = layout.pipeline(slug(name))
    try:
        store.create_json(path, {"schema_version": 1, "name": name})
    except FileExistsError:
        if (other := store.read_json(path)["name"]) != name:
            raise UsageError(
                f"name: {name!r} and the pipeline {other!r} in this store would share their pages in Prefect "
                f"({slug(name)}-…).",
                remedy="Rename one of them; '.', '_' and '-' are the same there.",
            ) from None


def _claim(store: Store, key: str, run_id: str) -> str:
    """The run id that owns this idempotency key: ours, or the first one's."""
    path = layout.trigger(key)
    try:
        store.create_json(path, {"schema_version": 1, "run_id": run_id})
        return run_id
    except FileExistsError:
        return store.read_json(path)["run_id"]


def _record(store: Store, resolved: Resolved) -> Resolved:
    path = layout.resolved(resolved.run_id)
    try:
        store.create_json(path, resolved.to_json())
        return resolved
    except FileExistsError:
        store.claim(layout.run(resolved.run_id))
        return Resolved.from_json(store.read_json(path))
