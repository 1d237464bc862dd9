"""A worker in the foreground runs nothing from the folder in which it is started: it has the server's password."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

# `--help` ends Prefect's worker at once, without a server.
WORK = "import sys; sys.path.insert(0, {code!r}); from infra.orchestrator.worker import work; work('pool', ['--help'])"
CODE_ROOT = Path(__file__).parents[4]


def test_a_module_of_the_current_folder_does_not_take_the_place_of_prefect(tmp_path: Path) -> None:
    (tmp_path / "prefect.py").write_text("open('ran', 'w').close()\n")
    command = [sys.executable, "-P", "-c", WORK.format(code=str(CODE_ROOT))]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        ended = next(line for line in worker.stderr if "is started again" in line)
        worker.send_signal(signal.SIGTERM)
        worker.stderr.read()
    assert "exit code 0" in ended
    assert not (tmp_path / "ran").exists()
