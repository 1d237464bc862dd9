"""A full disk is refused in one sentence, and leaves no part of anything that a reader could take for whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("steps", [30, pytest.param(460, marks=pytest.mark.sweep)])
def test_a_full_disk_leaves_nothing_in_part(tmp_path: Path, repository: Path, steps: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # A file system of its own, in a mount namespace of its own: it is gone with the process.
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    work = 'mount -t tmpfs -o size=16m disk "$1" && exec "$2" -m tests.support.full_disk "$1" "$3"'
    command = [*namespace, "sh", "-c", work, "sh", str(disk), sys.executable, str(steps)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(f"\n{found}")
    assert found["problems"] == []
    assert found["tried"] == 5 * steps
    assert found["refused"] >= 3 * steps
    assert found["made"] >= 20


def test_a_store_that_takes_no_writes_is_named_and_waited_for_and_no_node_is_lost(
    tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "store").mkdir()
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    work = 'mount -t tmpfs -o size=4m,nr_inodes=400 disk "$1/store" && exec "$2" -m tests.support.stalled_store "$1"'
    command = [*namespace, "sh", "-c", work, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(f"\n{found}")
    assert (found["step"], found["ends"]) == (10, ["done"])
    why = {
        "full": "No space left on device",
        "inodes": "No space left on device: no inodes are free",
        "read-only": "Read-only file system",
    }
    for kind, (said, status) in found["said"].items():
        cannot = f"the store {found['disk']} cannot be written ({why.pop(kind)})."
        assert said.startswith("waiting: ")
        assert said.endswith(f" in {cannot}")
        assert status.startswith(f"{cannot[0].upper()}{cannot[1:]} Free space or inodes in {found['disk']}")
    assert not why
