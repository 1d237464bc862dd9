"""A command is run to its end, and nothing of it survives a stop."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from infra import stopping
from infra.processes.processes import find_marked, marked_env, new_mark, run_to_end
from tests.support.pool import until


def test_it_returns_the_exit_code_and_writes_where_it_is_told(tmp_path: Path) -> None:
    mark, output, errors = new_mark(), tmp_path / "output", tmp_path / "errors"
    script = "import os, sys; print(os.getcwd()); print('said', file=sys.stderr); sys.exit(3)"
    with output.open("wb") as out, errors.open("wb") as err:
        command = [sys.executable, "-c", script]
        code = run_to_end(command, mark, marked_env(mark), stdout=out, stderr=err, folder=tmp_path)
    assert (code, output.read_text(), errors.read_text()) == (3, f"{tmp_path}\n", "said\n")


def test_a_stop_ends_it_and_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, received = new_mark(), list[int]()
    monkeypatch.setattr(stopping, "received", received)
    ready = tmp_path / "ready"
    inner = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    script = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True).wait()"
    )

    def stop() -> None:
        until(ready.exists)
        received.append(15)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with (tmp_path / "output").open("wb") as out, pytest.raises(KeyboardInterrupt):
        run_to_end([sys.executable, "-c", script], mark, marked_env(mark), stdout=out)
    stopper.join()
    assert ready.exists()
    assert find_marked(mark) == []
