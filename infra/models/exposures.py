"""The exposure ledger: which comparisons a set of test rows has decided, so that the next one asks for more evidence.

    exposures/<rows>/rows            the digests by which the rows are known
                     <n>.json        comparison n: its two checkpoints and what was asked
                     <n>.spent.json  what these rows had decided before it
                     <n>.better      mark: it found the candidate better

An entry is keyed by candidate, champion and question, so that a comparison made again spends nothing, and one that
looked at several sets, such as all rows and a slice of them, counts once for rows that they share. Rows are known by
what is in them, not by a name, a place or an order. A set of rows that shares some with another inherits what that one
has spent: all of it from half of the rows on, and twice the share below that. Each file is created once and nothing is
ever deleted. Each entry holds the seal of the one before it, and each receipt of an alias states how many entries there
are, with the last seal: an entry that is lost later is noticed.

What was spent is counted after the entry is there. So of two comparisons at once, on the same rows the one with the
higher number counts the other; on rows that overlap at least one counts the other, and perhaps both do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Ref
from data_contracts.records import ExposureEntry, LedgerState, SpentBefore
from infra.records.evaluations import TestRows
from infra.records.receipts import pointed_at
from infra.store import Store, layout
from infra.store.records import corrupt, parsed
from infra.store.store import read_several

_STATES = TypeAdapter(dict[str, LedgerState])


@dataclass(frozen=True)
class Exposure:
    """One comparison and what its rows had decided before it.

    Attributes:
        path: of its entry in the store.
        before, promoted: comparisons before this one, and those of them that found the candidate better; one on other
            rows that shares some with these counts in part.
    """

    path: str
    before: float
    promoted: float


@dataclass(frozen=True)
class ExposedSet:
    """A set of rows in the ledger that has some of the rows in question.

    Attributes:
        share: of the rows in question, those that it has, too.
        comparisons, promoted: its own, without those that it inherited.
    """

    rows_id: str
    share: float
    comparisons: int
    promoted: int

    @property
    def weight(self) -> float:
        """How much its comparisons count for the rows in question: half of the rows already give away the verdict."""
        return min(1.0, 2 * self.share)


@dataclass(frozen=True)
class Spent:
    """What a set of rows has decided so far; the next comparison on it begins with this.

    Attributes:
        sets: the same rows first, if they are in the ledger, then others that share some of them.
        unchained: of the comparisons on the same rows, those of earlier versions, which hold no seal of the one before.
    """

    before: float
    promoted: float
    sets: tuple[ExposedSet, ...]
    unchained: int = 0


def expose(store: Store, rows: TestRows, candidate: str, champion: str, question: str, candidates: int = 1) -> Exposure:
    """The entry of a comparison, made unless it is there; called before its verdict is computed.

    Args:
        candidate, champion: ids of checkpoints; question: the digest of what is asked.
        candidates: as in `ExposureEntry`; the first entry of a comparison keeps its number.

    Raises: CorruptError if the ledger is damaged; UsageError for an entry of a newer schema.
    """
    wanted = ExposureEntry(candidate=candidate, champion=champion, question=question, candidates=candidates)
    store.create_once(layout.exposed_rows(rows.id), rows.to_bytes())
    n, entry = _entry(store, rows.id, wanted)
    place = layout.exposure(rows.id, n, "spent.json")
    if not store.exists(place):
        counted = spent(store, rows, until=n, own=entry)
        before = SpentBefore(before=counted.before + entry.candidates - 1, promoted=counted.promoted)
        store.create_once(place, before.to_json())
    # What another process counted for the same entry holds for both.
    return _exposure(store, rows.id, n)


def find_exposure(store: Store, rows: TestRows, candidate: str, champion: str, question: str) -> Exposure | None:
    """The entry of a comparison that was made before; None if there is none or its making was cut off. Writes nothing.

    Raises as `expose`.
    """
    wanted = ExposureEntry(candidate=candidate, champion=champion, question=question)
    n = _number_of(wanted, _entries(store, rows.id))
    if n is None or not store.exists(layout.exposure(rows.id, n, "spent.json")):
        return None
    return _exposure(store, rows.id, n)


def was_better(store: Store, exposure: Exposure) -> None:
    """Record that the comparison found the candidate better; before anyone is told so."""
    parts = layout.split_exposure(exposure.path)
    assert parts is not None
    store.create_once(layout.exposure(*parts[:2], "better"), b"")


def refuse_lost(store: Store, newest: Ref | None) -> None:
    """CorruptError if the ledger lacks what the newest receipt of an alias states; its gates would ask for too little.

    Receipts of earlier versions state nothing.
    """
    stated = _stated(store, newest)
    folders = {folder.rows_id: folder for folder in _folders(store)} if stated else {}
    for rows_id, state in stated.items():
        folder, last = folders.get(rows_id, _Folder(rows_id)), state.entries - 1
        path = layout.exposure(rows_id, last)
        if last not in folder.entries:
            raise corrupt(path, f"is missing: a receipt states {state.entries} comparisons on these rows")
        if _read_entry(store, path).seal != state.seal:
            raise corrupt(path, "is not the comparison that a receipt states")
        if sum(n <= last for n in folder.better) < state.better:
            raise corrupt(path, f"and those before it have fewer than the {state.better} marks that a receipt states")


def next_statement(store: Store, newest: Ref | None) -> dict[str, object]:
    """What the receipt after `newest` states of the ledger; of a damaged ledger, what `newest` states."""
    try:
        refuse_lost(store, newest)
        folders = [folder for folder in _folders(store) if folder.numbers(store)]
        ends = _read_entries(
            store, [layout.exposure(folder.rows_id, len(folder.numbers(store)) - 1) for folder in folders]
        )
    except CorruptError:
        return {rows_id: state.to_json() for rows_id, state in _stated(store, newest).items()}
    return {
        folder.rows_id: LedgerState(
            entries=len(folder.numbers(store)), seal=end.seal, better=len(folder.better)
        ).to_json()
        for folder, end in zip(folders, ends, strict=True)
    }


def _stated(store: Store, newest: Ref | None) -> dict[str, LedgerState]:
    about = {} if newest is None else pointed_at(store.manifest, newest).provenance
    return parsed("" if newest is None else newest.uri, _STATES.validate_python, about.get("exposures", {}))


def _check_chain(rows_id: str, entries: Sequence[ExposureEntry]) -> None:
    """CorruptError if an entry does not hold the seal of the one before it. Those of earlier versions hold none."""
    for n, entry in enumerate(entries):
        before = entries[n - 1] if n else None
        is_earlier = entry.previous is None and (before is None or before.previous is None)
        if not is_earlier and entry.previous != ("" if before is None else before.seal):
            raise corrupt(
                layout.exposure(rows_id, n), "does not follow the comparison before it: one was changed or lost"
            )


def _exposure(store: Store, rows_id: str, n: int) -> Exposure:
    """Entry `n` with what was counted before it; CorruptError if that is less than the entries before it come to.

    No seal covers what was counted. Other rows may have added to it, and entries of earlier versions are not chained.
    """
    path = layout.exposure(rows_id, n, "spent.json")
    found, entries = store.read_as(path, SpentBefore.from_json), _entries(store, rows_id)[: n + 1]
    least = sum({entry.key: entry.candidates for entry in entries}.values()) - 1
    if entries[n].previous is not None and found.before < least:
        raise corrupt(path, f"says {found.before:g}, but these rows have decided {least:,} comparisons before")
    return Exposure(layout.exposure(rows_id, n), found.before, found.promoted)


def _entry(store: Store, rows_id: str, comparison: ExposureEntry) -> tuple[int, ExposureEntry]:
    """The number of the comparison's entry and the entry, which is made under the first free number."""
    entries = _entries(store, rows_id)
    n = _number_of(comparison, entries)
    if n is not None:
        return n, entries[n]
    n, last = len(entries), entries[-1] if entries else None
    while True:
        made = comparison.model_copy(update={"previous": "" if last is None else last.seal})
        if store.create_once(layout.exposure(rows_id, n), made.to_json()):
            return n, made
        last = _read_entry(store, layout.exposure(rows_id, n))  # another process took this number
        if last.same(comparison):
            return n, last
        n += 1


def _number_of(comparison: ExposureEntry, entries: Sequence[ExposureEntry]) -> int | None:
    return next((n for n, one in enumerate(entries) if one.same(comparison)), None)


@dataclass
class _Folder:
    """The names that a listing shows in a set's folder."""

    rows_id: str
    entries: set[int] = field(default_factory=set)
    better: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)

    def add(self, n: int, what: str) -> None:
        {"json": self.entries, "better": self.better}.get(what, self.beside).add(n)

    def numbers(self, store: Store) -> range:
        """The numbers of its entries; CorruptError if one is missing."""
        count = 1 + max(self.entries | self.better | self.beside, default=-1)
        for n in range(count):
            # A listing may show a file that was created meanwhile, and not one that was created just before.
            if n not in self.entries and not store.exists(layout.exposure(self.rows_id, n)):
                raise corrupt(layout.exposure(self.rows_id, n), "is missing")
        return range(count)


def _entries(store: Store, rows_id: str) -> list[ExposureEntry]:
    """The entries of a set, in order."""
    folders = _folders(store, rows_id)
    paths = [layout.exposure(rows_id, n) for folder in folders for n in folder.numbers(store)]
    entries = _read_entries(store, paths)
    _check_chain(rows_id, entries)
    return entries


def spent(store: Store, rows: TestRows, *, until: int | None = None, own: ExposureEntry | None = None) -> Spent:
    """What these rows have decided so far, on their own and by their shares in other sets. Writes nothing.

    Args:
        until: on the rows themselves, only what is numbered below this counts; None: all.
        own: an entry that does not count.

    Raises as `expose`.
    """
    shares = _shares(store, rows, folders := _folders(store))
    folders = [folder for folder in folders if shares[folder.rows_id]]
    ends = {rows.id: until} if until is not None else {}
    numbers = {folder.rows_id: folder.numbers(store)[: ends.get(folder.rows_id)] for folder in folders}
    wanted = [layout.exposure(rows_id, n) for rows_id, counted in numbers.items() for n in counted]
    entries = dict(zip(wanted, _read_entries(store, wanted), strict=True))
    sets, before, promoted, unchained = [], dict[str, float](), dict[str, float](), 0
    for folder in folders:
        counted = {n: entries[layout.exposure(folder.rows_id, n)] for n in numbers[folder.rows_id]}
        _check_chain(folder.rows_id, list(counted.values()))
        if folder.rows_id == rows.id:
            unchained = sum(entry.previous is None for entry in counted.values())
        comparisons = sum(entry.candidates for entry in counted.values())
        found = ExposedSet(
            folder.rows_id, shares[folder.rows_id], comparisons, sum(n in folder.better for n in counted)
        )
        sets.append(found)
        for n, entry in counted.items():
            if own is None or not entry.same(own):
                before[entry.key] = max(before.get(entry.key, 0.0), found.weight * entry.candidates)
                promoted[entry.key] = max(promoted.get(entry.key, 0.0), found.weight * (n in folder.better))
    sets.sort(key=lambda one: (one.rows_id != rows.id, -one.share, one.rows_id))
    return Spent(sum(before.values()), sum(promoted.values()), tuple(sets), unchained)


def _folders(store: Store, rows_id: str | None = None) -> list[_Folder]:
    """Every set that has decided something, or the one that is named."""
    found: dict[str, _Folder] = {}
    for file in store.stored(layout.exposures(rows_id)):
        if parts := layout.split_exposure(file.path):
            found.setdefault(parts[0], _Folder(parts[0])).add(*parts[1:])
    return list(found.values())


def _shares(store: Store, rows: TestRows, folders: Iterable[_Folder]) -> dict[str, float]:
    """The share of these rows that each set has; 1 for the rows themselves."""
    ids = [folder.rows_id for folder in folders if folder.rows_id != rows.id]
    others = read_several(store, lambda rows_id: rows.covered_by(_read_rows(store, rows_id)), ids)
    return {rows.id: 1.0, **dict(zip(ids, others, strict=True))}


def _read_rows(store: Store, rows_id: str) -> TestRows:
    """The rows of a set; CorruptError if they are not those that it is named after."""
    path = layout.exposed_rows(rows_id)
    try:
        found = TestRows.from_bytes(store.read(path))
    except FileNotFoundError as error:
        raise corrupt(path, "is missing") from error
    except ValueError as error:
        raise corrupt(path, "is not what was written") from error
    if found.id != rows_id:
        raise corrupt(path, "is not what was written")
    return found


def _read_entries(store: Store, paths: Sequence[str]) -> list[ExposureEntry]:
    return read_several(store, lambda path: _read_entry(store, path), paths)


def _read_entry(store: Store, path: str) -> ExposureEntry:
    return store.read_as(path, ExposureEntry.from_json)
