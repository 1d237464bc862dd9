"""What a run's records name is written down when the run ends, so that a census need not read them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError
from data_contracts.executions import RunNames
from infra.garbage import Limits, StoreItem, collect, names_in, note_names, take_census
from infra.store import Store, layout, open_store
from tests.support.counted import away
from tests.support.damage import overwrite
from tests.support.histories import OLD_S, YOUNG_S, History

AT_ONCE = Limits(keep_s=0, grace_s=0)


def items(store: Store) -> dict[str, StoreItem]:
    return {item.uri: item for item in take_census(store)}


def ended(store: Store, *, exit_code: int = 0, age_s: float = YOUNG_S) -> tuple[History, str, str]:
    """A run whose names are written down, with the dataset of its stage."""
    history = History(store)
    dataset = history.sealed("datasets", OLD_S)
    run = history.run(age_s, history.sealed("code", OLD_S), {"shard": dataset}, exit_code=exit_code)
    run_id = run.removeprefix("runs/")
    store.create_json(layout.usage(run_id, "e", "began"), {"where": dataset})
    store.create_json(layout.usage(run_id, "e", "ended"), {"where": dataset})
    note_names(store, run_id, 0, f"key-{run_id}")
    history.ageing()
    return history, run, dataset


def test_of_a_run_that_has_ended_one_record_is_read(store: Store) -> None:
    _, run, dataset = ended(store)
    apart, backend = away(store)
    noted = items(apart)
    # A listing of all files, one of aliases; a dataset, a bundle of code, and the names.
    assert backend.together + backend.alone == 2 + 3
    store.forget(layout.run_names(run.removeprefix("runs/"), 0))
    unnoted = items(store)
    assert {uri: one.names - noted[uri].names for uri, one in unnoted.items()} == dict.fromkeys(noted, frozenset())
    assert [(one.uri, one.root, one.broken, one.whole) for one in noted.values()] == [
        (one.uri, one.root, one.broken, one.whole) for one in unnoted.values()
    ]
    assert store.manifest(dataset).id in noted[run].names


def test_the_names_of_a_run_of_an_earlier_version_are_as_before_and_may_be_written_down(
    tmp_path: Path, repository: Path
) -> None:
    shutil.copytree(repository / "tests/golden/store-v1/store", tmp_path / "store")
    store = open_store(str(tmp_path / "store"), create=False)
    records = {
        run: [store.read_json(file.path) for file in store.stored(run) if file.path.endswith(".json")]
        for run in (layout.run(name) for name in store.list(layout.runs()))
    }
    assert len(records) == 4
    before = items(store)
    for run in records:
        note_names(store, run.removeprefix("runs/"), 0, None)
    after = items(store)
    for run, values in records.items():
        assert names_in(values) <= before[run].names <= after[run].names
        assert after[run].root == before[run].root


@pytest.mark.parametrize("exit_code", [0, 5, 7, 8, 130])
def test_how_a_run_ended_is_known_as_before(exit_code: int, store: Store) -> None:
    history, run, _ = ended(store, exit_code=exit_code, age_s=OLD_S)
    collect(store, by="a test")
    assert history.there() == (set(history.parts) if exit_code in (5, 7, 130) else set())
    assert bool(store.list("triggers")) is (run in history.there())


LATER: dict[str, Callable[[str], str]] = {
    "a stage": lambda run_id: layout.stage(run_id, "later"),
    "an attempt": lambda run_id: layout.run_attempt(run_id, 0),
    "a record that is not known yet": lambda run_id: f"runs/{run_id}/later.json",
}


@pytest.mark.parametrize("later", LATER)
def test_what_is_written_after_the_names_is_read(later: str, store: Store) -> None:
    history, run, _ = ended(store)
    other = history.sealed("datasets", OLD_S)
    store.create_json(LATER[later](run.removeprefix("runs/")), {"reused_from": other, "exit_code": 0})
    history.parts[run].names.append(other)
    history.sealed("datasets", OLD_S)
    history.ageing()
    collect(store, by="a test")
    assert history.there() == history.stay(Limits().keep_s, Limits().grace_s)
    assert other in history.there()


def test_a_second_end_has_names_of_its_own_and_a_second_trigger_is_read(store: Store) -> None:
    history, run, _ = ended(store, exit_code=5)
    run_id = run.removeprefix("runs/")
    other = history.sealed("datasets", OLD_S)
    store.create_json(layout.report(run_id), {"exit_code": 0, "names": other})
    store.create_json(layout.trigger("another"), {"run_id": run_id})
    note_names(store, run_id, 3, None)
    history.ageing()
    found = items(store)
    assert other in found[run].names
    assert {layout.trigger("another"), layout.trigger(f"key-{run_id}")} <= found[run].names
    second = store.read_as(layout.run_names(run_id, 3), RunNames.from_json)
    assert layout.report(run_id) in second.covers
    collect(store, by="a test", limits=AT_ONCE)
    assert not history.there()
    assert store.list("triggers") == []


DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "a record of another size": (layout.resolved, "cannot be read. Nothing was deleted"),
    "a trigger of another size": (lambda run_id: layout.trigger(f"key-{run_id}"), "cannot be read. Nothing was"),
    "the names": (lambda run_id: layout.run_names(run_id, 0), "names/0.json cannot be read. Nothing was deleted"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_stops_everything(damage: str, store: Store) -> None:
    history, run, _ = ended(store)
    where, sentence = DAMAGE[damage]
    path = Path(store.uri, where(run.removeprefix("runs/")))
    overwrite(path, path.read_bytes()[:-9])
    with pytest.raises(CorruptError, match=sentence):
        collect(store, by="a test")
    assert history.there() == set(history.parts)


FORMS: list[dict[str, object]] = [
    {"covers": [], "names": []},
    {"covers": {"a": "b"}, "names": []},
    {"covers": {}, "names": [], "more": 1},
]


@pytest.mark.parametrize("form", FORMS)
def test_names_of_another_form_are_damaged(form: dict[str, object], store: Store) -> None:
    history, run, _ = ended(store)
    store.create_json(layout.run_names(run.removeprefix("runs/"), 1), form)
    with pytest.raises(CorruptError, match="names/1.json cannot be read. Nothing was deleted"):
        collect(store, by="a test")
    assert history.there() == set(history.parts)


def test_what_a_run_says_of_another_runs_records_is_not_believed(store: Store) -> None:
    history = History(store)
    dataset = history.sealed("datasets", OLD_S)
    run, other = (history.run(YOUNG_S, history.sealed("code", OLD_S), {"shard": dataset}) for _ in range(2))
    covers = {file.path: file.bytes for file in store.stored(run)}
    names = RunNames(covers=covers, names=[])
    store.create_json(layout.run_names(other.removeprefix("runs/"), 0), names.to_json())
    assert store.manifest(dataset).id in items(store)[run].names


def test_a_damaged_record_has_no_names_written_down(store: Store) -> None:
    history = History(store)
    run = history.run(YOUNG_S, history.sealed("code", OLD_S), {})
    path = Path(store.uri, run, "resolved.json")
    overwrite(path, path.read_bytes()[:-9])
    with pytest.raises(CorruptError):
        note_names(store, run.removeprefix("runs/"), 0, None)
    assert not store.list(f"{run}/names")
