"""Which machine this is."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra import machine
from infra.processes.processes import CODE_ROOT


def test_all_processes_of_a_machine_find_one_name() -> None:
    asked = [sys.executable, "-c", "from infra.machine import machine_id; print(machine_id())"]
    other = subprocess.run(asked, cwd=CODE_ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert other == machine.machine_id()
    assert re.fullmatch("[0-9a-f]{16}", other)


def test_a_container_is_a_machine_of_its_own_and_without_a_boot_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = machine.machine_id.__wrapped__
    mine = find()
    monkeypatch.setattr(platform, "node", lambda: "pod-7")
    assert find() not in (mine, "")
    monkeypatch.setattr(machine, "_BOOT", tmp_path / "none")
    assert find() == ""
