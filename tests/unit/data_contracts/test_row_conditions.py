"""Conditions on rows: what is read, and what is refused, with its place; nothing else ever runs."""

from __future__ import annotations

import pytest

from data_contracts.expressions import ConditionError, read_condition
from tests.support.refusals import refusal


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("age > 60 and country == 'DE'", ("age", "country")),
        ("income / household < 1000", ("income", "household")),
        ("18 <= age < 30", ("age",)),
        ("not (a or b)", ("a", "b")),
        ("col('odd name') in ['x', 'y']", ("odd name",)),
        ("a in (1, -2)", ("a",)),
        ("a is None or b is not None or c == None", ("a", "b", "c")),
        ("-a + 2 * (b - 1) >= 0.5", ("a", "b")),
        ("flag", ("flag",)),
        ("flag == True", ("flag",)),
        ("(a > 1 and\n b < 2)", ("a", "b")),
    ],
)
def test_what_is_read(text: str, columns: tuple[str, ...]) -> None:
    assert read_condition(text).columns == columns


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("age >", "cannot be read at character 6: invalid syntax"),
        ("", "cannot be read at character 1"),
        ("a > 1; b", "cannot be read at character 6"),
        ("a = 1", "cannot be read at character"),
        ("1 < 2", "names no column"),
        ("a + 1", "character 1: 'a + 1' is not a condition"),
        ("a > 1 and é.real > 2", "character 11: 'é.real' is not permitted; use columns"),
        ("__import__('os').system('id') == 0", "character 1: \"__import__('os').system('id')\" is not permitted"),
        ("open('/etc/passwd') == 'x'", "is not permitted"),
        ("read_csv('x') > 1", "is not permitted"),
        ("col(name) > 1", "is not permitted"),
        ("col('a', 'b') > 1", "is not permitted"),
        ("(lambda: 1)() > 0", "is not permitted"),
        ("[a for a in b] == 1", "is not permitted"),
        ("f'{a}' == 'x'", "is not permitted"),
        ("a ** 9 > 1", "'a ** 9' is not permitted"),
        ("a % 2 == 0", "'a % 2' is not permitted"),
        ("(a := 1) > 0", "is not permitted"),
        ("a[0] > 1", "is not permitted"),
        ("a if b else c", "is not a condition"),
        ("a in b", "'b' must be a list of values"),
        ("a in []", "must be a list of values"),
        ("a in [b]", "'b' must be a number or a text"),
        ("a in [1, None]", "'None' is not a number or a text"),
        ("a in ['x', b'x']", "is not a number or a text"),
        ("a > None", "compares with None"),
        ("a is 3", "`is` is for None alone"),
        ("a in [1] in [2]", "joins several comparisons"),
        ("a > 1e999", "'1e999' is not a finite number"),
        ("a > 99999999999999999999", "is larger than any number of 64 bits"),
        ("a > 1j", "is not a number or a text"),
        ("a in [" + "1," * 900 + "1]" + " " * 2000, "at most 2,000 characters"),
        ("a > " + "-" * 100 + "1", "is nested deeper than 40 levels"),
        ("(" * 300 + "a" + ")" * 300, "cannot be read"),
        ("a > '\x00'", "cannot be read"),
    ],
)
def test_what_is_refused(text: str, sentence: str) -> None:
    said = refusal(ConditionError, read_condition, text)
    assert sentence in said
    assert len(said) < 250
