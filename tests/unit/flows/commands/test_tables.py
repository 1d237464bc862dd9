"""A table for people: aligned text for programs and files, ruled and wrapped on a terminal."""

from __future__ import annotations

import sys

import pytest

from flows.commands.terminal import table

HEAD = ("step", "state", "metrics")
ROWS = [("1,200", "verified, handed over", "loss 0.25, val_loss 0.125"), ("80", "committed", "\x1b[2J [bold]猫")]
PLAIN = """\
 step  state                  metrics
1,200  verified, handed over  loss 0.25, val_loss 0.125
   80  committed              \\x1b[2J [bold]猫"""
RULED = """\
  step   state                   metrics
 ────────────────────────────────────────────
 1,200   verified, handed over   loss 0.25,
                                 val_loss
                                 0.125
    80   committed               \\x1b[2J
                                 [bold]猫"""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


def test_plain_text_is_aligned_and_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert table(HEAD, ROWS, ["step"]) == PLAIN
    assert len(table(("a", "b"), [("x" * 300, "y " * 300)]).splitlines()) == 2


def test_a_terminal(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("COLUMNS", "46")
    assert table(HEAD, ROWS, ["step"]) == RULED


def test_a_dumb_terminal_gets_plain_text(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("TERM", "dumb")
    assert table(HEAD, ROWS, ["step"]) == PLAIN


def test_no_cell_looks_like_a_row() -> None:
    made = table(("team", "cost"), [("a\ntotal", "5.00\n0.00"), ("b", "1.00")])
    assert made.splitlines() == ["team      cost", "a\\ntotal  5.00\\n0.00", "b         1.00"]


def test_no_rows_are_no_table() -> None:
    assert table(HEAD, []) == ""
