"""The aggregates for expectations that compare columns of a row with each other, or rows by several columns.

`ignore_row_if` leaves rows out as Great Expectations does: a row that is left out is neither counted nor broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from data_contracts.contract.findings import EXAMPLES
from data_contracts.contract.measures import Broken, Measure, Question
from data_contracts.contract.translation.questions import EXACT, Arguments, Kind, mostly_of

# What takes the place of a missing value in the examples, where it is marked.
_FILLER: dict[Kind, str] = {"whole": "0", "real": "0.0", "short": "0.0", "text": "''", "flag": "false"}
_PAIR = {"both_values_are_missing": " AND ", "either_value_is_missing": " OR ", "neither": ""}
_MANY = {"all_values_are_missing": " AND ", "any_value_is_missing": " OR ", "never": ""}
IGNORED = {*_PAIR, *_MANY}


def pair(operator: str) -> Callable[[Arguments, Sequence[str], Sequence[Kind]], Question | None]:
    """The question whether two columns of one kind compare so in each row, with `operator` = or >."""

    def build(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind]) -> Question | None:
        if set(kinds) not in ([{"whole"}, {"real"}, {"text"}] if operator == "=" else [{"whole"}, {"real"}]):
            return None
        sign = ">=" if operator == ">" and kwargs.get("or_equal") else operator
        return _in_each_row(kwargs, names, kinds, f"{{c}} {sign} {{c1}}", _kept(kwargs, _PAIR, names))

    return build


def different(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind]) -> Question | None:
    """All values in a row are different; missing ones are equal to each other."""
    if set(kinds) not in ({"whole"}, {"real"}, {"text"}):
        return None
    words = _words(names)
    pairs = [(one, other) for at, one in enumerate(words) for other in words[at + 1 :]]
    condition = " AND ".join(f"{one} IS DISTINCT FROM {other}" for one, other in pairs)
    return _in_each_row(kwargs, names, kinds, condition, _kept(kwargs, _MANY, names))


def sum_equal(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind]) -> Question | None:
    """The sum of a row's whole numbers is so much; of two float64, which add up to the same in any order."""
    if set(kinds) != {"whole"} and list(kinds) != ["real", "real"]:
        return None
    total = " + ".join(f"{word}::{'HUGEINT' if kinds[0] == 'whole' else 'DOUBLE'}" for word in _words(names))
    condition = f"({total})::DOUBLE = {float(kwargs['sum_total'])!r}::DOUBLE"
    return _in_each_row(kwargs, names, kinds, condition, _kept(kwargs, _MANY, names))


def compound(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind]) -> Question:
    """No two rows have the same values; missing ones are equal to each other."""
    kept, listed = _kept(kwargs, _MANY, names), ", ".join(_words(names))
    groups = f"(SELECT count(*) AS k FROM {{rows}} WHERE {kept} GROUP BY {listed})"
    counted = f"SELECT {listed}, {{n}}, count(*) OVER (PARTITION BY {listed}) AS k FROM {{rows}} WHERE {kept}"
    more = tuple(names[1:])
    measures = (
        Measure("coalesce(sum(k), 0)::BIGINT", names[0], rows=groups, more=more),
        Measure("coalesce(sum(CASE WHEN k > 1 THEN k END), 0)::BIGINT", names[0], rows=groups, more=more),
    )
    examples = (_first(names, kinds, "true", f"({counted}) WHERE k > 1"),)
    return Question(measures, mostly_of(kwargs), Broken(lambda of, broken: (of, broken), examples))


def _in_each_row(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind], condition: str, kept: str) -> Question:
    """The question whether a condition holds in the rows that are kept; of a missing value, it does not.

    Whole numbers beside missing ones are float64 to pandas: beyond what that holds exactly, nothing is shown.
    """
    broken = f"({kept}) AND NOT coalesce({condition}, false)"
    more = tuple(names[1:])
    size = " + ".join(f"coalesce(max(abs({word}::HUGEINT)), 0)" for word in _words(names)) if "whole" in kinds else "0"
    measures = tuple(
        Measure(sql, names[0], more=more)
        for sql in (f"count(CASE WHEN {kept} THEN 1 END)", f"count(CASE WHEN {broken} THEN 1 END)", size)
    )
    enough = mostly_of(kwargs)

    def holds(of: int, count: int, size: int) -> bool:
        return size < EXACT and enough(of, count)

    def counts(of: int, count: int, size: int) -> tuple[int, int] | None:
        return (of, count) if size < EXACT else None

    return Question(measures, holds, Broken(counts, (_first(names, kinds, broken),)))


def _words(names: Sequence[str]) -> list[str]:
    return ["{c" + (str(at) if at else "") + "}" for at in range(len(names))]


def _kept(kwargs: Arguments, rules: dict[str, str], names: Sequence[str]) -> str:
    """The condition that `ignore_row_if` does not leave a row out."""
    joined = rules[kwargs.get("ignore_row_if", next(iter(rules)))]
    return f"NOT ({joined.join(f'{word} IS NULL' for word in _words(names))})" if joined else "true"


def _first(names: Sequence[str], kinds: Sequence[Kind], condition: str, rows: str | None = None) -> Measure:
    """The first rows that meet a condition: their numbers, and for each column its values and whether they are missing.

    Not structures: DuckDB would sort them by bytes of its own, in which -0.0 is 0.0. Nor values alone: it leaves out
    those that are missing.
    """
    of = f"CASE WHEN {condition} THEN {{n}} END"
    parts = [f"'n': min({of}, {EXAMPLES})"]
    for at, (word, kind) in enumerate(zip(_words(names), kinds, strict=True)):
        parts.append(f"'v{at}': arg_min(coalesce({word}, {_FILLER[kind]}), {of}, {EXAMPLES})")
        parts.append(f"'m{at}': arg_min({word} IS NULL, {of}, {EXAMPLES})")
    sql = "{{" + ", ".join(parts) + "}}"
    found = Measure(sql, names[0], more=tuple(names[1:]))
    return found if rows is None else found._replace(rows=rows)


def values_of(shown: dict[str, Any], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """What the first rows hold, a value for each column.

    Args:
        shown: the value of `_first`'s measure.
    """
    columns = [
        [None if missing else value for value, missing in zip(shown[f"v{at}"], shown[f"m{at}"], strict=True)]
        for at in range(len(names))
    ]
    return list(zip(*columns, strict=True))
