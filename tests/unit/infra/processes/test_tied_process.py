"""A tied process: interrupted or killed by this one, and ended with it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from infra.processes.processes import TiedProcess, find_marked, kill_marked, new_mark
from tests.support.pool import until

MODULE = """\
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler if sys.argv[1] == "ends" else signal.SIG_IGN)
print("ready", flush=True)
print("said", file=sys.stderr, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("does", ["ends", "ignores"])
def test_it_is_interrupted_or_else_killed(does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeps.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    output, log, mark = tmp_path / "output.txt", tmp_path / "log.txt", new_mark()
    process = TiedProcess("sleeps", does, mark=mark, output=output, log=log)
    try:
        until(lambda: output.read_text() == "ready\n" and log.read_text() == "said\n")
        assert process.exit_code is None
        if does == "ends":
            assert process.interrupt(60)
            assert process.interrupt(0), "nothing more to end"
        else:
            assert not process.interrupt(0.1)
            process.kill()
            assert process.exit_code == -signal.SIGKILL
        assert process.exit_code not in (None, 0)
        assert find_marked(mark) == []
    finally:
        kill_marked(mark)
