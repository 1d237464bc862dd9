"""Garbage collection: the census of a store, what stays and what goes, and the deletion of what nothing reaches.

The census has every part that stays or goes as a whole, how old it is, and what it names. An item stays while it is
young, while it is a root, or while an item that stays names it, by its URI or by its id, anywhere in its content. So a
field that a later version adds keeps what it names without a change here.

A run's records are created once, so what they name is written down in one more record when the run ends. The census
reads that one, and of the others only those that it does not cover, or that have another size.

Items are deleted one after the other, each checked again at the last moment. A collection may be interrupted anywhere
and repeated: a tombstone is written before each deletion, and nothing is deleted before the items that name it.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from data_contracts.approvals import meaning
from data_contracts.canonical import digest
from data_contracts.errors import ApprovalPending, CorruptError, Interrupted, OverBudget, UsageError
from data_contracts.executions import RunNames
from data_contracts.foreign_files import parse_json
from infra.approvals import latest_question, stored_answer
from infra.audit import now
from infra.code_bundle import texts_in
from infra.models import registry
from infra.quantities import duration
from infra.store import Store, layout
from infra.store.backend import MAX_CLOCK_DIFFERENCE_S, Leftover, Stored
from infra.store.lease import PATIENCE_S, LeaseKeeper
from infra.store.store import day_end_s, read_several

__all__ = ["Collected", "Deletion", "Limits", "StoreItem", "collect", "items_to_delete", "note_names"]


Kind = Literal[
    "model", "receipt", "alias", "run", "trigger", "training", "checkpoint", "log",
    "evaluation", "dataset", "contract", "code", "import", "recipe", "delivery", "canary",
]  # fmt: skip
# Only a sealed directory of these kinds is named by another item's record.
_NAMED_WHEN_SEALED = ("evaluation", "dataset", "contract", "code", "import", "recipe")
DAY_S = 86_400.0
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


@dataclass(frozen=True)
class Limits:
    """How old an item must be before it may go.

    Attributes:
        keep_s: for finished results and records of runs, counted from when they were made or last claimed for use.
        grace_s: for unfinished and all other items: no work in progress is this old.
    """

    keep_s: float = 31 * DAY_S
    grace_s: float = DAY_S


@dataclass(frozen=True)
class StoreItem:
    """A part of the store that stays or goes as a whole.

    Attributes:
        id: the id in its manifest; "" without a manifest.
        touched_s: when it was last written or claimed for use, as Unix time.
        names: URIs and ids that it names.
        root: why it stays whatever its age, or "".
        whole: whether it is finished: sealed, or a record that is complete by itself.
        broken: what is wrong with it, if it is unknown what it names; else "".
    """

    uri: str
    kind: Kind
    bytes: int
    touched_s: float
    id: str = ""
    names: frozenset[str] = frozenset()
    root: str = ""
    whole: bool = True
    broken: str = ""


@dataclass(frozen=True)
class Deletion:
    """An item that goes, and the reason as a clause for a person."""

    item: StoreItem
    why: str


def items_to_delete(items: Iterable[StoreItem], now_s: float, limits: Limits) -> list[Deletion]:
    """The items that may go, in an order in which each item goes after everything that names it.

    Raises CorruptError if an item that stays cannot be read: it is then unknown what else must stay.
    """
    census = {item.uri: item for item in items}
    roots = [one for one in census.values() if one.root or now_s - one.touched_s < limit_s(one, limits)]
    stays = reachable(roots, census)
    named = {name for uri in stays for name in census[uri].names}
    for uri in sorted(stays):
        broken = census[uri].broken
        if uri in named and not census[uri].whole and census[uri].kind in _NAMED_WHEN_SEALED:
            broken = f"{uri}/manifest.json is missing."
        if broken:
            raise CorruptError(
                f"{broken} Nothing was deleted, because it is unknown what this file refers to.",
                remedy="Restore the file from a copy, or remove it if it is not needed.",
            )
    goes = {uri: item for uri, item in census.items() if uri not in stays}
    return [Deletion(item, _why(item, now_s)) for item in _namers_first(goes)]


def reachable(roots: Iterable[StoreItem], census: Mapping[str, StoreItem]) -> set[str]:
    """The URIs of `roots` and of all that they name, directly or through others."""
    by_id: dict[str, list[str]] = {}
    for item in census.values():
        by_id.setdefault(item.id, []).append(item.uri)
    seen: set[str] = set()
    waiting = [item.uri for item in roots]
    while waiting:
        uri = waiting.pop()
        if uri not in seen:
            seen.add(uri)
            waiting += _named(census[uri], census, by_id)
    return seen


def _named(item: StoreItem, census: Mapping[str, StoreItem], by_id: Mapping[str, list[str]]) -> Iterator[str]:
    for name in item.names:
        if name:
            yield from by_id.get(name, ())
        # A checkpoint, or a mark beside it, names the training that it is part of.
        while name:
            if name in census:
                yield name
            name = name.rpartition("/")[0]


def limit_s(item: StoreItem, limits: Limits) -> float:
    """How old this item must be before it may go."""
    lasts = item.whole and item.kind not in ("checkpoint", "trigger")
    return max(limits.keep_s, limits.grace_s) if lasts else limits.grace_s


def _why(item: StoreItem, now_s: float) -> str:
    days = f"{(now_s - item.touched_s) / DAY_S:.0f} days"
    if item.kind == "run":
        return f"ended {days} ago"
    if item.kind == "trigger":
        return "its run is deleted"
    if item.kind == "log":
        return f"of a generation that ended, {days} old"
    if item.kind == "checkpoint":
        return f"never committed, or its training is deleted; {days} old"
    if not item.whole:
        return f"never finished, untouched for {days}"
    return f"nothing names it, not used for {days}"


def _namers_first(goes: Mapping[str, StoreItem]) -> list[StoreItem]:
    by_id: dict[str, list[str]] = {}
    for item in goes.values():
        by_id.setdefault(item.id, []).append(item.uri)
    done: set[str] = set()
    ordered: list[StoreItem] = []
    for start in sorted(goes):
        waiting = [(start, False)]
        while waiting:
            uri, is_left = waiting.pop()
            if is_left:
                ordered.append(goes[uri])
            elif uri not in done:
                done.add(uri)
                waiting.append((uri, True))
                waiting += [(name, False) for name in sorted(set(_named(goes[uri], goes, by_id)))]
    return ordered[::-1]


def take_census(store: Store) -> list[StoreItem]:
    """Everything that `infra.garbage` decides about.

    Raises: UsageError for a newer schema. Items that cannot be read are listed as broken.
    """
    return _Census(store).items()


def names_in(value: Any) -> frozenset[str]:
    """All texts in a JSON value that can be a URI below the store's root, or an id."""
    return frozenset(text for text in texts_in(value) if _NAME.fullmatch(text))


def note_names(store: Store, run_id: str, token: int, key: str | None) -> None:
    """Write down what the records of a run name, so that a census need not read them.

    Args:
        token: the fencing token of the process that has ended the run.
        key: the idempotency key that named the run; None if this process does not know it.

    Raises: CorruptError for a damaged record, FileNotFoundError for one that is deleted meanwhile.
    """
    sizes = {file.path: file.bytes for file in store.stored(layout.run(run_id))}
    paths = _records(sizes)
    names = names_in(read_several(store, store.read_json, paths))
    covers = {path: sizes[path] for path in paths}
    if key is not None:
        covers[layout.trigger(key)] = len(store.read(layout.trigger(key)))
    store.create_once(layout.run_names(run_id, token), RunNames(covers=covers, names=sorted(names)).to_json())


def _records(present: Collection[str]) -> list[str]:
    """The records among the files of a run, without those that another one repeats."""
    return [path for path in sorted(present) if path.endswith(".json") and not layout.is_superseded(path, present)]


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
        paths = [file.path for file in self.files["runs"] if layout.is_run_names(file.path)]
        read = partial(self._record, parse=lambda value: RunNames.from_json(value).to_json())
        self.noted = dict(zip(paths, read_several(store, read, paths), strict=True))
        # Records whose names are written down, with the URI of the run that says so, and the size that they had.
        self.covered = {
            covered: ("/".join(path.split("/")[:2]), size)
            for path, noted in self.noted.items()
            for covered, size in noted.get("covers", {}).items()
        }

    def items(self) -> list[StoreItem]:
        return [*self._sealed(), *self._registry(), *self._trainings(), *self._runs()]

    def _sealed(self) -> Iterator[StoreItem]:
        for area, kind in SEALED.items():
            yield from self._directories(kind, _by_folder(self.files[area], 2))

    def _registry(self) -> Iterator[StoreItem]:
        yield from self._directories("model", _by_folder(self.files["models"], 3), root="a model version")
        yield from self._directories("receipt", _by_folder(self.files["aliases"], 5), root="an alias' history")
        for model, alias, _ in registry.aliases(self.store, ended=True):
            held = registry.read_alias(self.store, model, alias)
            names = names_in(held[0].value if held else None)
            yield StoreItem(layout.alias(model, alias), "alias", 0, 0.0, names=names, root="an alias")
        # What earlier versions tallied for each canary; how it ended is in the receipts.
        for uri, files in _by_folder(self.files["canaries"], 3).items():
            yield StoreItem(uri, "canary", _bytes(files), self._touched(uri, files))

    def _directories(self, kind: Kind, folders: Mapping[str, list[Stored]], root: str = "") -> list[StoreItem]:
        return read_several(self.store, lambda one: self._directory(one[0], kind, one[1], root), list(folders.items()))

    def _directory(self, uri: str, kind: Kind, files: list[Stored], root: str = "") -> StoreItem:
        """A directory that should be sealed, with what its manifest and its `_REFERRING` files name."""
        present = {file.path for file in files}
        item = partial(StoreItem, uri, kind, _bytes(files), self._touched(uri, files))
        if layout.manifest(uri) not in present:
            return item(root=root, whole=False)
        try:
            manifest = self.store.manifest(uri)
            referring = [entry.path for entry in manifest.files if entry.path in _REFERRING]
            files_read = [self.store.read_sealed_as(manifest, path, lambda value: value) for path in referring]
            names = names_in([manifest.content, manifest.provenance, *files_read])
        except FileNotFoundError:  # deleted meanwhile
            return item(root=root, whole=False)
        except CorruptError as error:
            identity = self._salvaged_id(uri)
            # Without an id it is unknown whether anything names it by its id.
            return item(root=root if identity else root or "it cannot be read", id=identity, broken=error.message)
        return item(root=root, id=manifest.id, names=names)

    def _salvaged_id(self, uri: str) -> str:
        """The id of a directory with a broken manifest, if the damage is elsewhere in the manifest; else ""."""
        try:
            manifest = parse_json(self.store.read(layout.manifest(uri)))
            return str(manifest["id"]) if digest(manifest["content"]) == manifest["id"] else ""
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
            return ""

    def _trainings(self) -> Iterator[StoreItem]:
        trainings = list(_by_folder(self.files["trainings"], 2).items())
        for items, runs in read_several(self.store, lambda one: self._training(*one), trainings):
            for run in runs:
                self.begun[run].add(items[0].uri)
            yield from items

    def _training(self, uri: str, files: list[Stored]) -> tuple[list[StoreItem], set[str]]:
        """A training and its parts, and the runs that began it."""
        present = {file.path for file in files}
        # Not its lease: an interrupted collection took it, and whoever deletes the training takes it again.
        touched_s = self._touched(uri, [file for file in files if file.path != layout.lease(uri)])
        item = partial(StoreItem, uri, "training", _bytes(files), touched_s)
        launches = [path for path in present if path.startswith(f"{uri}/g") and path.endswith("/launch.json")]
        records = [path for path in (layout.result(uri),) if path in present] + launches
        try:
            latest = self.store.pointer(layout.latest(uri)).read()
            value = {"checkpoints": []} if latest is None else latest.value
            committed = [*value["checkpoints"], *(one["checkpoint"] for one in value.get("aside", []))]
            contents = [self.store.read_json(path) for path in records]
        except (CorruptError, KeyError, TypeError) as error:
            why = error.message if isinstance(error, CorruptError) else f"{layout.latest(uri)} is not a ledger"
            return [item(broken=f"{uri}: its records cannot be read: {why.rstrip('.')}.")], set()
        except FileNotFoundError:  # being deleted
            return [item(whole=False)], set()
        done = layout.result(uri) in present
        runs = {f"runs/{(one.get('provenance') or {}).get('run_id')}" for one in contents}
        names = names_in([committed, contents])
        items = [item(names=names, whole=done or bool(committed))]
        newest = max((_generation(path) for path in launches), default=-1)
        for folder, inside in _by_folder(files, 4).items():
            name = folder.rpartition("/")[2]
            if folder.startswith(f"{layout.checkpoints(uri)}/"):
                parts = layout.split_checkpoint(name)
                generation = newest if parts is None else parts[1]
                # The newest generation of an unfinished training may still commit its uncommitted checkpoints.
                if folder in names or done or generation < newest:
                    checkpoint = self._directory(folder, "checkpoint", inside)
                    items.append(replace(checkpoint, names=checkpoint.names | {uri}))
            elif name.startswith("node-") and (done or _generation(folder) < newest):
                items.append(StoreItem(folder, "log", _bytes(inside), self._touched(folder, inside)))
        return items, runs

    def _runs(self) -> Iterator[StoreItem]:
        """Runs, their triggers, what they asked about aliases and what mirrors were told of them."""
        triggers: dict[str, set[str]] = defaultdict(set)
        for item in read_several(self.store, self._trigger, [*self.files["triggers"], *self.files["questions"]]):
            triggers[next(iter(item.names))].add(item.uri)
            yield item
        for uri, files in _by_folder(self.files["mirrored"], 3).items():
            run = f"runs/{uri.split('/')[1]}"
            triggers[run].add(uri)
            yield StoreItem(uri, "delivery", _bytes(files), self._touched(uri, files))
        runs = [
            (uri, files, frozenset(self.begun[uri] | triggers[uri]))
            for uri, files in _by_folder(self.files["runs"], 2).items()
        ]
        yield from read_several(self.store, lambda one: self._run(*one), runs)

    def _trigger(self, file: Stored) -> StoreItem:
        run, size = self.covered.get(file.path, ("", -1))
        if size == file.bytes:
            return StoreItem(file.path, "trigger", size, file.written_s, names=frozenset({run}))
        trigger = self._record(file.path)
        names = frozenset({f"runs/{trigger.get('run_id', '')}"})
        broken = f"{file.path} cannot be read." if not trigger and self.store.exists(file.path) else ""
        root = "it cannot be read" if broken else ""
        return StoreItem(file.path, "trigger", file.bytes, file.written_s, names=names, root=root, broken=broken)

    def _run(self, uri: str, files: list[Stored], more: frozenset[str]) -> StoreItem:
        run_id = uri.partition("/")[2]
        present = {file.path: file.bytes for file in files}
        item = partial(StoreItem, uri, "run", _bytes(files), self._touched(uri, files))
        if layout.resolved(run_id) not in present:
            return item(names=more, whole=False)
        paths = _records(present)
        attempts = [path for path in paths if path.startswith(f"{layout.run_attempts(run_id)}/")]
        last = max(attempts, key=lambda path: (len(path), path), default="")
        read = [path for path in paths if path == last or self.covered.get(path) != (uri, present[path])]
        records = {path: self.noted[path] if path in self.noted else self._record(path) for path in read}
        broken = next((f"{path} cannot be read." for path, value in records.items() if not value), "")
        over = layout.report(run_id) in present or (last and records[last].get("exit_code") not in _RESUMABLE)
        over = over or (last and records[last].get("exit_code") == _WAITING and self._is_refused(run_id))
        # A run that is half deleted may have lost its report.
        deleted = layout.tombstone(uri) in self.tombstones
        root = "" if over or deleted else "a run that can be resumed"
        return item(names=names_in(records) | more, root=root, broken=broken)

    def _is_refused(self, run_id: str) -> bool:
        """Whether the question that a run waits for was refused, or nobody answered in time."""
        try:
            question = latest_question(self.store, run_id)
            if question is None:
                return False
            return meaning(question, stored_answer(self.store, question), now()).standing == "refused"
        except CorruptError:  # what cannot be read keeps the run
            return False

    def _record(self, path: str, parse: Callable[[Any], Any] = lambda value: value) -> dict[str, Any]:
        """A record; {} if the file is not a record, is damaged or is gone."""
        try:
            return self.store.read_as(path, parse)
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


@dataclass
class Collected:
    """What a collection deleted, or would delete in a dry run.

    Attributes:
        deleted: the deleted items, in order.
        leftovers: unfinished drafts and uploads.
        spared: items that were claimed for use during the collection and therefore stay.
        kept: number of items that stay.
    """

    deleted: list[Deletion] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    kept: int = 0

    @property
    def bytes(self) -> int:
        """The number of bytes that the collection frees."""
        return sum(one.item.bytes for one in self.deleted) + sum(one.bytes for one in self.leftovers)

    def to_json(self) -> dict[str, object]:
        """The result as JSON-able objects."""
        items = [
            {"uri": one.item.uri, "kind": one.item.kind, "bytes": one.item.bytes, "why": one.why}
            for one in self.deleted
        ]
        left = [asdict(one) for one in self.leftovers]
        return {"things": items, "leftovers": left, "spared": self.spared, "kept": self.kept, "bytes": self.bytes}


def collect(
    store: Store,
    *,
    by: str,
    limits: Limits | None = None,
    dry_run: bool = False,
    on_gone: Callable[[Deletion], None] = lambda one: None,
    patience_s: float = PATIENCE_S,
) -> Collected:
    """Delete what nothing reaches.

    Args:
        by: who asked, for the tombstones.
        on_gone: called after each deletion.
        patience_s: how long a training's lease must stand still before the training counts as unused.

    Ages are measured by the clock that dates the store's files.

    Raises: CorruptError if something that stays cannot be read, or anything in the store is a link; UsageError if this
    machine's clock and the store's differ. Nothing is deleted then.
    """
    limits = limits or Limits()
    clock = _clock(store, dry_run)
    now = clock()
    census = {item.uri: item for item in take_census(store)}
    deletions = _outermost(items_to_delete(census.values(), now, limits))
    left = [one for one in store.leftovers() if now - one.written_s >= limits.grace_s]
    done = Collected(leftovers=left, kept=len(census) - len(deletions))
    if dry_run:
        done.deleted = deletions
        return done
    spared: set[str] = set()
    for one in deletions:
        uri = one.item.uri
        if uri not in spared and _delete(store, one, by, limits, patience_s, clock):
            done.deleted.append(one)
            on_gone(one)
        else:
            # Whoever claimed it also needs what it names, all of which comes later in the list.
            spared |= reachable([one.item], census)
            done.spared.append(uri)
    for leftover in left:
        store.drop(leftover)
    for claim in store.stored("uses"):
        if day_end_s(claim.path.rpartition("/")[2]) < now - max(limits.keep_s, limits.grace_s):
            store.forget(claim.path)
    return done


def _outermost(deletions: list[Deletion]) -> list[Deletion]:
    """The list without parts of a training that is deleted as a whole."""
    whole = {one.item.uri for one in deletions if one.item.kind == "training"}
    return [one for one in deletions if one.item.kind == "training" or _training(one.item) not in whole]


def _training(item: StoreItem) -> str:
    return "/".join(item.uri.split("/")[:2]) if item.uri.startswith("trainings/") else ""


def _clock(store: Store, dry_run: bool) -> Callable[[], float]:
    """A clock of the store's time; UsageError if this machine's clock, which dates claims and leases, differs."""
    asked = time.monotonic()
    try:
        now = store.now_s()
    except UsageError:
        if dry_run:  # this user may only read
            return time.time
        raise
    ahead_s = time.time() - now
    if abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S:
        difference = f"{duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'}"
        raise UsageError(
            f"This machine's clock is {difference} the clock that dates the files of {store.uri}; nothing was deleted.",
            remedy="Set the wrong clock (with NTP), then run gc again.",
        )
    return lambda: now + time.monotonic() - asked


def _delete(
    store: Store, deletion: Deletion, by: str, limits: Limits, patience_s: float, clock: Callable[[], float]
) -> bool:
    item = deletion.item

    def in_use() -> bool:
        return clock() - store.last_claim_s(item.uri) < limit_s(item, limits)

    def delete() -> bool:
        return store.remove(item.uri, why=f"gc: {deletion.why}", by=by, unless=in_use)

    if item.kind != "training":
        return delete()
    # A process that would train it waits for the lease, and finds the tombstone when it gets the lease.
    keeper = LeaseKeeper(store, layout.lease(item.uri), f"gc/{uuid.uuid4().hex[:12]}", patience_s=patience_s)
    try:
        keeper.start()
        return keeper.token(1.5 * patience_s + 1) is not None and delete()
    finally:
        keeper.stop()
