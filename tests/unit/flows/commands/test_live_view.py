"""The live view on a real terminal: whatever is printed while it stands and however it ends, the screen is clean."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.screen import Terminal

# A command that runs a stage: prints as libraries and users do, says that it is there, waits, and ends somehow.
SCRIPT = """\
import logging, os, sys, time
from pathlib import Path
from argparse import Namespace
from data_contracts.errors import UsageError
from data_contracts.run_report import StageResult
from data_contracts.messages.raw_data import ShardProgress
from flows.commands.guard import Answer, carry_out
from tasks.run.progress import IN_VIEW, RunEnded, StageBegan, StageEnded, shown, notify
from tasks.run.progress import TrainingProgress

log, folder, end = logging.getLogger("trainwright"), Path(sys.argv[1]), sys.argv[2]

def command(arguments):
    notify(StageBegan("train", "tiny", "run-1"))
    print("printed [bold]\\x1b[2J")
    log.info("logged \\x1b]0;x\\x07")
    log.info("train shown", extra=IN_VIEW)
    print("and " + "long " * 20, file=sys.stderr)
    logging.getLogger("elsewhere").warning("warned")
    with shown("shard") as show:
        show(ShardProgress(phase="reading", rows=1, total=2, rows_per_s=1, share=0.5, seconds_left=1))
    notify(TrainingProgress("training", 7, 1, 70, 100, 10.0, {"loss": 0.5}))
    while not (folder / "go").exists():
        time.sleep(0.01)
    if end == "raise":
        raise ValueError("a bug")
    if end == "refuse":
        raise UsageError("Refused.", remedy="Ask again.")
    notify(StageEnded(StageResult(name="train", status="ran", seconds=1, sentence="step 7")))
    notify(RunEnded())
    log.error("an error")
    return Answer("promoted: it is\\n\\n  train     ran", {"it": "is"}, line="promoted: it is")

arguments = Namespace(json="--json" in sys.argv, quiet="--quiet" in sys.argv, no_color=False, command="x")
sys.exit(carry_out(lambda: command, arguments))
"""
ABOVE = """\
printed [bold]
logged \\x1b]0;x\\x07
and long long long long long long long long long long long long long long long
long long long long long
warned
"""
VIEW = """\
running tiny

  validate
  shard
  train     running      0.0 s  70 %, epoch 1, step 7, loss 0.5, 10 samples/s, 3
                                s left
  verify
  evaluate
  promote

  run       run-1
"""
ANSWER = "an error\npromoted: it is\n\n  train     ran\n"


def begun(folder: Path, end: str, *options: str, script: str = SCRIPT, **more: object) -> Terminal:
    # A TMPDIR of its own: it would tell of each folder there that it removes after another test's killed process.
    env = {"TRAINWRIGHT_HOME": str(folder / "home"), "TMPDIR": str(folder), **more.pop("env", {})}  # type: ignore[dict-item]
    return Terminal("-c", script, folder, end, *options, env=env, **more)  # type: ignore[arg-type]


def test_lines_pass_above_the_view_and_the_answer_takes_its_place(tmp_path: Path) -> None:
    terminal = begun(tmp_path, "answer")
    terminal.until("epoch 1")
    assert re.sub(r"[ \d]\d\.\d s  70", " 0.0 s  70", terminal.until("run       run-1")) == ABOVE + VIEW.rstrip("\n")
    assert not terminal.screen().cursor
    (tmp_path / "go").touch()
    assert (terminal.end(), terminal.screen().text.rstrip("\n")) == (0, (ABOVE + ANSWER).rstrip("\n"))
    assert terminal.screen().cursor


@pytest.mark.parametrize(
    ("end", "code", "sentence"),
    [
        ("refuse", 2, "trainwright: Refused. Ask again.\n"),
        ("raise", 1, "trainwright: Internal error: ValueError: a bug. This is a bug"),
        ("\x03", 130, "trainwright: stopped; no process is left.\n"),
        (signal.SIGTERM, 130, "trainwright: stopped; no process is left.\n"),
    ],
)
def test_however_it_ends_the_view_is_gone_and_the_cursor_back(
    end: str | signal.Signals, code: int, sentence: str, tmp_path: Path
) -> None:
    terminal = begun(tmp_path, str(end))
    terminal.until("epoch 1")
    if isinstance(end, signal.Signals):
        terminal.process.send_signal(end)
    elif end == "\x03":
        terminal.type(b"\x03")
    else:
        (tmp_path / "go").touch()
    assert terminal.end() == code
    screen = terminal.screen()
    assert screen.text.replace("^C", "").startswith(ABOVE + sentence)
    assert (screen.cursor, "running" in screen.text) == (True, False)


def test_the_last_picture_stays_where_the_answer_goes_elsewhere(tmp_path: Path) -> None:
    terminal = begun(tmp_path, "answer", stdout=tmp_path / "out")
    terminal.until("epoch 1")
    (tmp_path / "go").touch()
    assert terminal.end() == 0
    assert "  train     ran          1.0 s  step 7\n" in terminal.screen().text
    assert (tmp_path / "out").read_text() == "printed [bold]\x1b[2J\n" + ANSWER.removeprefix("an error\n")


def test_no_color_is_kept_to(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    plain, coloured = begun(tmp_path, "answer", env={"NO_COLOR": "1"}), begun(tmp_path, "answer")
    assert (plain.end(), coloured.end()) == (0, 0)
    assert ["\x1b[3" in one.output for one in (plain, coloured)] == [False, True]


LINES = "logged \\x1b]0;x\\x07\ntrain shown\nand " + "long " * 20 + "\nwarned\nan error\n"
PRINTED = "printed [bold]\x1b[2J\n"


def test_without_a_terminal_lines_are_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "go").touch()

    def piped(*options: str) -> tuple[str, str]:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), "answer", *options]
        env = {**os.environ, "TRAINWRIGHT_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=env)
        return done.stdout, done.stderr

    assert piped() == (PRINTED + ANSWER.removeprefix("an error\n"), LINES)
    assert piped("--json") == (PRINTED + '{"it": "is"}\n', LINES)
    quiet = f"and {'long ' * 20}\nan error\n"  # a program's own print cannot be told from an error
    assert piped("--quiet") == (PRINTED + "promoted: it is\n", quiet)


@pytest.mark.parametrize(
    ("options", "env", "tail"),
    [
        ((), {"TERM": "dumb"}, LINES + ANSWER.removeprefix("an error\n")),
        (("--quiet",), {}, f"and {'long ' * 20}\nan error\npromoted: it is\n"),
        # The line of a stage's progress replaces itself.
        (
            ("--json",),
            {},
            LINES.replace("warned\n", "warned\n\r\x1b[2Kshard: reading 1 of 2 rows, 1 rows/s, 1 s left\r\x1b[2K")
            + '{"it": "is"}\n',
        ),
    ],
)
def test_a_dumb_terminal_quiet_and_json_get_lines_alone(
    options: tuple[str, ...], env: dict[str, str], tail: str, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    terminal = begun(tmp_path, "answer", *options, env=env)
    assert (terminal.end(), terminal.output.replace("\r\n", "\n")) == (0, PRINTED + tail)


def test_no_picture_is_worth_a_run(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    broken = "import flows.commands.live_view as b\ndef fail(*_): raise ValueError('broken')\nb.one_line = fail\n"
    terminal = begun(tmp_path, "answer", script=broken + SCRIPT)
    assert terminal.end() == 0
    said = terminal.output.replace("\r\n", "\n")
    assert said.startswith("The live view failed and is switched off; the run continues (ValueError: broken).\nprinted")
    assert (said.endswith("promoted: it is\n\n  train     ran\n"), said.count("switched off")) == (True, 1)
