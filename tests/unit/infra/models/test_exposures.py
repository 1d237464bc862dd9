"""The exposure ledger: what counts, what is inherited, at once, cut off, damaged, newer, and never collected."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.records import ExposureEntry
from infra.garbage import Limits, collect, take_census
from infra.models.exposures import (
    Exposure,
    expose,
    find_exposure,
    next_statement,
    refuse_lost,
    spent,
    was_better,
)
from infra.records.evaluations import TestRows
from infra.store import Store, layout, open_store
from tests.support.damage import overwrite

POOL = np.random.default_rng(3).integers(0, 2**64, 5000, dtype=np.uint64)
RACERS = 8


def rows(start: int, stop: int) -> TestRows:
    return TestRows.of(POOL[start:stop])


def compare(
    store: Store, of: TestRows, candidate: str, *, better: bool = False, candidates: int = 1, question: str = "question"
) -> Exposure:
    made = expose(store, of, candidate, "champion", question, candidates)
    if better:
        was_better(store, made)
    return made


def test_each_comparison_counts_once(any_store: Store) -> None:
    store, a = any_store, rows(0, 1000)
    before = store.stored()
    assert spent(store, a).before == 0
    assert find_exposure(store, a, "one", "champion", "question") is None
    assert store.stored() == before, "nothing is written by a look"
    assert [compare(store, rows(0, 0), name).before for name in ("one", "two")] == [0, 1], "a set without rows, too"
    first = compare(store, a, "one")
    second = compare(store, a, "two", better=True)
    third = compare(store, a, "three", candidates=20)
    fourth = compare(store, a, "four")
    found = [(one.before, one.promoted) for one in (first, second, third, fourth)]
    assert found == [(0, 0), (1, 0), (2 + 19, 1), (3 + 19, 1)]
    assert compare(store, a, "two") == second  # a retry spends nothing, and finds what was counted
    assert expose(store, a, "two", "champion", "another question").before == 4 + 19
    assert expose(store, a, "two", "another champion", "question").before == 5 + 19
    assert spent(store, a).before == 6 + 19
    assert find_exposure(store, a, "one", "champion", "question") == first
    assert find_exposure(store, a, "five", "champion", "question") is None
    was_better(store, second)  # again
    assert [one.promoted for one in spent(store, a).sets] == [1]


def test_rows_inherit_by_their_share(any_store: Store) -> None:
    store = any_store
    for name in ("one", "two"):
        compare(store, rows(0, 1000), name, better=name == "two")
    assert spent(store, rows(200, 700)).before == 2  # a subset, in full
    assert (spent(store, rows(500, 1500)).before, spent(store, rows(500, 1500)).promoted) == (2, 1)  # half of them
    quarter = spent(store, rows(750, 1750))
    assert (quarter.before, quarter.promoted) == (1, 0.5)
    compare(store, rows(1000, 1500), "three")
    assert spent(store, rows(900, 1900)).before == pytest.approx(0.2 * 2 + 1)  # a tenth of it, and a half
    assert spent(store, rows(2000, 3000)).before == 0
    assert compare(store, rows(1, 1000), "four").before == 2  # one row dropped
    sets = spent(store, rows(0, 1000)).sets
    assert [(one.rows_id, one.share, one.comparisons) for one in sets] == [
        (rows(0, 1000).id, 1.0, 2),
        (rows(1, 1000).id, 0.999, 1),
    ]


def test_a_comparison_on_several_sets_counts_once_for_rows_that_they_share(store: Store) -> None:
    whole, part = rows(0, 1000), rows(0, 50)
    for night in ("one", "two", "three"):
        assert [compare(store, of, night, better=night == "two").before for of in (whole, part)] == [
            ("one", "two", "three").index(night)
        ] * 2
    assert (spent(store, whole).before, spent(store, whole).promoted) == (3, 1)
    # The same part among other rows each night has decided all of it.
    assert spent(store, part).before == 3
    assert spent(store, rows(0, 50)).before == 3
    # The same two models on other rows are another question.
    assert compare(store, rows(1, 1000), "one", question="without a row").before == 3


def _racer(number: int, uri: str, barrier: Any, answers: Any) -> None:
    barrier.wait(300)
    store = open_store(uri, {})
    same = [compare(store, rows(0, 100), f"{turn}-{number // 2}").before for turn in range(5)]
    barrier.wait(300)
    mine = TestRows.of(np.concatenate([POOL[1000:1500], POOL[2000 + number * 100 :][:100]]))
    answers.put((number, same, compare(store, mine, "one", question=f"of {number}").before))


def test_eight_at_once_do_not_miss_each_other(tmp_path: Path) -> None:
    """On the same rows the numbers are one order; of two sets that overlap at least one counts the other."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(RACERS), context.Queue()
    uri = str(tmp_path / "store")
    open_store(uri)
    processes = [context.Process(target=_racer, args=(n, uri, barrier, answers), daemon=True) for n in range(RACERS)]
    for process in processes:
        process.start()
    found = sorted(answers.get(timeout=500) for _ in processes)
    for process in processes:
        process.join()
    same = {(turn, number // 2): before for number, one, _ in found for turn, before in enumerate(one)}
    assert all(one == found[number ^ 1][1] for number, one, _ in found)  # two that ask the same get one entry
    assert sorted(same.values()) == list(range(5 * RACERS // 2))
    pairs = RACERS * (RACERS - 1) / 2
    assert sum(before for _, _, before in found) >= pairs * 5 / 6 - 1e-9


def test_an_entry_that_was_cut_off_is_completed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    create = Store.create_once

    def killed(self: Store, path: str, value: Any) -> bool:
        if path.endswith(".spent.json"):
            raise KeyboardInterrupt
        return create(self, path, value)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "create_once", killed)
        with pytest.raises(KeyboardInterrupt):
            compare(store, rows(0, 100), "one")
    assert find_exposure(store, rows(0, 100), "one", "champion", "question") is None
    assert compare(store, rows(0, 100), "two").before == 1  # the refused or unfinished one counts
    assert compare(store, rows(0, 100), "one").before == 0
    assert len(spent(store, rows(0, 100)).sets) == 1


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "0.json was changed after it was written": ("0.json", lambda data: data.replace(b"one", b"two")),
    "0.json is not JSON": ("0.json", lambda data: data[:20]),
    "0.json is missing": ("0.json", lambda data: b""),
    "0.spent.json was changed": ("0.spent.json", lambda data: data.replace(b"0.0", b"9.0", 1)),
    "rows is not what was written": ("rows", lambda data: data[:-8]),
    "rows is not what was written.": ("rows", lambda data: data[:-3]),
    "rows is missing": ("rows", lambda data: b""),
    "schema 9, newer than": (
        "0.json",
        lambda data: data.split(b',"digest"')[0].replace(b'"schema_version":2', b'"schema_version":9') + b"}",
    ),
}


@pytest.mark.parametrize("sentence", DAMAGE)
def test_damage_is_told_in_a_sentence(store: Store, sentence: str) -> None:
    compare(store, rows(0, 100), "one")
    file, damage = DAMAGE[sentence]
    path = Path(store.uri, layout.exposures(rows(0, 100).id), file)
    overwrite(path, damage(path.read_bytes()))
    if sentence.endswith("missing"):
        path.unlink()
    with pytest.raises(UsageError if "newer" in sentence else CorruptError, match=sentence):
        # Other rows that share some, or the entry itself.
        (spent(store, rows(50, 100)), compare(store, rows(0, 100), "one"))


def test_the_ledger_is_never_collected(store: Store) -> None:
    compare(store, rows(0, 100), "one", better=True)
    before = [file.path for file in store.stored("exposures")]
    assert len(before) == 4
    assert take_census(store) == []
    done = collect(store, by="a test", limits=Limits(keep_s=0, grace_s=0))
    assert (done.deleted, done.leftovers) == ([], [])
    assert [file.path for file in store.stored("exposures")] == before


def test_a_ledger_of_this_version_stays_readable(repository: Path, store: Store) -> None:
    shutil.copytree(repository / "tests/golden/exposures-v1", Path(store.uri, "exposures"))
    of = TestRows.of(np.arange(1, 13, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    assert spent(store, of).before == 5
    assert spent(store, of).promoted == 1
    second = find_exposure(store, of, "c2", "h1", "q")
    assert second == Exposure(layout.exposure(of.id, 1), 4, 1)


# What a person may do to a set of rows between two nights.
CHANGES = st.lists(
    st.tuples(st.sampled_from(["drop", "add", "reorder", "repeat", "window"]), st.integers(0, 400)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=CHANGES, asked=st.integers(1, 3))
def test_no_change_of_a_set_takes_back_what_its_rows_have_spent(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]], asked: int
) -> None:
    store = open_store(str(tmp_path_factory.mktemp("ledger") / "store"))
    held, fresh, counted = list(range(500)), 500, []
    first, seen = TestRows.of(POOL[:500]), 0.0
    for night, (change, size) in enumerate(changes):
        for n in range(asked):
            compare(store, TestRows.of(POOL[held]), f"{night}-{n}", better=n == 0)
        counted.append(set(held))
        now = spent(store, first).before
        assert now >= seen - 1e-9, "what is spent never falls"
        seen = now
        before = spent(store, TestRows.of(POOL[held]))
        if change in ("drop", "window"):
            held = held[min(size, len(held) - 1) :]
        if change in ("add", "window"):
            held, fresh = [*held, *range(fresh, fresh + size)], fresh + size
        if change == "reorder":
            held = held[::-1]
        if change == "repeat":
            held = [*held, *held[:size]]
        after = spent(store, TestRows.of(POOL[held]))
        if change == "reorder":
            assert after == before
        whole = sum(asked for earlier in counted if set(held) <= earlier)
        assert after.before >= whole - 1e-9
        assert after.promoted >= whole / asked - 1e-9
        shared = len(set(held) & counted[-1]) / len(set(held))
        assert after.before >= asked * shared - 1e-9


def receipt(store: Store, number: int, before: Ref | None = None) -> Ref:
    """A receipt with what it states of the ledger."""
    stated = next_statement(store, before)
    return store.writer(f"aliases/m/a/history/{number}").seal("receipt", {"number": number}, {"exposures": stated})


def entry_path(number: int, what: str = "json") -> str:
    return layout.exposure(rows(0, 1000).id, number, what)


def test_each_entry_holds_the_seal_of_the_one_before_it(store: Store) -> None:
    for name in ("one", "two", "three"):
        compare(store, rows(0, 1000), name)
    entries = [store.read_as(entry_path(n), ExposureEntry.from_json) for n in range(3)]
    assert [entry.previous for entry in entries] == ["", entries[0].seal, entries[1].seal]
    changed = entries[0].model_copy(update={"candidate": "another"})
    store.forget(entry_path(0))
    store.create_json(entry_path(0), changed.to_json())
    with pytest.raises(CorruptError, match=r"1\.json does not follow the comparison before it"):
        spent(store, rows(0, 1000))


def lose_last(store: Store) -> None:
    for what in ("json", "spent.json"):
        store.forget(entry_path(2, what))


def replace_last(store: Store) -> None:
    lose_last(store)
    compare(store, rows(0, 1000), "other")


LOSSES: dict[str, Callable[[Store], object]] = {
    "the last entry": lose_last,
    "all": lambda store: shutil.rmtree(Path(store.uri) / layout.exposures()),
    "a mark": lambda store: store.forget(entry_path(1, "better")),
    "the last, and another in its place": replace_last,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_a_receipt_states_cannot_be_lost(loss: str, store: Store) -> None:
    for name in ("one", "two", "three"):
        compare(store, rows(0, 1000), name, better=name == "two")
    newest = receipt(store, 0)
    refuse_lost(store, newest)
    LOSSES[loss](store)
    with pytest.raises(CorruptError, match="exposures/"):
        refuse_lost(store, newest)
    later = receipt(store, 1, newest)
    with pytest.raises(CorruptError, match="exposures/"):
        refuse_lost(store, later)
    assert store.manifest(later).provenance == store.manifest(newest).provenance


def test_a_ledger_of_an_earlier_version_is_chained_from_its_next_entry(store: Store) -> None:
    a = rows(0, 1000)
    compare(store, a, "one")
    compare(store, a, "two")
    for n in range(2):
        entry = store.read_as(entry_path(n), ExposureEntry.from_json)
        store.forget(entry_path(n))
        store.create_json(entry_path(n), entry.model_copy(update={"previous": None}).to_json())
    refuse_lost(store, None)
    compare(store, a, "three")
    so_far = spent(store, a)
    assert (so_far.before, so_far.unchained) == (3, 2)
    entry = store.read_as(entry_path(2), ExposureEntry.from_json)
    lose_last(store)
    compare(store, a, "four")
    store.create_json(entry_path(3), entry.model_copy(update={"previous": None}).to_json())
    with pytest.raises(CorruptError, match=r"3\.json does not follow"):
        spent(store, a)


def test_what_was_counted_cannot_be_lowered_later(any_store: Store) -> None:
    store, a = any_store, rows(0, 100)
    for name in ("one", "two", "three"):
        last = compare(store, a, name, candidates=5)
    assert last.before == 14
    path = last.path.replace(".json", ".spent.json")
    store._backend.delete(path)
    store.create_json(path, {"schema_version": 1, "before": 0.0, "promoted": 0.0})
    for again in (expose, find_exposure):
        with pytest.raises(CorruptError, match="says 0, but these rows have decided 14 comparisons before"):
            again(store, a, "three", "champion", "question")
    assert find_exposure(store, a, "two", "champion", "question") is not None
