"""Commands called in the test's own process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.cli import main


def output_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints that ends with `code`: its answer, or its error."""
    assert main(list(words)) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def json_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """What a command with `--json` prints that ends with `code`, its answer or its error, as a value."""
    assert main(list(words)) == code
    return json.loads(capsys.readouterr().out)
