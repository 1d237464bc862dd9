"""When a fault comes, that it comes once, and what it strikes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import CorruptError, TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import FaultName, InjectedFault, Joined, Latest, Meeting, PlannedFault, StepAfter
from infra.store import Store, layout, open_store
from infra.store.layout import game_day_record
from training.fit import fault_injector
from training.fit.fault_injector import FaultInjector, checked_supervisor, damage, is_due

TRAINING = "trainings/k-0"


def planned(name: FaultName = "rank-killed", checkpoints: int = 1) -> PlannedFault:
    return PlannedFault(name=name, every_steps=10, checkpoints=checkpoints, wait_s=0.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with the meeting of generation 0, whose one node this process's parent supervises."""
    store = open_store(str(tmp_path / "store"))
    joined = Joined(node=0, address="127.0.0.1", port=1, pid=os.getppid())
    meeting = Meeting(address="127.0.0.1", port=1, nodes=[joined])
    store.create_json(layout.rollcall(TRAINING, 0), meeting.to_json())
    return store


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The faults that were injected; nothing is."""
    names: list[str] = []
    monkeypatch.setattr(fault_injector, "inject", lambda name, supervisor: names.append(name))
    monkeypatch.setenv("GROUP_RANK", "0")
    return iter([names]).__next__()


def checkpoint(store: Store, step: int = 10) -> Checkpoint:
    """A sealed checkpoint."""
    writer = store.writer(layout.checkpoint(TRAINING, step, 0))
    writer.put("weights.safetensors", bytes(1000))
    writer.put("small.json", b"{}")
    ref = writer.seal("checkpoint", {}, {})
    return Checkpoint(ref=ref, key="k", training=TRAINING, generation=0, step=step, epoch=0, world_size=1, metrics={})


def commit(store: Store, *checkpoints: Checkpoint) -> None:
    latest = Latest(token=0, checkpoints=list(checkpoints))
    store.pointer(layout.latest(TRAINING)).swap(None, latest.to_json())


def injector(store: Store, rank: int = 0, ranks: int = 1, generation: int = 0, resume: Any = None) -> FaultInjector:
    context: Any = SimpleNamespace(training=TRAINING, generation=generation, rank=rank, world_size=ranks, resume=resume)
    return FaultInjector(context, store, planned())


def at(step: int) -> Any:
    return SimpleNamespace(global_step=step)


@pytest.mark.parametrize(("checkpoints", "due"), [(1, [15, 25, 35]), (2, [25, 35]), (3, [35])])
def test_a_fault_comes_half_way_between_two_checkpoints(checkpoints: int, due: list[int]) -> None:
    late = [after + more for after in due for more in range(5)]
    assert [step for step in range(40) if is_due(step, planned(checkpoints=checkpoints))] == late


@pytest.mark.parametrize(("per_batch", "asked_after"), [(1, [15, 25, 35]), (2, [16, 26, 36]), (3, [15, 27, 36])])
def test_it_waits_once_between_two_checkpoints_whatever_steps_a_batch_takes(
    store: Store, struck: list[str], monkeypatch: pytest.MonkeyPatch, per_batch: int, asked_after: list[int]
) -> None:
    one, asked = injector(store), []
    for step in range(0, 40, per_batch):
        monkeypatch.setattr(one, "_committed", lambda step=step: asked.append(step))
        one.on_train_batch_start(at(step), None, None, 0)  # type: ignore[arg-type]
    assert (asked, struck) == (asked_after, [])


def test_it_comes_once_and_only_after_a_committed_checkpoint(store: Store, struck: list[str]) -> None:
    one = injector(store)
    one.on_train_batch_start(at(15), None, None, 0)  # type: ignore[arg-type]
    assert (struck, store.exists(game_day_record(TRAINING, "injected"))) == ([], False)
    commit(store, checkpoint(store))
    for step in (24, 25, 25, 35):
        one.on_train_batch_start(at(step), None, None, 0)  # type: ignore[arg-type]
    assert struck == ["rank-killed"]
    injected = store.read_as(game_day_record(TRAINING, "injected"), InjectedFault.from_json)
    assert (injected.step, injected.checkpoint) == (25, f"{TRAINING}/checkpoints/10-g0")
    injector(store, generation=1).on_train_batch_start(at(35), None, None, 0)  # type: ignore[arg-type]
    assert struck == ["rank-killed"]


def test_only_the_last_rank_injects_it(store: Store, struck: list[str]) -> None:
    commit(store, checkpoint(store))
    for rank in range(3):
        injector(store, rank, ranks=3).on_train_batch_start(at(15), None, None, 0)  # type: ignore[arg-type]
        assert struck == ["rank-killed"] * (rank == 2)


def test_the_first_step_and_the_first_new_step_after_it_are_recorded(store: Store, struck: list[str]) -> None:
    saved = checkpoint(store)
    commit(store, saved)
    injector(store).on_train_batch_start(at(15), None, None, 0)  # type: ignore[arg-type]
    later = injector(store, generation=1, resume=saved)
    for step in (10, 11, 12, 15, 16, 17):
        later.on_train_batch_end(at(step), None, None, None, 0)  # type: ignore[arg-type]
    for what, step in (("first", 11), ("caught-up", 16)):
        after = store.read_as(game_day_record(TRAINING, what), StepAfter.from_json)  # type: ignore[arg-type]
        assert (after.step, after.resumed_from, after.generation) == (step, 10, 1)


def test_only_what_started_the_ranks_torchrun_is_its_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that somebody changed in the store could name the worker, which others' runs need."""
    torchrun, supervisor, worker, init = (SimpleNamespace(pid=pid) for pid in (12, 11, 10, 1))
    monkeypatch.setattr("psutil.Process.parents", lambda self: [torchrun, supervisor, worker, init])
    assert checked_supervisor(11) == 11
    for pid in (12, 10, 1, 13):
        with pytest.raises(TrainwrightError, match="is not the supervisor of the rank"):
            checked_supervisor(pid)


def test_one_bit_of_the_largest_file_is_flipped(store: Store) -> None:
    saved = checkpoint(store)
    path = Path(store.uri) / saved.ref.uri / "weights.safetensors"
    damage(store, saved)
    assert path.read_bytes() == bytes(500) + b"\x01" + bytes(499)
    with pytest.raises(CorruptError):
        store.verify(saved.ref)


def test_a_link_in_place_of_a_checkpoints_file_is_not_followed(store: Store, tmp_path: Path) -> None:
    saved = checkpoint(store)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(bytes(1000))
    path = Path(store.uri) / saved.ref.uri / "weights.safetensors"
    path.unlink()
    path.symlink_to(elsewhere)
    with pytest.raises(CorruptError, match="is a link"):
        damage(store, saved)
    assert elsewhere.read_bytes() == bytes(1000)
