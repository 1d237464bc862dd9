"""The model card: what stands in it for facts that are there, are not there, or would be markup."""

from __future__ import annotations

import pytest

from tasks.export.card import escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a|b", "a&#124;b"),
        ("<script>", "&lt;script>"),
        ("a\n## Use", "a\\x0a## Use"),
        ("\x1b[31m", "\\x1b&#91;31m"),
        ("`code`", "&#96;code&#96;"),
        ("ü & co", "ü &amp; co"),
    ],
)
def test_a_foreign_text_is_not_markup(text: str, shown: str) -> None:
    assert escaped(text) == shown
