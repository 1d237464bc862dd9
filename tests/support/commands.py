"""Commands called in the test's own process."""

from __future__ import annotations

import pytest

from flows.cli import main


def output_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints that ends with `code`: its answer, or its error."""
    assert main(list(words)) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out
