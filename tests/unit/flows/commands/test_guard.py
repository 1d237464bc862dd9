"""What stands around every command: a signal or a panic at an awkward moment is one sentence and its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a command tells of each folder that it removes after another test's killed process."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


# A library in Rust whose import or call is disturbed panics: what it raises is no Exception, or another one.
SCRIPT = """\
import os, sys, time
from argparse import Namespace
from flows.commands.guard import carry_out

class PanicException(BaseException): ...

def disturbed(error):
    os.write(1, b"there\\n")  # not `print`: the signal would find it in stdout's buffer, which the answer needs
    try:
        time.sleep(60 if {waits} else 0)
    except BaseException:
        if {moment!r} == "import":
            print("panicked", file=sys.stderr)
    raise error

def load():
    if {moment!r} == "import":
        disturbed(ImportError("no module named datetime"))
    return lambda arguments: disturbed(PanicException("unwrap on an Err value"))

sys.exit(carry_out(load, Namespace(json=True, command="x")))
"""


def carried_out(moment: str, state: Path, stop: int | None) -> tuple[int, dict, str]:
    """Exit code, the answer as JSON, stderr."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(moment=moment, waits=stop is not None)],
        env={**os.environ, "TRAINWRIGHT_HOME": str(state)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    if stop is not None:
        assert process.stdout.readline() == "there\n"
        process.send_signal(stop)
        # `communicate` does not return what `readline` read ahead: nothing, since the process waits for the signal.
    out, err = process.communicate(timeout=480)
    return process.returncode, json.loads(out.removeprefix("there\n")), err


# What a signal raises in a finalizer, or in a check that a library in Rust makes, cannot be passed on.
LOST = """\
import os, signal, sys
from argparse import Namespace
from flows.commands.guard import carry_out
from infra import stopping

class Disturbed:
    def __init__(self, act): self.act = act
    def __del__(self): self.act()

def work(arguments):
    Disturbed(lambda: 1 / 0)
    Disturbed(lambda: os.kill(os.getpid(), signal.SIGINT))
    print("lost", file=sys.stderr)
    stopping.check()

sys.exit(carry_out(lambda: work, Namespace(json=True, command="x")))
"""


def test_a_signal_that_a_library_loses_is_a_cancel_without_a_traceback(tmp_path: Path) -> None:
    env = {**os.environ, "TRAINWRIGHT_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOST], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["error"]["cause"]) == (130, "cancelled")
    other, _, rest = done.stderr.partition("lost\n")
    assert "ZeroDivisionError" in other, "what no signal raised is shown"
    assert "_Stopped" not in other
    assert "Traceback" not in rest, rest


@pytest.mark.parametrize(("moment", "stop"), [("import", signal.SIGTERM), ("command", signal.SIGINT)])
def test_a_signal_that_a_library_turns_into_something_else_is_a_cancel(moment: str, stop: int, tmp_path: Path) -> None:
    code, told, err = carried_out(moment, tmp_path, stop)
    assert (code, told["exit_code"], told["error"]["cause"]) == (130, 130, "cancelled")
    assert err == "trainwright: stopped; no process is left.\n"


@pytest.mark.parametrize("moment", ["import", "command"])
def test_a_panic_is_one_sentence(moment: str, tmp_path: Path) -> None:
    code, told, err = carried_out(moment, tmp_path, None)
    assert (code, told["exit_code"]) == (1, 1)
    assert err.startswith("trainwright: Internal error: ")
    assert err.count("\n") == 1
    log = next(tmp_path.rglob("internal-error.log")).read_text()
    assert ("datetime" if moment == "import" else "PanicException") in log


# A command that prints as it works, like `logs`; one whose answer is printed; and one that a server leaves.
PRINTING = """
import sys
from argparse import Namespace
from flows.commands.guard import Answer, carry_out

def stream(arguments):
    while True:
        print("a line", flush=True)

def answer(arguments):
    open("done", "w").close()
    return Answer("the answer", {})

def left(arguments):
    raise BrokenPipeError(32, "Broken pipe")

sys.exit(carry_out(lambda: globals()[sys.argv[1]], Namespace(json=False, command="x", quiet=False)))
"""
CLI = "import sys; from flows.cli import main; sys.exit(main())"


def printed_to(out: int, err: int, *words: str, code: str = CLI, cwd: Path | None = None) -> tuple[int, str]:
    """The exit code of a command with these streams, and what it wrote to stderr if that is a pipe."""
    done = subprocess.run([sys.executable, "-c", code, *words], stdout=out, stderr=err, cwd=cwd, text=True, check=False)
    return done.returncode, done.stderr or ""


@pytest.fixture
def closed() -> Iterator[int]:
    """A pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize(
    "words", [["run", "--help"], ["nosuch", "--json"], pytest.param(["schema"], marks=pytest.mark.sweep)], ids=" ".join
)
def test_a_closed_pipe_is_quiet_and_changes_no_exit_code(words: list[str], closed: int, tmp_path: Path) -> None:
    code = 2 if words[0] == "nosuch" else 0
    found, errors = printed_to(closed, subprocess.PIPE, *words)
    assert (found, errors) == (code, errors if code else "")
    assert not re.search("Traceback|BrokenPipe", errors)
    assert printed_to(closed, closed, *words)[0] == code
    with Path("/dev/full").open("w") as full:
        found, errors = printed_to(full.fileno(), subprocess.PIPE, *words)
    assert found
    assert "stdout did not take" in errors
    assert "Traceback" not in errors


def test_a_closed_pipe_ends_what_prints_and_no_work_that_is_done(
    closed: int, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    assert printed_to(closed, subprocess.PIPE, "stream", code=PRINTING, cwd=tmp_path) == (141, "")
    assert printed_to(closed, subprocess.PIPE, "answer", code=PRINTING, cwd=tmp_path) == (0, "")
    assert (tmp_path / "done").exists()
    found, errors = printed_to(subprocess.DEVNULL, subprocess.PIPE, "left", code=PRINTING, cwd=tmp_path)
    assert (found, errors.count("\n")) == (1, 1)
    assert "BrokenPipeError" in errors
