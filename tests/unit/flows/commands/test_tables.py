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


def test_plain_text_is_aligned_and_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert table(HEAD, ROWS, ["step"]) == PLAIN
    assert len(table(("a", "b"), [("x" * 300, "y " * 300)]).splitlines()) == 2


@pytest.mark.parametrize(("kind", "shown"), [("xterm", RULED), ("dumb", PLAIN)])
def test_a_terminal(kind: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "46")
    assert table(HEAD, ROWS, ["step"]) == shown


def test_no_cell_looks_like_a_row() -> None:
    made = table(("team", "cost"), [("a\ntotal", "5.00\n0.00"), ("b", "1.00")])
    assert made.splitlines() == ["team      cost", "a\\ntotal  5.00\\n0.00", "b         1.00"]


def test_no_rows_are_no_table() -> None:
    assert table(HEAD, []) == ""
