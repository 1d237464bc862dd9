"""Quotes of CSV files that do not end as they must, against a reader that looks at one character after another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_contracts.errors import UsageError
from infra.sources.tables import Quotes


def fault(data: bytes, cuts: list[int]) -> str | None:
    """What `Quotes` says of a file that is read in pieces."""
    quotes = Quotes("rows.csv")
    ends = sorted({*cuts, len(data)})
    try:
        for start, end in zip([0, *ends], ends, strict=False):
            quotes.feed(data[start:end])
        quotes.finish()
    except UsageError as error:
        return str(error)
    return None


def slowly(text: str) -> str | None:
    """What is wrong, found one character after another."""
    inside, at, text = False, 0, f"{text}\n"
    while at < len(text):
        if not inside:
            inside = text[at] == '"' and (at == 0 or text[at - 1] in ",\n")
        elif text[at] == '"' and text[at + 1] == '"':
            at += 1
        elif text[at] == '"':
            inside = False
            if text[at + 1] not in ", \n":
                return "goes on after its closing quote"
        at += 1
    return "has no closing quote" if inside else None


@given(st.text('a", \n', max_size=20), st.lists(st.integers(0, 20), max_size=3))
def test_finds_the_faults_of_any_text_however_it_is_cut(text: str, cuts: list[int]) -> None:
    found, wanted = fault(text.encode(), [min(cut, len(text)) for cut in cuts]), slowly(text)
    assert (found is None) == (wanted is None)
    assert found is None or (wanted or "") in found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('x\n"a\nb\n', "begins in line 2 of the file has no closing quote"),
        ('x\n5" pipe\n"a""\nb\n', "begins in line 3 of the file has no closing quote"),
        ('x\na\n"say \\"yes\\""\n', "begins in line 3 of the file goes on after its closing quote"),
        ('x,y\n1,"a\n2,"b\n', "begins in line 2 of the file goes on after its closing quote"),
    ],
)
def test_names_the_line_where_the_value_begins(text: str, sentence: str) -> None:
    assert sentence in (fault(text.encode(), []) or "")


def test_other_characters_can_separate_and_quote() -> None:
    quotes = Quotes("rows.csv", ";", "'")
    quotes.feed(b"x;y\n'a;b';5\" pipe\n'it''s';2\n")
    quotes.feed(b"'5;6\n")
    with pytest.raises(UsageError, match="begins in line 4 of the file has no closing quote"):
        quotes.finish()
