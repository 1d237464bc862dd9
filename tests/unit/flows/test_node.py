"""The flow run of a node minds its supervisor to the end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import node
from infra.gang.node import LocalNode
from infra.processes.processes import is_alive


def test_a_stopped_supervisor_is_not_waited_for_once_the_run_is_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = LocalNode([str(tmp_path), "trainings/t-0", "0", "0"], {})
    os.kill(supervisor.pid, signal.SIGSTOP)

    def asked_to_end(seconds: float) -> None:
        monkeypatch.setattr(node, "time", time)
        raise KeyboardInterrupt

    try:
        monkeypatch.setattr(node, "time", SimpleNamespace(sleep=asked_to_end))
        with pytest.raises(KeyboardInterrupt):
            node._wait_for(supervisor)
    finally:
        supervisor.kill()
    assert not is_alive(supervisor.pid)
