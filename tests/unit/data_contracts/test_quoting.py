"""What a sentence quotes of a foreign exception: all of it, or type, file and line where rows are sensitive."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_contracts import quoting
from data_contracts.errors import SpecError, UsageError
from data_contracts.quoting import (
    absent_shown,
    column_shown,
    columns_shown,
    describe,
    escaped,
    format_links,
    nearest_name,
    shown,
    text_of,
    type_and_text,
    type_shown,
    value_shown,
    withhold,
)

SECRET = "Jane Doe"


def raised(folder: Path) -> BaseException:
    """An exception of code in `folder`, chained to another and with a note, all of them with the secret."""
    path = folder / "mine.py"
    source = (
        "def look(value):\n    try:\n        {}[value]\n    except KeyError as error:\n"
        "        wrapped = ValueError(f'bad {value}\\nsecond line')\n        wrapped.add_note(f'note {value}')\n"
        "        raise wrapped from error\n"
    )
    path.write_text(source)
    space: dict = {}
    exec(compile(source, str(path), "exec"), space)
    try:
        space["look"](SECRET)
    except ValueError as error:
        return error
    raise AssertionError


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log.txt"
    monkeypatch.setenv(quoting.LOG, str(path))
    return path


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("a\n::error::b\r\u2028c", None, "a\\n::error::b\\r\\u2028c"),
        ("\x1b[31mred\u202e\x00\ud800\uffff", None, "\\x1b[31mred\\u202e\\x00\\ud800\\uffff"),
        ("x ##[set-output name=a]b", None, "x \\u0023#[set-output name=a]b"),
        ("##vso[task] ##teamcity[a] ## [a]", None, "\\u0023#vso[task] \\u0023#teamcity[a] ## [a]"),
        ("ärger ✅ 10 % 👩\u200d🔬", None, "ärger ✅ 10 % 👩\u200d🔬"),
        ("1\xa0000 a\u200bb \ufeffid\u3000x\u00ady", None, "1\\xa0000 a\\u200bb \\ufeffid\\u3000x\\xady"),
        ("caf\u00e9 cafe\u0301", None, "caf\u00e9 cafe\\u0301"),
        ("हिन्दी ไทย 日本", None, "हिन्दी ไทย 日本"),
        ("p\u0430ris \u0421\u0421ode", None, "p\\u0430ris \\u0421\\u0421ode"),
        ("Москва Αθήνα μm x\u200dy", None, "Москва Αθήνα μm x\\u200dy"),
        ("abcdef", 4, "abc…"),
        ("\n\n\n\n", 4, "\\n\\…"),
        ("abcd", 4, "abcd"),
        ("", 4, ""),
    ],
)
def test_a_value_is_one_line_that_nothing_obeys(text: str, most: int | None, expected: str) -> None:
    assert escaped(text, most) == expected
    assert escaped(expected, most) == expected


def test_an_error_is_one_line() -> None:
    error = UsageError("a\n::set-output name=b::c", remedy="do\nthis")
    assert str(error) == "a\\n::set-output name=b::c do\\nthis"
    assert UsageError(error.message).message == error.message
    assert str(SpecError("s.yaml:1: a: wrong.\ns.yaml:2: b: wrong.")).count("\n") == 1


def test_nothing_is_withheld_without_a_log(tmp_path: Path) -> None:
    error = raised(tmp_path)
    assert text_of(error) == f"bad {SECRET} second line"
    assert type_and_text(error) == f"ValueError: bad {SECRET} second line"
    assert describe(error, tmp_path) == f"ValueError: bad {SECRET}"
    assert shown(SECRET) == repr(SECRET)
    assert withhold("words", "others") == "words"
    whole = traceback.TracebackException.from_exception(error)
    assert format_links(whole) == "".join(whole.format()).rstrip()


@pytest.mark.parametrize("say", [text_of, type_and_text, describe])
def test_a_withheld_text_is_a_type_a_line_and_the_log(
    say, log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = say(raised(tmp_path))
    assert said.startswith(f"ValueError at {tmp_path.name}/mine.py:7; its text is in {log} on ")
    assert SECRET not in said
    kept = capfd.readouterr().err
    for text in (f"KeyError: '{SECRET}'", f"bad {SECRET}", "second line", f"note {SECRET}", "mine.py"):
        assert text in kept


def test_the_project_s_own_file_stands_for_a_text(log: Path, tmp_path: Path) -> None:
    assert describe(raised(tmp_path), tmp_path).startswith("ValueError at mine.py:7; ")


def test_a_withheld_traceback_has_every_link_and_no_text(log: Path, tmp_path: Path) -> None:
    whole = traceback.TracebackException.from_exception(raised(tmp_path))
    lines = format_links(whole).splitlines()
    place = f'  File "{tmp_path}/mine.py"'
    assert [line for line in lines if line.startswith(place)] == [
        f"{place}, line 3, in look",
        f"{place}, line 7, in look",
    ]
    assert [line for line in lines if not line.startswith(" ")] == [
        "Traceback (most recent call last):",
        "KeyError",
        "Traceback (most recent call last):",
        "ValueError",
    ]


def test_values_are_masked_and_texts_go_to_the_log(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert shown(SECRET) == "•••"
    assert withhold(SECRET, "GX raised").startswith(f"GX raised; its text is in {log} on ")
    assert SECRET in capfd.readouterr().err


NESTED = pa.struct([(SECRET, pa.struct([(SECRET, pa.int64())]))])
NAMES_WITHHELD = "2 columns, whose names are withheld because data.sensitive is set"
# what is shown, whether texts are withheld, how it reads
COLUMNS: list[tuple[Callable[[], str], bool, str]] = [
    (lambda: columns_shown(["a", "b"]), False, "a, b"),
    (lambda: columns_shown(["a", SECRET], sensitive=True), False, NAMES_WITHHELD),
    (lambda: columns_shown(["a", SECRET]), True, NAMES_WITHHELD),
    (lambda: column_shown("'a'", 0), False, "'a'"),
    (lambda: column_shown(SECRET, 1), True, "2 (its name is withheld because data.sensitive is set)"),
    # The keys of objects may be values.
    (lambda: type_shown(NESTED), True, "struct<•••>"),
    (lambda: type_shown(pa.list_(NESTED)), True, "list<item: struct<•••>>"),
    (lambda: type_shown(pa.list_(pa.int8())), True, "list<item: int8>"),
    (lambda: type_shown(pa.timestamp("us", "UTC")), True, "timestamp[us, tz=UTC]"),
]


@pytest.mark.parametrize(("show", "withheld", "expected"), COLUMNS, ids=[expected for *_, expected in COLUMNS])
def test_names_of_columns_and_of_types(
    show: Callable[[], str], withheld: bool, expected: str, request: pytest.FixtureRequest
) -> None:
    if withheld:
        request.getfixturevalue("log")
    assert show() == expected


VALUES = [
    (1, "1"), ("1", "'1'"), (1.0, "1.0"), ("1.0", "'1.0'"), (True, "True"), ("True", "'True'"), (None, "null"),
    ("None", "'None'"), ("null", "'null'"), (float("nan"), "null"), ("nan", "'nan'"), ("", "''"), (" a", "' a'"),
    ("a b", "a b"), ("1 000", "1 000"), ("a\xa0", "'a\\xa0'"), (np.int64(3), "3"), (np.str_("3"), "'3'"),
    (pa.scalar("x"), "x"), ([1, "1", None], "[1, '1', null]"), ("2026-01-01", "2026-01-01"), ("1e5", "'1e5'"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[repr(value) for value, _ in VALUES])
def test_values_that_look_alike_are_told_apart(value: object, expected: str) -> None:
    assert value_shown(value) == expected


NAMES = [
    ("label ", ["label"], "'label '; it has 'label'"),
    ("label", ["label "], "'label'; it has 'label '"),
    ("label", ["lab\u0435l"], "'label'; it has 'lab\\u0435l'"),
    ("\u0430", ["a", "b"], "'\\u0430'; it has 'a', b"),
    ("a", ["\u0430"], "'a'; it has '\\u0430'"),
    ("caf\u00e9", ["cafe\u0301"], "'caf\\xe9'; it has 'cafe\\u0301'"),
    ("id", ["\ufeffid", ""], "'id'; it has '\\ufeffid', ''"),
    ("Label", ["label"], "'Label'; it has 'label'"),
    ("a  b", ["a b"], "'a  b'; it has 'a b'"),
    ("z", ["a,b", "c"], "'z'; it has 'a,b', c"),
]


@pytest.mark.parametrize(("name", "there", "expected"), NAMES, ids=[ascii(name[0]) for name in NAMES])
def test_names_that_look_alike_are_told_apart(name: str, there: list[str], expected: str) -> None:
    assert absent_shown(name, there) == expected


def test_the_name_that_was_meant() -> None:
    assert nearest_name("\u0430ge", ["page", "age "]) == "age "
    assert nearest_name("lable", ["label", "x"]) == "label"
    assert nearest_name("q", ["label"]) is None
