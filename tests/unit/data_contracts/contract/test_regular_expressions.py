"""Regular expressions that are written for RE2 find the same texts as Python's; the others are left to Python."""

from __future__ import annotations

import re

import duckdb
import pytest

from data_contracts.contract.translation import for_re2

TEXTS = [
    "", "a", "ab", "abab", "a\n", "\n", "b\na", "é", "\u0665", "a.c", "a\0b", "ABC-12", "👩‍👩", "aaa", " a", "ß]",
    "\x1c", "\x0b", "\u00a0", "\u3000", "\u00b2", "\u2167", "_", "aaaa aaaa aa!", "x" * 200 + "b", "\u0663\u0664 1",
]  # fmt: skip
SAME = [
    "a", "^a$", "^(ab)+$", "^a?$|^é", r"a\.c", "a.c", "[^a]", "[a-z]{2,3}", r"\Aa\Z", "^[A-Z]{3}-[0-9]+$", "(a|b|)b",
    r"\x00", "[]-]", "a{2}", "(?:a|b)*?b", "^.$", r"^[^\n]*$", "|a", "^$", "a$",
    r"\d", r"^\w+$", r"\s", r"[^\d]", r"^\D+$", r"\S", r"[\w.]+-\d{2}", r"^\W", r"^(\w+\s?)*$",
    r"[\d\s]{2,40}|\w{200}b",
]  # fmt: skip


@pytest.mark.parametrize("regex", SAME)
def test_re2_finds_what_python_finds(regex: str) -> None:
    written = for_re2(regex)
    assert written.isascii()
    assert "'" not in written
    found = duckdb.execute(f"SELECT regexp_matches(unnest(?::VARCHAR[]), '{written}')", [TEXTS]).fetchall()
    assert [one for (one,) in found] == [bool(re.search(regex, text)) for text in TEXTS]


OTHER = {
    "too many of a class": r"(?:\w{30}){30}", "a boundary": r"\ba", "case": "(?i)a",
    "lines": "(?m)^a", "dot and line break": "(?s).", "a reference": r"(a)\1", "ahead": "(?=a)", "behind": "(?<=b)a",
    "possessive": "a*+", "atomic": "(?>a|ab)c", "an end before something": "a$\n", "an end inside": "(a$|b)c",
    "a repeated end": "(?:a|^)+", "a repeated nothing": "(?:a?)*", "an empty group": "a()", "a surrogate": "\ud800",
    "a range over surrogates": "[a-\uffff]", "not a regular expression": "(", "too many": "(?:a{100}){100}",
    "a set of sets": "[[a]", "a flag of a group": "(?i:a)", "long": "a" * 501,
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER)
def test_what_may_mean_something_else_is_left_to_python(case: str) -> None:
    assert for_re2(OTHER[case]) is None
