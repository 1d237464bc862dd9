"""What another process than those of a training writes into it does not count, however whole it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Launch, NodeExit, RankAnswer, RankEnd
from infra.gang.conductor import refuse_short
from infra.gang.hub import Hub
from infra.gang.ledger import Ledger, refuse_forged_result
from infra.gang.members import Progress
from infra.gang.membership import Membership
from infra.gang.node import LocalNodes
from infra.gang.rank_files import NO_CODES, Codes, codes_of_generation, launch_keys
from infra.store import Store, layout
from tests.support.coded import publish, seal_checkpoint
from tests.support.conducting import TRAINING, run
from tests.support.scripted_nodes import Launching


def sealed(store: Store, step: int, generation: int = 0) -> Checkpoint:
    """A checkpoint that anyone who can write to the store could have sealed."""
    writer = store.writer(layout.checkpoint(TRAINING, step, generation))
    writer.put("state.json", b"{}")
    facts: dict[str, Any] = {"step": step, "epoch": 0, "world_size": 1}
    ref = writer.seal("checkpoint", facts, {"training": TRAINING, "generation": generation})
    return Checkpoint(ref=ref, key="k", training=TRAINING, generation=generation, **facts)


def ended(checkpoint: Checkpoint) -> dict[str, Any]:
    return NodeExit(status="done", ranks=[RankEnd(rank=0, done=RankAnswer(checkpoint=checkpoint))]).to_json()


pytestmark = pytest.mark.usefixtures("home")


MEETING = {"schema_version": 1, "address": "127.0.0.1", "port": 1}
# What is written in the place of each record.
FORGED: dict[str, Callable[[Store], dict[str, Any]]] = {
    layout.node_exit(TRAINING, 0, 0): lambda store: ended(sealed(store, 3)),
    layout.gang_beat(TRAINING, 0, 0): lambda store: {"schema_version": 1},
    layout.rollcall(TRAINING, 0): lambda store: {**MEETING, "nodes": [{**MEETING, "node": 0}]},
}


@pytest.mark.warm
@pytest.mark.parametrize("path", FORGED)
def test_a_record_that_a_writer_of_the_store_created_first_decides_nothing(path: str, store: Store) -> None:
    """Real nodes; the forged record is there before the process that should write it."""

    forged = FORGED[path](store)

    def strike(progress: Progress) -> None:
        if progress.generation == 0 and not store.exists(path):
            store.create_json(path, forged)

    outcome = run(store, {}, devices=1, on_progress=strike)
    assert (outcome.checkpoint.step, outcome.generations) == (10, 1)
    assert store.read_json(path) == forged


@pytest.mark.warm
def test_a_node_takes_no_launch_that_another_process_wrote(store: Store) -> None:
    """So a writer of the store cannot choose the code that a node runs."""
    path, launch = layout.launch(TRAINING, 0), Launch(training=TRAINING, nodes=1, devices=1)
    codes = codes_of_generation(store.uri, TRAINING, 0)
    assert codes.checked(path, codes.coded(path, launch.to_json()))
    forged = {**codes.coded(path, launch.to_json()), "entry": "another.module"}
    for value in (forged, launch.to_json(), codes.coded(layout.launch(TRAINING, 1), launch.to_json())):
        with pytest.raises(CorruptError, match="does not carry the code of its launch"):
            codes.checked(path, value)
    store.create_json(path, forged)
    node = LocalNodes(store, launch, Hub("127.0.0.1"))
    node.start([0])
    while not node.ended():
        time.sleep(0.02)
    ended = codes.checked(exit_path := layout.node_exit(TRAINING, 0, 0), store.read_json(exit_path))
    assert (ended["error"]["cause"], ended["error"]["details"]["file"]) == ("corrupt", path)
    node.end([0])
    assert NO_CODES.checked(path, forged) == forged, "a process that nobody gave a key checks nothing"


def begun(store: Store) -> None:
    """A training whose conductor died while its first generation trained."""
    Ledger(store, TRAINING, 0)
    publish(store, layout.launch(TRAINING, 0), Launch(training=TRAINING, nodes=1, devices=1))


def no_nodes(store: Store, launch: Launch, hub: Hub) -> Membership:
    raise ZeroDivisionError(f"generation {launch.generation} was to start")


OUT_OF_NODES = Launching(no_nodes)


def test_weights_that_no_rank_of_the_training_sealed_are_not_trained_on(store: Store) -> None:
    begun(store)
    planted = sealed(store, 15)
    with pytest.raises(CorruptError) as caught:
        run(store, {}, launcher=OUT_OF_NODES)
    assert caught.value.details["file"] == layout.manifest(planted.ref.uri)


def test_what_a_rank_sealed_is_adopted_on_the_same_machine(store: Store) -> None:
    begun(store)
    ref = seal_checkpoint(store, TRAINING, 15, 0, {"step": 15, "epoch": 0, "world_size": 1})
    with pytest.raises(ZeroDivisionError):
        run(store, {}, launcher=OUT_OF_NODES)
    resume = store.read_as(layout.launch(TRAINING, 1), Launch.from_json).resume
    assert resume.ref == ref


def test_a_machine_without_the_keys_takes_the_steps_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot check the codes. What is committed is taken by its seal, and it says so."""
    begun(store)
    Ledger(store, TRAINING, 0).commit(sealed(store, 5))
    seal_checkpoint(store, TRAINING, 15, 0, {"step": 15, "epoch": 0, "world_size": 1})
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "another"))
    said: list[str] = []
    with pytest.raises(ZeroDivisionError):
        run(store, {}, launcher=OUT_OF_NODES, on_progress=lambda progress: said.append(progress.sentence))
    resume = store.read_as(layout.launch(TRAINING, 1), Launch.from_json).resume
    assert resume.step == 5
    assert "this machine cannot check who committed its checkpoints; they are taken by their seals alone" in said


def test_machines_with_a_common_secret_check_each_others_codes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(store, TRAINING, 0, b"secret")
    ledger.commit(sealed(store, 5))
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "another"))
    other = Ledger(store, TRAINING, 1, b"secret")
    assert other.is_checked
    assert not other.is_launched_here
    assert launch_keys(store.uri, TRAINING) == [other.codes.keys[-1]]


def test_committed_checkpoints_are_the_conductors(store: Store) -> None:
    Ledger(store, TRAINING, 0).commit(sealed(store, 5))
    pointer = store.pointer(layout.latest(TRAINING))
    at = pointer.read()
    pointer.swap(at, {**at.value, "checkpoints": [sealed(store, 10).to_json()]})
    with pytest.raises(CorruptError, match="trainings/k-0/latest does not carry the code"):
        Ledger(store, TRAINING, 1)


def test_a_result_is_what_the_conductor_handed_over(store: Store) -> None:
    first, last = sealed(store, 5), sealed(store, 10)
    ledger = Ledger(store, TRAINING, 0)
    ledger.hand_over(last)
    refuse_forged_result(store, TRAINING, last)
    with pytest.raises(CorruptError, match="result.json names another checkpoint than the conductor handed over"):
        refuse_forged_result(store, TRAINING, first)
    refuse_forged_result(store, "trainings/elsewhere-0", first)
    store.create_json(layout.result(TRAINING), first.to_json())
    with pytest.raises(CorruptError, match="names another checkpoint"):
        run(store, {}, launcher=OUT_OF_NODES)


# Without a known length the last checkpoint may be of the epoch before.
CUT = [
    ({"max_epochs": 6}, True, "is of epoch 1 of 6"),
    ({"max_epochs": -1, "max_steps": 100}, True, "is of step 10 of 100"),
    ({"max_epochs": 6, "max_steps": 10}, True, ""),
    ({"max_epochs": 1}, True, ""),
    ({"max_time": "00:01:00:00"}, True, ""),
    ({"max_epochs": 6, "fast_dev_run": True}, True, ""),
    ({"max_epochs": 2}, False, ""),
    ({"max_epochs": 3}, False, "is of epoch 2 of 3"),
]


@pytest.mark.parametrize(("trainer", "knows_length", "sentence"), CUT)
def test_a_training_ends_where_its_plan_ends(
    trainer: dict[str, Any], knows_length: bool, sentence: str, store: Store
) -> None:
    launch = Launch(training=TRAINING, nodes=1, devices=1, train={"lightning": {"trainer": trainer}})
    last = sealed(store, 10).model_copy(update={"epoch": 1})
    with pytest.raises(CorruptError, match=sentence) if sentence else contextlib.nullcontext():
        refuse_short(launch, last, knows_length=knows_length)


def test_keys_are_shown_in_no_text(store: Store) -> None:
    publish(store, layout.gang_beat(TRAINING, 0, 0), {"nodes": []})
    [key] = launch_keys(store.uri, TRAINING)
    assert key.hex() not in repr(Codes((key,)))
    [file] = (Path(store.uri).parent / "home" / "launches").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
