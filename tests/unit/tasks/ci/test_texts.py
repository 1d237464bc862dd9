"""Texts on one line of visible characters."""

from __future__ import annotations

import pytest

from tasks.ci.texts import plain


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("a\n::error::b\r\u2028c", None, "a ::error::b c"),
        ("\x1b[31mred\u202e\x00\ud800", None, "[31mred"),
        ("ärger ✅ 10 %", None, "ärger ✅ 10 %"),
        ("abcdef", 4, "abc…"),
        ("abcd", 4, "abcd"),
        ("", 4, ""),
    ],
)
def test_a_text_is_one_visible_line(text: str, most: int | None, expected: str) -> None:
    assert plain(text, most) == expected
