"""What a person sees while a stage works: a line in a terminal, nothing elsewhere, and a bar in Prefect."""

from __future__ import annotations

import io
import sys

import pytest

from data_contracts.messages.raw_data import ShardProgress
from tasks.run import progress

RECORD = ShardProgress(phase="reading", rows=1500, total=3000, rows_per_s=100, share=0.5, seconds_left=75.2)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "reading 1,500 of 3,000 rows, 100 rows/s, 1 min 15 s left"),
        ({"total": None, "seconds_left": None}, "reading 1,500 rows, 100 rows/s"),
        ({"seconds_left": 3.4}, "reading 1,500 of 3,000 rows, 100 rows/s, 3 s left"),
    ],
)
def test_a_report_in_words(changes, sentence):
    assert progress.sentence(RECORD.model_copy(update=changes)) == sentence


def test_the_line_replaces_itself_and_is_gone_at_the_end(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.shown("shard") as show:
        show(RECORD)
        show(RECORD.model_copy(update={"rows": 2000}))
    text = sys.stderr.getvalue()
    assert text.count("\n") == 0
    assert text.split("\r\x1b[2K")[2].startswith("shard: reading 2,000 of")
    assert text.endswith("\r\x1b[2K")


def test_nothing_is_written_where_nobody_looks_but_listeners_hear(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    heard = []
    with progress.listening(heard.append), progress.shown("shard") as show:
        show(RECORD)
    with progress.shown("shard") as show:
        show(RECORD)
    assert heard == [RECORD]
    assert progress.percent(RECORD) == 50
    assert sys.stderr.getvalue() == ""
