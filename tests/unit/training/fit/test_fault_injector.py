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
from data_contracts.messages.gang import FaultName, Joined, Latest, Meeting, PlannedFault
from infra.store import Store, layout, open_store
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


def test_only_the_last_rank_injects_it(store: Store, struck: list[str]) -> None:
    commit(store, checkpoint(store))
    for rank in range(3):
        injector(store, rank, ranks=3).on_train_batch_start(at(15), None, None, 0)  # type: ignore[arg-type]
        assert struck == ["rank-killed"] * (rank == 2)


def test_only_what_started_the_ranks_torchrun_is_its_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that somebody changed in the store could name the worker, which others' runs need."""
    torchrun, supervisor, worker, init = (SimpleNamespace(pid=pid) for pid in (12, 11, 10, 1))
    monkeypatch.setattr("psutil.Process.parents", lambda self: [torchrun, supervisor, worker, init])
    assert checked_supervisor(11) == 11
    for pid in (12, 10, 1, 13):
        with pytest.raises(TrainwrightError, match="is not the supervisor of the rank"):
            checked_supervisor(pid)


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
