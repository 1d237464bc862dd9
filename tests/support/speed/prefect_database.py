"""A Prefect server's new database, made once for all tests: a server takes 7 s of processor time for one of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from infra.files import locked
from tests.support.speed.children import import_path


def put_new_database(home: Path, shared: Path) -> None:
    """Give a state folder that has no database yet the one that its first server would make.

    Args:
        home: the state folder, made if absent.
        shared: the folder of all of this session's processes, which keeps the database to copy.
    """
    made = shared / "prefect" / "prefect.db"
    with locked(shared / "prefect.lock"):
        if not made.exists():
            half = made.parent.with_name("half-made")
            shutil.rmtree(half, ignore_errors=True)
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
            environment = {**os.environ, "PYTHONPATH": import_path(), "PREFECT_HOME": str(half)}
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
            half.rename(made.parent)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "prefect").mkdir(mode=0o700, exist_ok=True)
    if not (home / "prefect" / made.name).exists():
        shutil.copy(made, home / "prefect")
