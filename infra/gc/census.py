"""The census of a store: every part that stays or goes as a whole, how old it is, and what it names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from data_contracts.approvals import meaning
from data_contracts.canonical import digest
from data_contracts.errors import ApprovalPending, CorruptError, Interrupted, OverBudget, UsageError
from data_contracts.foreign_json import parse_json
from infra.approvals.approvals import latest_question, stored_answer
from infra.audit import now
from infra.gc.retention import Kind, StoreItem
from infra.models import registry
from infra.models.canaries import standing_canary
from infra.store import Manifest, Store, layout
from infra.store.backend import Stored
from infra.store.store import day_end_s

SEALED: dict[str, Kind] = {
    "contracts": "contract",
    "datasets": "dataset",
    "evaluations": "evaluation",
    "code": "code",
    "imports": "import",
    "recipes": "recipe",
}
# Files of a sealed directory that name other directories, besides its manifest.
_REFERRING = ("handoff.json", "receipt.json", "train.json")
_NAME = re.compile(rf"[0-9a-f]{{64}}|({'|'.join([*SEALED, 'models', 'trainings', 'runs', 'triggers'])})/.+")
# A run that ended with one of these exit codes can be resumed; after any other failure it is over.
_WAITING = ApprovalPending.exit_code
_RESUMABLE = (Interrupted.exit_code, OverBudget.exit_code, _WAITING, 130)


def take_census(store: Store) -> list[StoreItem]:
    """Everything that `infra.gc.retention` decides about.

    Raises: UsageError for a newer schema. Items that cannot be read are listed as broken.
    """
    return _Census(store).items()


def names_in(value: Any) -> frozenset[str]:
    """All texts in a JSON value that can be a URI below the store's root, or an id."""
    return frozenset(text for text in _texts(value) if _NAME.fullmatch(text))


class _Census:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.files: dict[str, list[Stored]] = defaultdict(list)
        self.claims: dict[str, float] = {}
        # The trainings that a run began, by the run's URI: the run itself names only what it has finished.
        self.begun: dict[str, set[str]] = defaultdict(set)
        for file in store.stored():
            area, _, rest = file.path.partition("/")
            if area == "uses":
                uri, _, day = rest.rpartition("/")
                self.claims[uri] = max(self.claims.get(uri, 0.0), day_end_s(day))
            else:
                self.files[area].append(file)
        self.tombstones = {file.path for file in self.files["tombstones"]}

    def items(self) -> list[StoreItem]:
        return [*self._sealed(), *self._registry(), *self._trainings(), *self._runs()]

    def _sealed(self) -> Iterator[StoreItem]:
        for area, kind in SEALED.items():
            for uri, files in _by_folder(self.files[area], 2).items():
                yield self._directory(uri, kind, files)

    def _registry(self) -> Iterator[StoreItem]:
        for uri, files in _by_folder(self.files["models"], 3).items():
            yield self._directory(uri, "model", files, root="a model version")
        for uri, files in _by_folder(self.files["aliases"], 5).items():
            yield self._directory(uri, "receipt", files, root="an alias' history")
        for model, alias, _ in registry.aliases(self.store, ended=True):
            held = registry.read_alias(self.store, model, alias)
            names = names_in(held[0].value if held else None)
            yield StoreItem(layout.alias(model, alias), "alias", 0, 0.0, names=names, root="an alias")
        yield from self._canaries()

    def _canaries(self) -> Iterator[StoreItem]:
        """What was tallied for each canary: it stays while the canary stands, its end is in the receipts."""
        for uri, files in _by_folder(self.files["canaries"], 3).items():
            _, model, k = uri.split("/")
            try:
                standing = standing_canary(self.store, model)
                root = "a canary that stands" if standing is not None and str(standing.k) == k else ""
            except (CorruptError, UsageError):
                root = "it is unknown whether its canary stands"
            yield StoreItem(uri, "canary", _bytes(files), self._touched(uri, files), root=root)

    def _directory(self, uri: str, kind: Kind, files: list[Stored], root: str = "") -> StoreItem:
        """A directory that should be sealed, with what its manifest and its `_REFERRING` files name."""
        present = {file.path for file in files}
        about: dict[str, Any] = {"uri": uri, "kind": kind, "bytes": _bytes(files), "root": root}
        about["touched_s"] = self._touched(uri, files)
        if layout.manifest(uri) not in present:
            return StoreItem(**about, whole=False)
        try:
            manifest = self.store.manifest(uri)
            names = names_in([manifest.content, manifest.provenance, *self._files_with_names(manifest)])
        except FileNotFoundError:  # deleted meanwhile
            return StoreItem(**about, whole=False)
        except CorruptError as error:
            identity = self._salvaged_id(uri)
            # Without an id it is unknown whether anything names it by its id.
            about["root"] = root if identity else root or "it cannot be read"
            return StoreItem(**about, id=identity, broken=error.message)
        return StoreItem(**about, id=manifest.id, names=names)

    def _salvaged_id(self, uri: str) -> str:
        """The id of a directory with a broken manifest, if the damage is elsewhere in the manifest; else ""."""
        try:
            manifest = parse_json(self.store.read(layout.manifest(uri)))
            return str(manifest["id"]) if digest(manifest["content"]) == manifest["id"] else ""
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
            return ""

    def _files_with_names(self, manifest: Manifest) -> Iterator[Any]:
        for entry in manifest.files:
            if entry.path in _REFERRING:
                yield self.store.read_sealed_as(manifest, entry.path, lambda value: value)

    def _trainings(self) -> Iterator[StoreItem]:
        for uri, files in _by_folder(self.files["trainings"], 2).items():
            yield from self._training(uri, files)

    def _training(self, uri: str, files: list[Stored]) -> Iterator[StoreItem]:
        present = {file.path for file in files}
        # Not its lease: an interrupted collection took it, and whoever deletes the training takes it again.
        touched_s = self._touched(uri, [file for file in files if file.path != layout.lease(uri)])
        about: dict[str, Any] = {"uri": uri, "kind": "training", "bytes": _bytes(files), "touched_s": touched_s}
        launches = [path for path in present if path.startswith(f"{uri}/g") and path.endswith("/launch.json")]
        records = [path for path in (layout.result(uri),) if path in present] + launches
        try:
            latest = self.store.pointer(layout.latest(uri)).read()
            value = {"checkpoints": []} if latest is None else latest.value
            committed = [*value["checkpoints"], *(one["checkpoint"] for one in value.get("aside", []))]
            contents = [self.store.read_json(path) for path in records]
        except (CorruptError, KeyError, TypeError) as error:
            why = error.message if isinstance(error, CorruptError) else f"{layout.latest(uri)} is not a ledger"
            yield StoreItem(**about, broken=f"{uri}: its records cannot be read: {why.rstrip('.')}.")
            return
        except FileNotFoundError:  # being deleted
            yield StoreItem(**about, whole=False)
            return
        done = layout.result(uri) in present
        for one in contents:
            self.begun[f"runs/{(one.get('provenance') or {}).get('run_id')}"].add(uri)
        names = names_in([committed, contents])
        yield StoreItem(**about, names=names, whole=done or bool(committed))
        newest = max((_generation(path) for path in launches), default=-1)
        for folder, inside in _by_folder(files, 4).items():
            name = folder.rpartition("/")[2]
            if folder.startswith(f"{layout.checkpoints(uri)}/"):
                parts = layout.split_checkpoint(name)
                generation = newest if parts is None else parts[1]
                # The newest generation of an unfinished training may still commit its uncommitted checkpoints.
                if folder in names or done or generation < newest:
                    item = self._directory(folder, "checkpoint", inside)
                    yield replace(item, names=item.names | {uri})
            elif name.startswith("node-") and (done or _generation(folder) < newest):
                yield StoreItem(folder, "log", _bytes(inside), self._touched(folder, inside))

    def _runs(self) -> Iterator[StoreItem]:
        """Runs, their triggers, what they asked about aliases and what mirrors were told of them."""
        triggers: dict[str, set[str]] = defaultdict(set)
        for file in [*self.files["triggers"], *self.files["questions"]]:
            trigger = self._record(file.path)
            run = f"runs/{trigger.get('run_id', '')}"
            triggers[run].add(file.path)
            broken = f"{file.path} cannot be read." if not trigger and self.store.exists(file.path) else ""
            about: dict[str, Any] = {"root": "it cannot be read" if broken else "", "broken": broken}
            yield StoreItem(file.path, "trigger", file.bytes, file.written_s, names=frozenset({run}), **about)
        for uri, files in _by_folder(self.files["mirrored"], 3).items():
            run = f"runs/{uri.split('/')[1]}"
            triggers[run].add(uri)
            yield StoreItem(uri, "delivery", _bytes(files), self._touched(uri, files))
        for uri, files in _by_folder(self.files["runs"], 2).items():
            yield self._run(uri, files, frozenset(self.begun[uri] | triggers[uri]))

    def _run(self, uri: str, files: list[Stored], more: frozenset[str]) -> StoreItem:
        run_id = uri.partition("/")[2]
        present = {file.path for file in files}
        about: dict[str, Any] = {
            "uri": uri,
            "kind": "run",
            "bytes": _bytes(files),
            "touched_s": self._touched(uri, files),
        }
        if layout.resolved(run_id) not in present:
            return StoreItem(**about, names=more, whole=False)
        records = {path: self._record(path) for path in sorted(present) if path.endswith(".json")}
        broken = next((f"{path} cannot be read." for path, value in records.items() if not value), "")
        attempts = [path for path in records if path.startswith(f"{layout.run_attempts(run_id)}/")]
        last = max(attempts, key=lambda path: (len(path), path), default="")
        over = layout.report(run_id) in records or (last and records[last].get("exit_code") not in _RESUMABLE)
        over = over or (last and records[last].get("exit_code") == _WAITING and self._is_refused(run_id))
        # A run that is half deleted may have lost its report.
        deleted = layout.tombstone(uri) in self.tombstones
        root = "" if over or deleted else "a run that can be resumed"
        return StoreItem(**about, names=names_in(records) | more, root=root, broken=broken)

    def _is_refused(self, run_id: str) -> bool:
        """Whether the question that a run waits for was refused, or nobody answered in time."""
        try:
            question = latest_question(self.store, run_id)
            if question is None:
                return False
            return meaning(question, stored_answer(self.store, question), now()).standing == "refused"
        except CorruptError:  # what cannot be read keeps the run
            return False

    def _record(self, path: str) -> dict[str, Any]:
        """A record; {} if the file is not a record, is damaged or is gone."""
        try:
            return self.store.read_json(path)
        except (FileNotFoundError, CorruptError):
            return {}

    def _touched(self, uri: str, files: list[Stored]) -> float:
        return max([self.claims.get(uri, 0.0), *(file.written_s for file in files)])


def _by_folder(files: Iterable[Stored], depth: int) -> dict[str, list[Stored]]:
    """Files by the folder `depth` levels below the root that holds them; files higher up are left out."""
    folders: dict[str, list[Stored]] = defaultdict(list)
    for file in files:
        parts = file.path.split("/")
        if len(parts) > depth:
            folders["/".join(parts[:depth])].append(file)
    return folders


def _bytes(files: Iterable[Stored]) -> int:
    return sum(file.bytes for file in files)


def _generation(path: str) -> int:
    number = layout.split_generation(path.split("/")[2])
    return -1 if number is None else number


def _texts(value: Any) -> Iterator[str]:
    waiting: list[Any] = [value]
    take: dict[type, Callable[[Any], None]] = {
        dict: lambda one: waiting.extend([*one.keys(), *one.values()]),
        list: lambda one: waiting.extend(one),
    }
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif type(one) in take:
            take[type(one)](one)
