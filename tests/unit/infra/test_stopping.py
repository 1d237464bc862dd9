"""A planned stop: what waits ends as handed over, and a gang saves a checkpoint first."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import Fenced, Preempted
from data_contracts.messages.gang import CancelMarker, Launch
from data_contracts.pipeline_spec import RetrySpec
from infra import stopping
from infra.gang.conductor import Generation
from infra.gang.members import Node
from infra.gang.recovery import UNLIMITED, Recovery, raise_why_over
from infra.store import Store, layout
from tests.support.conducting import TRAINING
from tests.support.scripted_nodes import ScriptedNodes, SilentNode


def test_a_planned_stop_asks_for_a_checkpoint_and_uses_no_budget(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stopping.STOP_FILE, str(tmp_path / "stop"))
    launch = Launch(training=TRAINING, nodes=1, devices=1)
    nodes = ScriptedNodes(lambda generation, node: SilentNode(), store, launch)
    generation = Generation(nodes, commit=lambda _: None, check=lambda: None, on_progress=lambda _: None)
    generation.members.nodes.append(Node(0.0))
    preempted = Preempted("asked to stop")
    stopping.check()
    generation._hear()
    raise_why_over(UNLIMITED, preempted)
    assert not store.exists(layout.cancel(TRAINING, 0))

    (tmp_path / "stop").touch()
    stopping.check_signals()
    with pytest.raises(stopping.HandedOver):
        stopping.check()
    generation._hear()
    assert nodes.told == [(0, store.read_as(layout.cancel(TRAINING, 0), CancelMarker.from_json))]
    assert nodes.told[0][1].saves
    with pytest.raises(stopping.HandedOver):
        raise_why_over(UNLIMITED, preempted)
    raise_why_over(UNLIMITED, Fenced("another conductor owns it"))

    recovery = Recovery(RetrySpec(preempted=0), launch, [])
    assert recovery.after(Preempted("asked to stop", details={"planned": True}), {}, 0) == ""
    with pytest.raises(Preempted):
        recovery.after(preempted, {}, 0)
