"""A planned stop: what waits ends as handed over, and a gang saves a checkpoint first."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import Fenced, Preempted
from data_contracts.messages.gang import CancelMarker, Launch
from data_contracts.pipeline_spec import RetrySpec
from infra import stopping
from infra.gang.recovery import UNLIMITED, EndEarly, Recovery, raise_why_over
from infra.store import Store, layout
from tests.support.conducting import TRAINING


def test_a_planned_stop_asks_for_a_checkpoint_and_uses_no_budget(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stopping.STOP_FILE, str(tmp_path / "stop"))
    launch = Launch(training=TRAINING, nodes=1, devices=1)
    end_early, preempted = EndEarly(store, launch, UNLIMITED.over), Preempted("asked to stop")
    stopping.check()
    end_early.ask_if_over()
    raise_why_over(UNLIMITED, preempted)
    assert not store.exists(layout.cancel(TRAINING, 0))

    (tmp_path / "stop").touch()
    stopping.check_signals()
    with pytest.raises(stopping.HandedOver):
        stopping.check()
    end_early.ask_if_over()
    assert store.read_as(layout.cancel(TRAINING, 0), CancelMarker.from_json).saves
    with pytest.raises(stopping.HandedOver):
        raise_why_over(UNLIMITED, preempted)
    raise_why_over(UNLIMITED, Fenced("another conductor owns it"))

    recovery = Recovery(RetrySpec(preempted=0), launch, [])
    assert recovery.after(Preempted("asked to stop", details={"planned": True}), {}, 0) == ""
    with pytest.raises(Preempted):
        recovery.after(preempted, {}, 0)
