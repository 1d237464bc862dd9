"""Who took part in a training, from what its nodes left in the store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.gang import Joined, Launch, Meeting
from infra.gang import ranks as rank_processes
from infra.gang.ledger import generation_records, roster
from infra.gang.rank_files import RankFiles
from infra.gang.ranks import RankLogs, kept_log
from infra.store import Store, layout, open_store
from tasks.queries.history import logs_of
from tasks.stages import trainings
from tasks.stages.artifacts import gang_page
from tests.support.scripted_nodes import TRAINING


def report(rank: int, step: int) -> dict[str, Any]:
    return {"rank": rank, "step": step, "device": f"cuda:{rank % 2}"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two nodes of two ranks that ended with a lost node; then one that trains."""
    store = open_store(str(tmp_path / "store"))
    for generation, nodes in ((0, 2), (1, 1)):
        launch = Launch(training=TRAINING, generation=generation, nodes=nodes, devices=2)
        store.create_json(layout.launch(TRAINING, generation), launch.to_json())
        joined = Joined(node=0, host="one", address="10.0.0.1", port=1, time=1_767_225_600 + generation)
        store.create_json(layout.joined(TRAINING, generation, 0), joined.to_json())
    error = {"cause": "node_lost", "message": "Rank 1 ended | without an answer."}
    ranks = [{"rank": 0, "report": report(0, 7)}, {"rank": 1, "report": None}]
    store.create_json(layout.node_exit(TRAINING, 0, 0), {"status": "failed", "error": error, "ranks": ranks})
    store.create(layout.rank_log(TRAINING, 0, 0, 0), b"one\ntwo\n")
    for number in range(12):
        ranks = [report(0, number), report(1, number)]
        store.create_json(layout.beat(TRAINING, 1, 0, number), {"ranks": ranks})
    return store


def test_every_rank_of_every_generation_is_listed_the_newest_first(store: Store) -> None:
    told = [
        (s.generation, s.rank, s.node, s.device, s.restarts, s.last_step, s.ended)
        for s in roster(generation_records(store, TRAINING))
    ]
    assert told == [
        (1, 0, 0, "cuda:0", 1, 11, ""),
        (1, 1, 0, "cuda:1", 1, 11, ""),
        (0, 0, 0, "cuda:0", 0, 7, "node_lost"),
        (0, 1, 0, "", 0, 0, "node_lost"),
        (0, 2, 1, "", 0, 0, ""),
        (0, 3, 1, "", 0, 0, ""),
    ]
    first, *_, last = roster(generation_records(store, TRAINING))
    assert (first.host, first.address, first.joined) == ("one", "10.0.0.1", "2026-01-01T00:00:01+00:00")
    assert (last.host, last.joined) == ("", "")


def test_ranks_are_numbered_as_the_roll_call_fixed_it(store: Store) -> None:
    meeting = Meeting(address="10.0.0.2", port=1, nodes=[Joined(node=1, address="10.0.0.2", port=1)])
    store.create_json(layout.rollcall(TRAINING, 0), meeting.to_json())
    told = [(s.node, s.rank) for s in roster(generation_records(store, TRAINING)) if s.generation == 0]
    assert told == [(0, None), (1, 0), (1, 1)]
    assert "| – | 0 | one (10.0.0.1) |" in gang_page(roster(generation_records(store, TRAINING)))


def test_what_a_rank_printed_is_kept(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_log(store, TRAINING, 0, 0, 0) == "one\ntwo\n"
    monkeypatch.setattr(rank_processes, "EVERY_S", 0.0)
    monkeypatch.setattr(rank_processes, "CHUNK_BYTES", 8)
    kept, ranks = RankLogs(store, (TRAINING, 1, 0)), [RankFiles(tmp_path, rank) for rank in (0, 1)]
    kept.add(ranks)
    assert kept_log(store, TRAINING, 1, 0, 0) is None
    # While it runs: what came since; of much, the newest.
    for printed, so_far in (("one\n", "one\n"), ("", "one\n"), ("two\n", "one\ntwo\n"), ("x" * 9 + "three\n", "")):
        with ranks[0].log.open("a") as stream:
            stream.write(printed)
        kept.add(ranks)
        assert kept_log(store, TRAINING, 1, 0, 0) == (so_far or "one\ntwo\nxxthree\n")
    assert kept_log(store, TRAINING, 1, 0, 1) is None
    # All of it once its node has ended.
    kept.end(ranks)
    assert kept_log(store, TRAINING, 1, 0, 0) == "one\ntwo\nxxxxxxxxxthree"


def test_the_newest_generation_with_logs_is_shown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(run_id="a-run", store=store)
    monkeypatch.setattr(trainings, "training_of", lambda run: TRAINING)
    training, found = logs_of(run, None)
    assert training == TRAINING
    assert [(one.status.generation, one.status.rank, one.text) for one in found] == [
        (0, 0, "one\ntwo\n"),
        (0, 1, None),
        (0, 2, None),
        (0, 3, None),
    ]
    # Nothing was kept of this one: the newest says so.
    assert [(one.status.generation, one.text) for one in logs_of(run, 1)[1]] == [(1, None)]
    with pytest.raises(UsageError, match="trainings/k-0 has no rank 4; it has 0 to 3"):
        logs_of(run, 4)


@pytest.mark.parametrize("training", [None, "trainings/none-0"])
def test_a_run_that_has_not_begun_to_train_has_none(
    training: str | None, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = SimpleNamespace(run_id="a-run", store=store)
    monkeypatch.setattr(trainings, "training_of", lambda run: training)
    with pytest.raises(UsageError, match="The run a-run has not started training"):
        logs_of(run, None)
