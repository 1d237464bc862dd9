"""Checkpoints as people see them: every state with its reason, and nothing moved by looking."""

from __future__ import annotations

import shutil
from pathlib import Path

from data_contracts.handoffs import Checkpoint
from infra.gang.ledger import adoptable, list_checkpoints, why_from
from infra.store import Store, layout
from tests.support.damage import overwrite
from tests.support.scripted_nodes import TRAINING, seal
from tests.unit.infra.gang.test_ledger import ledger_of, spoil

NEWEST = "the newest committed checkpoint"


def test_every_state_is_listed_with_its_reason(store: Store) -> None:
    ledger = ledger_of(store, 5, 10, 15, 20)
    spoil(store, ledger.checkpoints[-1])
    ledger.resume_from()
    ledger.go_back(10, by="run-1")
    store.create_json(layout.verified(ledger.checkpoints[0].ref.uri), {})
    store.create_json(layout.result(TRAINING), ledger.checkpoints[0].to_json())
    seal(store, 12, generation=1)
    store.writer(layout.checkpoint(TRAINING, 25, 1)).put("state.json", b"not sealed")
    before = store.pointer(layout.latest(TRAINING)).read()
    found = list_checkpoints(store, TRAINING)
    assert [(one.step, one.generation, one.state, one.handed_over) for one in found] == [
        (5, 0, "verified", True),
        (10, 0, "committed", False),
        (12, 1, "uncommitted", False),
        (15, 0, "set aside", False),
        (20, 0, "quarantined", False),
    ]
    assert [one.bytes for one in found] == [1, 2, 2, 2, 2]
    assert found[3].reason.endswith("run-1 went back to step 10")
    assert found[4].reason.endswith("20-g0/state.json does not hold the bytes that were sealed")
    assert store.pointer(layout.latest(TRAINING)).read() == before


def test_a_changed_manifest_is_said_and_hides_no_other(store: Store) -> None:
    ledger = ledger_of(store, 5, 10)
    overwrite(Path(store.uri) / layout.manifest(ledger.checkpoints[0].ref.uri), b"{}")
    first, second = list_checkpoints(store, TRAINING)
    assert (first.state, first.bytes, first.reason) == (
        "quarantined",
        None,
        f"{layout.manifest(ledger.checkpoints[0].ref.uri)} does not end with a seal",
    )
    assert second.state == "committed"


def test_a_committed_checkpoint_that_is_missing_is_listed(store: Store) -> None:
    ledger = ledger_of(store, 5, 10)
    first, second = (Path(store.uri, checkpoint.ref.uri) for checkpoint in ledger.checkpoints)
    shutil.rmtree(first)
    (second / "manifest.json").unlink()
    reasons = [checkpoint.reason for checkpoint in list_checkpoints(store, TRAINING)]
    assert reasons == [f"{TRAINING}/checkpoints/{path.name}/manifest.json is missing" for path in (first, second)]


def test_why_an_older_one_is_gone_on_from(store: Store) -> None:
    ledger = ledger_of(store, 5, 10, 1500)
    spoil(store, ledger.checkpoints[-1])
    assert why_from(store, TRAINING, 1500, ledger.aside) == NEWEST
    ledger.resume_from()
    ledger.go_back(5, by="run-1")
    first, second = why_from(store, TRAINING, 5, ledger.aside).split("; ")
    assert (first.partition(" at ")[0], first[-22:]) == ("step 10 was set aside", "run-1 went back to step 5"[-22:])
    assert second.startswith("step 1,500 is quarantined: ")
    ledger.commit(seal(store, 2000, generation=1))
    assert why_from(store, TRAINING, 2000, ledger.aside) == NEWEST


def as_a_rank(store: Store, step: int, generation: int = 1, **place: str) -> Checkpoint:
    """Seal a checkpoint as a rank does."""
    facts = {"step": step, "epoch": 2, "world_size": 4, "metrics": {"loss": 0.5}, "dropped_rows": 3}
    more = {"skipped": [[8, 16]]} if step > 15 else {}
    said = {"training": TRAINING, "generation": generation, **place}
    writer = store.writer(layout.checkpoint(TRAINING, step, generation))
    writer.put("state.json", b"{}")
    ref = writer.seal("checkpoint", {**facts, **more, "samples": 80, "strategy": "ddp"}, said)
    return Checkpoint(ref=ref, key="k", **{**said, "training": TRAINING}, **facts, **more)


def test_an_adoptable_checkpoint_is_described_as_its_rank_reported_it(store: Store) -> None:
    made = [as_a_rank(store, step) for step in (10, 15, 20)]
    assert adoptable(store, TRAINING, 1, after=10) == made[1:]
    assert adoptable(store, TRAINING, 1, after=20) == adoptable(store, "trainings/other-0", 0, after=-1) == []


def test_a_damaged_checkpoint_or_one_of_another_generation_is_not_adoptable(store: Store) -> None:
    writer = store.writer(layout.checkpoint(TRAINING, 11, 1))
    writer.put("state.json", b"{}")  # and never sealed
    as_a_rank(store, 12, generation=0)
    as_a_rank(store, 17, generation=0)
    as_a_rank(store, 18, generation=0)
    as_a_rank(store, 13, training="trainings/other-0")
    seal(store, 14, 1)  # without what describes it
    overwrite(Path(store.uri) / layout.manifest(as_a_rank(store, 15).ref.uri), b"{}")
    store.create_once(layout.quarantined(as_a_rank(store, 16).ref.uri), {"schema_version": 1, "reason": "so"})
    good = as_a_rank(store, 17)
    assert adoptable(store, TRAINING, 1, after=5) == [good]
