"""The engine's verdicts against the truth, computed in plain Python with fractions, for values that float64 rounds,
that are missing, and that lie on a bound.
"""

from __future__ import annotations

import datetime
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.contract import frames
from data_contracts.contract.engine import broken_rows
from data_contracts.contract.frames import CONTEXT
from data_contracts.contract.scan import Resources
from data_contracts.errors import SpecError
from tests.support.expectations import RESOURCES, E, reader, run, suite

UTC = datetime.UTC
Values = list[Any]


def fraction(value: Any) -> Any:
    """A number, or a number of a suite, as it is written."""
    return None if value is None else Fraction(str(value))


def moment(value: Any) -> Any:
    """A date or time, or its text in a suite."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return datetime.datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Type:
    """Values of an Arrow type, and what they are in truth.

    Attributes:
        value: a value, of few that are near each other.
        literal: what a suite may write for a value.
        truth: a value or a literal as it is compared.
        is_number: whether it is a number, and not a time.
    """

    kind: pa.DataType
    value: Callable[[random.Random], Any]
    literal: Callable[[random.Random, Any], Any]
    truth: Callable[[Any], Any]
    is_number: bool = False


def decimals(precision: int, scale: int) -> Type:
    kind = (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
    large = 10 ** (precision - 1)

    def value(draw: random.Random) -> Decimal:
        near = draw.choice((0, 0, 1, 10**scale, large // 3)) * draw.choice((1, -1))
        units = near + draw.randint(-3, 3) * draw.choice((1, 1, 10 ** max(scale - 1, 0)))
        return Decimal(units).scaleb(-scale, CONTEXT)

    def literal(draw: random.Random, value: Decimal) -> Any:
        return draw.choice((float, str, lambda one: round(float(one)), lambda one: float(round(float(one), 2))))(value)

    return Type(kind, value, literal, fraction, is_number=True)


def _whole(draw: random.Random) -> int:
    return draw.choice((0, 2**53, 2**63, 2**64 - 4)) + draw.randint(0, 3)


def _day(draw: random.Random) -> datetime.date:
    return draw.choice(
        (datetime.date(1, 1, 1), datetime.date(1582, 10, 14), datetime.date(2024, 2, 28), datetime.date(9999, 12, 28))
    ) + datetime.timedelta(draw.randint(0, 3))


def _moment(draw: random.Random) -> datetime.datetime:
    day = _day(draw)
    return datetime.datetime(day.year, day.month, day.day, draw.choice((0, 23)), microsecond=draw.randint(0, 1))


def _iso(draw: random.Random, value: Any) -> str:
    return str(value.isoformat())


TYPES: dict[str, Callable[[random.Random], Type]] = {
    "decimal128": lambda draw: decimals(draw.choice((31, 38)), draw.choice((0, 1, 2, 5, 10, 18, 30))),
    "short decimal128": lambda draw: decimals(draw.choice((5, 12, 15, 16)), draw.choice((0, 1, 2, 4))),
    "decimal256": lambda draw: decimals(draw.choice((39, 76)), draw.choice((0, 1, 2, 5, 10, 18, 30))),
    "uint64": lambda _: Type(pa.uint64(), _whole, lambda draw, value: draw.choice((int, str))(value), fraction, True),
    "date32": lambda _: Type(pa.date32(), _day, _iso, moment),
    "time": lambda _: Type(pa.timestamp("us"), _moment, _iso, moment),
    "time with a zone": lambda _: Type(pa.timestamp("us", "Europe/Berlin"),
                                       lambda draw: _moment(draw).replace(tzinfo=UTC), _iso, moment),
}  # fmt: skip

# What an expectation comes to: whether it holds, and the rows that break it, if it is about rows.
Truth = tuple[bool, list[int] | None]


@dataclass
class Case:
    """Expectations of one table, each with its truth."""

    type: Type
    draw: random.Random

    def __post_init__(self) -> None:
        draw, kind = self.draw, self.type
        pool = [kind.value(draw) for _ in range(draw.randint(1, 5))]
        rows = draw.randint(1, 12)
        missing = draw.choice((0.0, 0.0, 0.3, 1.0 if draw.random() < 0.2 else 0.1))
        self.a, self.b = ([None if draw.random() < missing else draw.choice(pool) for _ in range(rows)] for _ in "ab")
        self.k = [draw.randint(0, 2) for _ in range(rows)]
        self.pool = pool
        self.table = pa.table(
            {"a": pa.array(self.a, kind.kind), "A": pa.array(self.b, kind.kind), "k": pa.array(self.k, pa.int64())}
        )

    def asked(self) -> Iterator[tuple[dict[str, Any], Truth]]:
        """Each expectation, with its truth."""
        for name, kwargs, truth in self._named():
            condition, rows = self._condition()
            extra = {**condition}
            if truth.__name__ == "mapped":
                extra["mostly"] = self.draw.choice((1.0, 1.0, 0.5, 0.7))
            yield E(name, **kwargs, **extra), truth(rows, extra.get("mostly", 1.0))

    def _condition(self) -> tuple[dict[str, Any], list[int]]:
        """A condition on rows, or none, and the rows that meet it."""
        a, b, truth = self.a, self.b, self.type.truth
        both = lambda n: a[n] is not None and b[n] is not None  # noqa: E731
        conditions: dict[str, tuple[str, Callable[[int], bool]]] = {
            "": ("", lambda n: True),
            "k": ("k < 2", lambda n: self.k[n] < 2),
            "null": ("A.notnull()", lambda n: b[n] is not None),
            "column": ("a == A", lambda n: both(n) and truth(a[n]) == truth(b[n])),
        }
        kind = self.draw.choice(("", "", "k", "null", "value", "column"))
        if kind == "value":
            value = self.literal()
            sign, compare = (">=", operator.ge) if isinstance(value, float | int) else ("==", operator.eq)
            text = f"A in [{value!r}]" if sign == "==" and self.draw.random() < 0.5 else f"A {sign} {value!r}"
            conditions[kind] = text, lambda n: b[n] is not None and compare(truth(b[n]), truth(value))
        text, meets = conditions[kind]
        condition = {"row_condition": text, "condition_parser": "pandas"} if text else {}
        return condition, [n for n in range(len(a)) if meets(n)]

    def literal(self) -> Any:
        return self.type.literal(self.draw, self.draw.choice(self.pool))

    def literals(self) -> list[Any]:
        return [self.literal() for _ in range(self.draw.randint(1, 3))]

    def _bounds(self, values: Sequence[Any]) -> tuple[dict[str, Any], Callable[[Any], bool]]:
        """Bounds of literals, and whether a value as it is compared keeps them."""
        draw, truth = self.draw, self.type.truth
        low, high = sorted((draw.choice(values), draw.choice(values)), key=truth)
        which = draw.choice(("both", "low", "high"))
        strict = {name: draw.random() < 0.3 for name in ("strict_min", "strict_max")}
        kwargs = {**({"min_value": low} if which != "high" else {}), **({"max_value": high} if which != "low" else {})}

        def keeps(value: Any) -> bool:
            above = which == "high" or (value > truth(low) if strict["strict_min"] else value >= truth(low))
            below = which == "low" or (value < truth(high) if strict["strict_max"] else value <= truth(high))
            return bool(above and below)

        return {**kwargs, **strict}, keeps

    def _named(self) -> Iterator[tuple[str, dict[str, Any], Callable[[list[int], float], Truth]]]:
        a, b, truth = self.a, self.b, self.type.truth
        of_a, pair = {"column": "a"}, {"column_A": "a", "column_B": "A"}

        def rows_among(keeps: Callable[[int, list[int]], bool], counts: Callable[[int], bool]) -> Callable[..., Truth]:
            """`keeps`: of a row, among all that count."""

            def mapped(rows: list[int], mostly: float) -> Truth:
                of = [n for n in rows if counts(n)]
                broken = [n for n in of if not keeps(n, of)]
                return not of or (float(len(of)) - float(len(broken))) / float(len(of)) >= mostly, broken

            return mapped

        def rows_that(keeps: Callable[[int], bool], counts: Callable[[int], bool]) -> Callable[..., Truth]:
            return rows_among(lambda n, of: keeps(n), counts)

        def whole(holds: Callable[[list[Any]], bool]) -> Callable[..., Truth]:
            def aggregate(rows: list[int], mostly: float) -> Truth:
                return holds([truth(a[n]) for n in rows if a[n] is not None]), None

            return aggregate

        there = lambda n: a[n] is not None  # noqa: E731
        yield "column_values_to_not_be_null", of_a, rows_that(there, lambda n: True)
        yield "column_values_to_be_null", of_a, rows_that(lambda n: a[n] is None, lambda n: True)
        listed = self.literals()
        known = {truth(one) for one in listed}
        of_set = {"column": "a", "value_set": listed}
        yield "column_values_to_be_in_set", of_set, rows_that(lambda n: truth(a[n]) in known, there)
        yield "column_values_to_not_be_in_set", of_set, rows_that(lambda n: truth(a[n]) not in known, there)
        yield "column_distinct_values_to_be_in_set", of_set, whole(lambda values: set(values) <= known)
        yield "column_distinct_values_to_contain_set", of_set, whole(lambda values: known <= set(values))
        yield "column_distinct_values_to_equal_set", of_set, whole(lambda values: set(values) == known)

        def most_common(values: list[Any]) -> bool:
            counts = Counter(values)
            modes = {one for one, count in counts.items() if count == max(counts.values())}
            return len(modes) == 1 and modes <= known

        yield "column_most_common_value_to_be_in_set", of_set, whole(most_common)
        count = self.draw.randint(1, 4)
        yield (
            "column_unique_value_count_to_be_between",
            {"column": "a", "max_value": count},
            whole(lambda values: len(set(values)) <= count),
        )
        yield (
            "column_proportion_of_unique_values_to_be_between",
            {"column": "a", "min_value": 0.5},
            whole(lambda values: bool(values) and 2 * len(set(values)) >= len(values)),
        )
        unique = rows_among(lambda n, of: [truth(a[m]) for m in of].count(truth(a[n])) == 1, there)
        yield "column_values_to_be_unique", of_a, unique
        either = lambda n: there(n) or b[n] is not None  # noqa: E731
        both = lambda n: there(n) and b[n] is not None  # noqa: E731
        yield (
            "column_pair_values_to_be_equal",
            pair,
            rows_that(lambda n: both(n) and truth(a[n]) == truth(b[n]), either),
        )
        pairs = [[self._plain(self.draw.choice(self.pool)) for _ in "ab"] for _ in range(2)]
        yield (
            "column_pair_values_to_be_in_set",
            {**pair, "value_pairs_set": pairs, "ignore_row_if": "either_value_is_missing"},
            rows_that(lambda n: [truth(a[n]), truth(b[n])] in [[*map(truth, one)] for one in pairs], both),
        )
        yield (
            "select_column_values_to_be_unique_within_record",
            {"column_list": ["a", "A"], "ignore_row_if": "any_value_is_missing"},
            rows_that(lambda n: truth(a[n]) != truth(b[n]), both),
        )
        values = lambda n: (truth(a[n]), truth(b[n]))  # noqa: E731
        compound = rows_among(lambda n, of: [*map(values, of)].count(values(n)) == 1, either)
        yield "compound_columns_to_be_unique", {"column_list": ["a", "A"]}, compound
        yield from self._ordered(rows_among, rows_that, whole, there, either, both)

    def _plain(self, value: Any) -> Any:
        """What a suite writes for a value of a pair, where a text stays one."""
        if not self.type.is_number:
            return self.type.literal(random.Random(1), value)
        return int(value) if value == int(value) else float(value)

    def _ordered(
        self, rows_among: Any, rows_that: Any, whole: Any, there: Any, either: Any, both: Any
    ) -> Iterator[tuple[str, dict[str, Any], Callable[[list[int], float], Truth]]]:
        a, b, truth = self.a, self.b, self.type.truth
        literals = [self.literal() for _ in range(3)]
        bounds, keeps = self._bounds(literals)
        yield (
            "column_values_to_be_between",
            {"column": "a", **bounds},
            rows_that(lambda n, keeps=keeps: keeps(truth(a[n])), there),
        )
        or_equal = self.draw.random() < 0.5
        yield (
            "column_pair_values_a_to_be_greater_than_b",
            {"column_A": "a", "column_B": "A", "or_equal": or_equal},
            rows_that(
                lambda n: both(n) and (truth(a[n]) >= truth(b[n]) if or_equal else truth(a[n]) > truth(b[n])), either
            ),
        )
        falls = lambda n, of: any(truth(a[n]) < truth(a[before]) for before, at in pairwise(of) if at == n)  # noqa: E731
        increasing = rows_among(lambda n, of: not falls(n, of), there)
        yield "column_values_to_be_increasing", {"column": "a"}, increasing
        for name, least in (("min", min), ("max", max)):
            bounds, keeps = self._bounds(literals)
            yield (
                f"column_{name}_to_be_between",
                {"column": "a", **bounds},
                whole(lambda values, keeps=keeps, least=least: bool(values) and keeps(least(values))),
            )
        if not self.type.is_number:
            return
        mean = lambda values: sum(values) / len(values)  # noqa: E731
        middle = lambda values: mean(sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1])  # noqa: E731
        present = [fraction(one) for one in a if one is not None]
        for name, of in (("mean", mean), ("median", middle), ("sum", sum)):
            exact = [_written(of(present))] if present else []
            bounds, keeps = self._bounds([*literals, *exact, *exact])
            empty = name == "sum" and keeps(0)
            yield (
                f"column_{name}_to_be_between",
                {"column": "a", **bounds},
                whole(lambda values, of=of, keeps=keeps, empty=empty: keeps(of(values)) if values else empty),
            )

        def variance(values: list[Fraction]) -> Fraction:
            return sum((one - mean(values)) ** 2 for one in values) / (len(values) - 1)

        limit = abs(next((one for one in literals if isinstance(one, float | int)), 1.5))
        yield (
            "column_stdev_to_be_between",
            {"column": "a", "max_value": limit},
            whole(lambda values: len(values) > 1 and variance(values) <= fraction(limit) ** 2),
        )
        total = self.draw.choice([fraction(x) + fraction(y) for x, y in zip(a, b, strict=True) if x and y] or [0])
        written = float(_written(total))
        yield (
            "multicolumn_sum_to_equal",
            {"column_list": ["a", "A"], "sum_total": written},
            rows_that(lambda n: both(n) and truth(a[n]) + truth(b[n]) == fraction(written), either),
        )


def _written(value: Any) -> str:
    """A fraction as a suite may write it; rounded, if it has no end."""
    with localcontext(CONTEXT):
        exact = Decimal(Fraction(value).numerator) / Decimal(Fraction(value).denominator)
        return str(exact if len(exact.as_tuple().digits) < 100 else round(exact, 20))


def differences(name: str, tables: int) -> tuple[int, list[str]]:
    """How many cases were decided, and those that were decided otherwise than in truth."""
    cases, wrong = 0, []
    draw = random.Random(f"{name} {tables > 1:d}")
    for _ in range(tables):
        case = Case(TYPES[name](draw), draw)
        asked = list(case.asked())
        scanned = draw.random() < 0.5
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames, "BLOCK_ROWS", draw.randint(2, 20))
            outcome = run(case.table, *(entry for entry, _ in asked), resources=RESOURCES if scanned else None)
        failures = {failure.index: failure for failure in outcome.failures}
        entries = dict(enumerate(suite(*(entry for entry, _ in asked))["expectations"]))
        of_rows = {at: entries[at] for at, (_, (holds, rows)) in enumerate(asked) if rows is not None and not holds}
        found = broken_rows(of_rows, reader(case.table), case.table.num_rows, case.table.schema, [])
        for at, (entry, (holds, rows)) in enumerate(asked):
            cases += 1
            said = failures[at].sentence if at in failures else "holds"
            if holds != (at not in failures):
                wrong.append(f"{entry} on {case.a}, {case.b}, {case.k}: {said}; in truth {holds}, {rows}")
            elif not holds and rows is not None and not failures[at].row_numbers == rows == list(found.get(at, [])):
                wrong.append(f"{entry} on {case.a}, {case.b}, {case.k}: {said}; in truth rows {rows}, {found.get(at)}")
    return cases, wrong


@pytest.mark.parametrize("tables", [1, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TYPES)
def test_tables_of_each_type_are_decided_as_in_truth(name: str, tables: int) -> None:
    assert differences(name, tables)[1] == []


PRICES = [None, Decimal("25.00"), Decimal("12.50"), None, Decimal("37.50"), Decimal("50.50"), Decimal("0.10")]
MONEY = pa.table(
    {
        "price": pa.array(PRICES, pa.decimal128(12, 2)),
        "shop": ["a", "b", "a", "a", "a", "b", "b"],
    }
)


def test_the_rows_of_a_condition_and_missing_values_do_not_change_a_mean() -> None:
    """Great Expectations takes the values of other rows: it aligns by number what it chose by position."""
    mean = E("column_mean_to_be_between", column="price", row_condition="shop == 'a'", min_value=25, max_value=25)
    total = E("column_sum_to_be_between", column="price", min_value=125.6, max_value=125.6)
    assert run(MONEY, mean, total).accepted


def test_great_expectations_logs_no_value_that_it_rounds(caplog: pytest.LogCaptureFixture) -> None:
    table = pa.table({"id": pa.array([Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2))})
    outcome = run(
        table,
        E("column_max_to_be_between", column="id", max_value=1),
        E("column_values_to_be_in_set", column="id", value_set=["12345678901234567890.13"]),
    )
    assert len(outcome.failures) == 2
    assert "1234567890" not in caplog.text


@pytest.fixture(scope="module")
def own_classes() -> dict[str, type]:
    """Expectations of a user: the mean of a column, and whether values are whole."""
    from great_expectations.execution_engine import PandasExecutionEngine
    from great_expectations.expectations.expectation import BatchExpectation, ColumnAggregateExpectation
    from great_expectations.expectations.expectation import ColumnMapExpectation as ColumnMap
    from great_expectations.expectations.metrics import ColumnMapMetricProvider, column_condition_partial

    class WholeOfTruth(ColumnMapMetricProvider):
        condition_metric_name = "column_values.whole_of_truth"

        @column_condition_partial(engine=PandasExecutionEngine)
        def _pandas(cls: Any, column: Any, **kwargs: Any) -> Any:
            return column % 1 == 0

    class ExpectWholeOfTruth(ColumnMap):
        map_metric = "column_values.whole_of_truth"

    class ExpectMeanOfTruth(ColumnAggregateExpectation):
        metric_dependencies = ("column.mean",)
        max_value: float = 0.0

        def _validate(self, metrics: Any, runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
            return {"success": metrics["column.mean"] <= self.max_value, "result": {}}

    class ExpectTableOfTruth(BatchExpectation):
        metric_dependencies = ("table.row_count",)

        def _validate(self, metrics: Any, runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
            return {"success": True, "result": {}}

    return {f"checks.{one.__name__}": one for one in (ExpectWholeOfTruth, ExpectMeanOfTruth, ExpectTableOfTruth)}


def _own(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"class_path": f"checks.{name}", "kwargs": kwargs, "severity": "critical"}


@pytest.mark.parametrize("kind", [pa.decimal128(12, 2), pa.decimal128(38, 20), pa.decimal256(70, 30)], ids=str)
def test_a_class_of_a_user_gets_decimals_that_great_expectations_computes_with(
    kind: pa.DataType, own_classes: dict[str, type]
) -> None:
    table = pa.table({"price": pa.array(PRICES, kind), "shop": MONEY["shop"]})
    shop = {"column": "price", "row_condition": "shop == 'a'"}
    outcome = run(
        table,
        _own("ExpectMeanOfTruth", **shop, max_value=25),
        _own("ExpectMeanOfTruth", **shop, max_value=24.9),
        _own("ExpectWholeOfTruth", column="price", row_condition="price == 25.0"),
        _own("ExpectWholeOfTruth", column="price"),
        load=lambda: own_classes,
    )
    assert list(zip(outcome.indices, [one.row_numbers for one in outcome.failures], strict=True)) == [
        (1, []), (3, [2, 4, 5, 6]),
    ]  # fmt: skip


TWINS = pa.table(
    {"Price": [1, 2, 3], "price": [10, 20, 30], "`price`": [7, 8, 9], "STRASSE": [1, 1, 1], "straße": [2, 3, 4]}
)


# expectation; None if it holds, or the rows that break it and the values of the first
OF_TWINS: list[tuple[dict[str, Any], tuple[list[int], list[str]] | None]] = [
    (E("column_pair_values_to_be_equal", column_A="Price", column_B="price"), ([0, 1, 2], ["Price=1, price=10"])),
    (E("column_pair_values_a_to_be_greater_than_b", column_A="price", column_B="Price"), None),
    (E("multicolumn_sum_to_equal", column_list=["STRASSE", "straße", "`price`"], sum_total=10),
     ([1, 2], ["STRASSE=1, straße=3, `price`=8"])),
    (E("column_max_to_be_between", column="price", row_condition="Price < 3", max_value=20), None),
    (E("column_to_exist", column="PRICE"), ([], [])),
    (E("table_columns_to_match_set", column_set=["Price", "PRICE"], exact_match=False), ([], [])),
]  # fmt: skip


@pytest.mark.parametrize("resources", [None, RESOURCES], ids=["Great Expectations", "scan"])
def test_columns_whose_names_differ_only_in_case_are_told_apart(resources: Resources | None) -> None:
    outcome = run(TWINS, *(asked for asked, _ in OF_TWINS), resources=resources)
    failures = dict(zip(outcome.indices, outcome.failures, strict=True))
    assert {at: (one.row_numbers, one.values[:1]) for at, one in failures.items()} == {
        at: broken for at, (_, broken) in enumerate(OF_TWINS) if broken
    }
    assert failures[0].column == "Price, price"


def test_a_class_of_a_user_never_gets_one_column_for_another(own_classes: dict[str, type]) -> None:
    single = _own("ExpectMeanOfTruth", column="price", row_condition="Price < 3", max_value=15)
    assert run(TWINS, single, load=lambda: own_classes).accepted
    with pytest.raises(SpecError, match=r"expectations.0: checks.ExpectTableOfTruth gets the columns Price and price"):
        run(TWINS, _own("ExpectTableOfTruth"), load=lambda: own_classes)
