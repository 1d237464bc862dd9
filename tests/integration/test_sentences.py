"""What users read about bad input is, to the word, what tests/golden/sentences.json says.

If a wording is to change, write the file anew with `python -m tests.support.sentences`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import sentences


@pytest.mark.parametrize("table", sentences.TABLES)
@pytest.mark.usefixtures("home")
def test_every_sentence_is_as_it_is_kept(table: str, tmp_path: Path) -> None:
    assert sentences.TABLES[table](tmp_path) == sentences.kept()[table]


def test_every_table_is_kept_and_no_sentence_has_two_lines() -> None:
    assert sentences.kept().keys() == sentences.TABLES.keys()
    for table in sentences.kept().values():
        assert [name for name, sentence in table.items() if not sentence or "\n" in sentence] == []
