"""What a scan says holds, against Great Expectations on the same generated table: one never says yes to a no.

A sample runs by default; `--sweep` runs 300 tables for each translated expectation.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from data_contracts.arrow_rows import Data
from data_contracts.contract.engine import decided
from data_contracts.contract.questions import ScanQuestion
from data_contracts.contract.suites import INTERPOLATIONS
from data_contracts.contract.translation import _RULES, translated
from tests.support.expectations import RESOURCES, E, in_files, plan, reader, run, unread

BIG = [2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63)]
SMALL = st.integers(-3, 4)
NUMBERS = st.one_of(SMALL, st.sampled_from([0.1, 0.5, -0.0, 1.5, 2.5, 1e-300, 1e16, -1e16, 1e308]))
TEXTS = st.sampled_from(
    ["", "a", "ab", "é", "e\u0301", "👩‍👩‍👧", "a\n", " a", "1", "1.0", "nan", "None", "a\0b", "٣", "ß", "A"]
)
SHORTS = st.one_of(SMALL.map(float), st.floats(width=32, allow_nan=True), st.just(0.10000000149011612))
REALS = st.one_of(NUMBERS.map(float), st.floats(allow_nan=True), st.sampled_from([float("nan"), float("inf")]))
DAYS = st.dates(datetime.date(1600, 1, 1), datetime.date(2400, 1, 1))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "whole": (pa.int64(), st.one_of(SMALL, st.sampled_from(BIG))),
    "few": (pa.int64(), SMALL),
    "byte": (pa.int8(), SMALL),
    "unsigned": (pa.uint32(), st.integers(0, 3) | st.just(2**32 - 1)),
    "real": (pa.float64(), REALS),
    "tame": (pa.float64(), st.floats(-1e6, 1e6)),
    "short": (pa.float32(), SHORTS),
    "text": (pa.string(), st.one_of(TEXTS, st.text(max_size=3))),
    "long": (pa.large_string(), TEXTS),
    "letter": (pa.string(), st.sampled_from(["a", "b"])),
    "halves": (pa.float64(), st.sampled_from([0.0, -0.0, 0.5, 1.0, 1.5])),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), DAYS),
    "at": (pa.timestamp("us"), st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(2400, 1, 1))),
    "zoned": (pa.timestamp("ns", "UTC"), st.none() | st.just(datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC))),
    "least": (pa.timestamp("ns"), st.sampled_from([-(2**63), 0])),
}  # fmt: skip
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A table of up to 8 rows, of which columns are all null, without nulls or in between."""
    rows = draw(st.integers(1, 8))
    columns = []
    for kind, values in COLUMNS.values():
        cell = draw(st.sampled_from([values, values, values | st.none(), st.none()]))
        cells = draw(st.lists(cell, min_size=rows, max_size=rows))
        columns.append(pa.array(cells, pa.int64()).cast(kind) if kind == pa.timestamp("ns") else pa.array(cells, kind))
    return pa.table(columns, schema=SCHEMA)


def _range(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    flags = {"strict_min": st.booleans(), "strict_max": st.booleans()}
    two = st.tuples(numbers, numbers).map(lambda pair: {"min_value": min(pair), "max_value": max(pair)})
    one = st.one_of(numbers.map(lambda low: {"min_value": low}), numbers.map(lambda high: {"max_value": high}))
    return st.builds(lambda bounds, more: {**bounds, **more}, one | two, st.fixed_dictionaries({}, optional=flags))


MOSTLY = st.fixed_dictionaries({}, optional={"mostly": st.sampled_from([0, 0.1, 0.25, 1 / 3, 0.5, 0.75, 0.9, 1, 1.0])})
SETS = st.one_of(
    st.lists(SMALL | st.sampled_from(BIG), min_size=1, max_size=5),
    st.lists(NUMBERS, min_size=1, max_size=5),
    st.lists(st.sampled_from([0.1, 0.10000000149011612, 0.5, 1]), min_size=1, max_size=3),
    st.lists(TEXTS, min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=1, max_size=2),
)
NAMES = st.lists(st.sampled_from([*SCHEMA.names, "other"]), min_size=1, max_size=len(SCHEMA.names) + 1)
ATOMS = st.sampled_from(
    ["a", "b", "1", ".", "[a-c]", "[^a]", "[A-Za-z0-9_]", "[^\\n]", "é", "\\.", "[à-ÿ]", " ", "\\n", "[\\]a-]",
     "\\x00", "ß", "[^ -~]"]
)  # fmt: skip
PARTS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.builds(lambda one, sign: f"(?:{one}){sign}", inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])),
        st.builds(lambda one, other: f"({one}|{other})", inner, inner),
    ),
    max_leaves=4,
)
REGEX = st.builds(
    lambda start, parts, end: start + parts + end,
    st.sampled_from(["", "", "^", "\\A"]),
    PARTS,
    st.sampled_from(["", "", "$", "\\Z", "|^$", "(b|$)"]),
)
SOME = st.sampled_from(
    [{"column": "letter", "value_set": [*"ba"]}, {"column": "letter", "value_set": [*"a"]},
     {"column": "flag", "value_set": [True, False]}, {"column": "halves", "value_set": [0, 0.5, 1, 1.5, -0.0]},
     {"column": "few", "value_set": [*range(-3, 5)]}]
)  # fmt: skip
REGEXES = st.lists(REGEX, min_size=1, max_size=2)
PAIR = ["both_values_are_missing", "either_value_is_missing", "neither"]
MANY = ["all_values_are_missing", "any_value_is_missing", "never"]
SUMMABLE = [["few", "byte", "whole", "unsigned"], ["real", "tame", "halves"], SCHEMA.names]
ALIKE = [*SUMMABLE, ["text", "long", "letter"]]


def _several(least: int, most: int, ignored: list[str], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arguments with so many columns, mostly of one kind."""
    required = {name: values for name, values in more.items() if name == "sum_total"}
    optional = {name: values for name, values in more.items() if name != "sum_total"}
    optional["ignore_row_if"] = st.sampled_from(ignored)

    def named(names: list[str], more: dict[str, Any]) -> dict[str, Any]:
        return {**({"column_A": names[0], "column_B": names[1]} if most == 2 else {"column_list": names}), **more}

    alike = SUMMABLE if required else ALIKE
    lists = [st.lists(st.sampled_from(one), min_size=least, max_size=most, unique=True) for one in alike]
    return st.builds(named, st.one_of(*lists), st.fixed_dictionaries(required, optional=optional))


def _compared(name: str, operators: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    one = st.builds(
        lambda operator, value: {"operator": operator, "parameter": value}, st.sampled_from(operators), values
    )
    many = st.builds(
        lambda operator, listed: {"operator": operator, "parameter": listed},
        st.sampled_from(["IN", "NOT_IN"]),
        st.lists(values, min_size=1, max_size=3),
    )
    return (one | many).map(lambda more: {"type": "comparison", "column": {"name": name}, **more})


SIGNS = ["==", "!=", "<", "<=", ">", ">="]
LEAVES = st.one_of(
    *(_compared(name, SIGNS, SMALL | st.sampled_from([0.5, 2.0, 2**53 - 1])) for name in ("few", "whole", "unsigned")),
    *(_compared(name, SIGNS, st.sampled_from([0.5, 0, 2, -1.5])) for name in ("real", "halves", "short")),
    *(_compared(name, ["==", "!=", "<"], st.sampled_from(["a", "", "1", "A"])) for name in ("text", "letter")),
    st.booleans().map(
        lambda flag: {"type": "comparison", "column": {"name": "flag"}, "operator": "==", "parameter": flag}
    ),
    st.builds(
        lambda name, null: {"type": "nullity", "column": {"name": name}, "is_null": null},
        st.sampled_from(["few", "text", "at", "least"]),
        st.booleans(),
    ),
)
GROUPS = st.builds(
    lambda kind, parts: {"type": kind, "conditions": parts},
    st.sampled_from(["and", "or"]),
    st.lists(LEAVES, min_size=2, max_size=3),
)
# As pandas writes them.
TEXTUAL = st.sampled_from(
    ["few > 1", "real != 0.5", "letter == 'a' and few < 2", "few in [1, 2] or halves >= -1.5", "flag == True",
     "letter not in ['a', 'b']", "few != 1", "few > 1 & few < 3", "few.isnull()"]
).map(lambda text: {"row_condition": text, "condition_parser": "pandas"})  # fmt: skip
CONDITIONS = st.one_of((LEAVES | GROUPS).map(lambda tree: {"row_condition": tree}), TEXTUAL)
SHARES = st.sampled_from([0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1, 1.0]) | st.floats(0, 1)
ENDS = (
    st.tuples(NUMBERS, NUMBERS).map(sorted)
    | st.tuples(st.none(), NUMBERS).map(list)
    | st.tuples(NUMBERS, st.none()).map(list)
)
QUANTILES = st.builds(
    lambda pairs, more: {
        "quantile_ranges": {"quantiles": [share for share, _ in pairs], "value_ranges": [ends for _, ends in pairs]},
        **more,
    },
    st.lists(st.tuples(SHARES, ENDS), min_size=1, max_size=3, unique_by=lambda pair: pair[0]),
    st.fixed_dictionaries({}, optional={"allow_relative_error": st.sampled_from([False, *INTERPOLATIONS])}),
)
COUNTS = _range(st.integers(0, 15))
EXACTLY = st.fixed_dictionaries({"value": st.integers(0, 15)})
ARGUMENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "column_values_to_not_be_null": MOSTLY,
    "column_values_to_be_null": MOSTLY,
    "column_values_to_be_between": _range(NUMBERS),
    "column_value_lengths_to_be_between": _range(st.integers(0, 4)),
    "column_value_lengths_to_equal": st.fixed_dictionaries({"value": st.integers(0, 3)}),
    "column_values_to_be_in_set": SETS.map(lambda values: {"value_set": values}),
    "column_values_to_not_be_in_set": SETS.map(lambda values: {"value_set": values}),
    "column_values_to_be_unique": MOSTLY,
    **dict.fromkeys(
        [f"column_{what}_to_be_between" for what in ("min", "max", "mean", "sum", "stdev", "median")], _range(NUMBERS)
    ),
    "column_quantile_values_to_be_between": QUANTILES,
    "column_unique_value_count_to_be_between": _range(st.integers(0, 9)),
    "column_proportion_of_unique_values_to_be_between": _range(st.sampled_from([0, 0.25, 1 / 3, 0.5, 2 / 3, 1, 1.0])),
    "column_values_to_be_of_type": st.sampled_from(["int64", "float64", "int32", "int"]).map(
        lambda name: {"type_": name}
    ),
    **dict.fromkeys(
        [f"column_distinct_values_to_{what}_set" for what in ("be_in", "contain", "equal")],
        SETS.map(lambda values: {"value_set": values}) | SOME,
    ),
    "column_values_to_match_regex": REGEX.map(lambda regex: {"regex": regex}),
    "column_values_to_not_match_regex": REGEX.map(lambda regex: {"regex": regex}),
    "column_values_to_match_regex_list": st.fixed_dictionaries(
        {"regex_list": REGEXES}, optional={"match_on": st.sampled_from(["any", "all"])}
    ),
    "column_values_to_not_match_regex_list": REGEXES.map(lambda listed: {"regex_list": listed}),
    "column_values_to_be_in_type_list": st.sampled_from([["int64"], ["float64", "int64"], ["str"], []]).map(
        lambda names: {"type_list": names}
    ),
    "column_pair_values_to_be_equal": _several(2, 2, PAIR),
    "column_pair_values_a_to_be_greater_than_b": _several(2, 2, PAIR, or_equal=st.booleans()),
    "compound_columns_to_be_unique": _several(2, 3, MANY),
    "select_column_values_to_be_unique_within_record": _several(2, 3, MANY),
    "multicolumn_sum_to_equal": _several(2, 3, MANY, sum_total=st.sampled_from([0, 1, 2, 1.5, 2**53])),
    "column_to_exist": st.sampled_from([{}, {"column": "other"}]),
    "table_row_count_to_be_between": COUNTS,
    "table_row_count_to_equal": EXACTLY,
    "table_column_count_to_be_between": COUNTS.map(lambda bounds: {k: v for k, v in bounds.items() if "value" in k}),
    "table_column_count_to_equal": EXACTLY | st.just({"value": len(SCHEMA.names)}),
    "table_columns_to_match_ordered_list": (NAMES | st.just(SCHEMA.names)).map(lambda names: {"column_list": names}),
    "table_columns_to_match_set": st.fixed_dictionaries(
        {"column_set": NAMES | st.just(SCHEMA.names[::-1])}, optional={"exact_match": st.booleans()}
    ),
}


@st.composite
def asked(draw: st.DrawFn, name: str) -> dict[str, Any]:
    kwargs = draw(ARGUMENTS[name])
    if "mostly" in _RULES[f"expect_{name}"].arguments:
        kwargs = {**draw(MOSTLY), **kwargs}
    rule = _RULES[f"expect_{name}"]
    if "column" in rule.arguments and "column" not in kwargs:
        plans = {one: plan(E(name, column=one, **kwargs), SCHEMA) for one in SCHEMA.names}
        fitting = [one for one in plans if not rule.kinds or isinstance(plans[one], ScanQuestion)]
        kwargs["column"] = draw(st.sampled_from(fitting or SCHEMA.names))
    return E(name, **kwargs)


@st.composite
def asked_of_some(draw: st.DrawFn, name: str) -> dict[str, Any]:
    one = draw(asked(name))
    return {**one, "kwargs": {**one["kwargs"], **draw(CONDITIONS)}}


def test_every_translated_expectation_is_compared() -> None:
    assert {f"expect_{name}" for name in ARGUMENTS} == set(_RULES)


# These decide nothing near a bound, above 2**53, for most types, or with `mostly`; the others always do.
LEFT_OPEN = ("pair", "record", "multicolumn", "distinct_values", "type_list", "sum", "mean", "stdev", "median",
             "quantile", "min_to", "max_to", "of_type", "be_null")  # fmt: skip


def compare(table: pa.Table, expectations: list[dict[str, Any]]) -> list[bool]:
    """For each that is translated, whether one scan shows that it holds. Asserts that GX says the same of each, and of
    those that the scan finds broken, in the same words.
    """
    plans = translated(dict(enumerate(expectations)), table.schema)
    questions = {index: plan for index, plan in plans.items() if isinstance(plan, ScanQuestion)}
    if not questions:
        return []
    entries = dict(enumerate(expectations))
    data = Data(table.schema, reader(table, 3))
    rows, verdicts = decided(questions, entries, data, [], RESOURCES)
    of_columns = any(measure.column for question in questions.values() for measure in question.measures)
    files = Data(table.schema, unread if of_columns else reader(table), in_files(table, 5))
    assert decided(questions, entries, files, [], RESOURCES) == (rows, verdicts)
    theirs = run(table, *expectations, resources=None)
    assert rows == theirs.rows == table.num_rows
    for index in questions:
        case = (expectations[index], table.to_pydict())
        if index in verdicts:
            ours = [one.model_copy(update={"index": index}) for one in [verdicts[index]] if one]
            assert ours == [one for one in theirs.failures if one.index == index], case
        else:
            assert any(part in expectations[index]["type"] for part in LEFT_OPEN), case
    return [index in verdicts and verdicts[index] is None for index in questions]


NAN, INF = float("nan"), float("inf")
EDGES = pa.table(
    {
        "whole": pa.array([2**53, 2**53 + 1, None, 3], pa.int64()),
        "real": [NAN, None, -0.0, INF],
        "pair": pa.array([1.5, 2.5, 2.5, NAN], from_pandas=False),
        "short": pa.array([0.1, NAN, 0.5, None], pa.float32()),
        "text": ["", "e\u0301", "a\0b", None],
        "twice": ["a", "a ", "A", None],
        "flag": [True, None, False, True],
        "least": pa.array([-(2**63), 0, None, 1], pa.int64()).cast(pa.timestamp("ns")),
    }
)
AT_AN_EDGE = [
    *(E(f"column_values_to_{what}be_null", column=name, mostly=mostly)
      for what in ("", "not_") for name in EDGES.column_names for mostly in (0.25, 0.5, 0.51, 0.75)),
    *(E("column_values_to_be_between", column=name, mostly=mostly, **bounds)
      for name in ("whole", "real", "pair", "short") for mostly in (0.66, 0.67, 1)
      for bounds in ({"min_value": 2**53}, {"max_value": 2**53}, {"min_value": 0, "max_value": 2.5},
                     {"min_value": 0, "strict_min": True}, {"max_value": 2.5, "strict_max": True})),
    *(E(f"column_values_to_{what}be_in_set", column="short", value_set=values, mostly=0.5)
      for what in ("", "not_") for values in ([0.1, 0.5], [0.10000000149011612, 0.5], [0, 1])),
    *(E("column_values_to_be_in_set", column="whole", value_set=values, mostly=0.66)
      for values in ([2**53, 3], [2**53 + 1, 3], [2**53 + 2, 3])),
    *(E("column_values_to_be_in_set", column="real", value_set=values) for values in ([0], [0, 1.5])),
    *(E("column_values_to_be_in_set", column="text", value_set=values) for values in (["", "é", "a\0b"], ["", "a"])),
    *(E("column_value_lengths_to_be_between", column="text", min_value=low, max_value=3) for low in (0, 1, 2)),
    *(E("column_value_lengths_to_equal", column="text", value=2, mostly=mostly) for mostly in (0.33, 0.34)),
    *(E("column_values_to_be_unique", column=name) for name in EDGES.column_names if name != "least"),
    *(E("column_unique_value_count_to_be_between", column=name, min_value=count, max_value=count)
      for name in EDGES.column_names if name != "least" for count in (2, 3)),
    *(E(f"column_{what}_to_be_between", column=name, **bounds)
      for what in ("min", "max", "mean", "sum", "stdev") for name in ("whole", "real", "pair")
      for bounds in ({"min_value": 0}, {"max_value": 2.5}, {"min_value": 2.5}, {"max_value": 6.5})),
]  # fmt: skip


def test_a_scan_shows_what_great_expectations_says_at_the_edges() -> None:
    shown = compare(EDGES, AT_AN_EDGE)
    assert len(shown) == len(AT_AN_EDGE)
    assert shown.count(True) > 50 < shown.count(False)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_what_float64_counts_is_left(sign: int) -> None:
    """As a float64, 2**53 + 1 is 2**53, the bound."""
    bound = {"max_value": 2**53} if sign == 1 else {"min_value": -(2**53)}
    table = pa.table({"a": pa.array([None, sign * (2**53 + 1)], pa.int64())})
    assert compare(table, [E("column_sum_to_be_between", column="a", **bound)]) == [False]


# The cases are small; shrinking one takes minutes here.
FEW = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def compared(name: str, how: settings, each: int, ask: Any) -> list[bool]:
    """What scans showed of generated tables, with `each` generated expectations for a table."""
    shown: list[bool] = []

    @how
    @given(table=tables(), expectations=st.lists(ask(name), min_size=each, max_size=each))
    def case(table: pa.Table, expectations: list[dict[str, Any]]) -> None:
        shown.extend(compare(table, expectations))

    case()
    return shown


# With a condition on rows: each that is about rows, and one of each kind of aggregate.
OF_SOME = [
    *(name for name in ARGUMENTS if "column_value" in name and "type" not in name),
    *(name for name in ARGUMENTS if name.split("_")[0] in ("compound", "select", "multicolumn") or "pair" in name),
    "column_max_to_be_between", "column_mean_to_be_between", "column_unique_value_count_to_be_between",
]  # fmt: skip
CASES = [
    *(pytest.param(name, asked, id=name) for name in ARGUMENTS),
    *(pytest.param(name, asked_of_some, id=f"{name} of some rows") for name in OF_SOME),
]


@pytest.mark.parametrize(("name", "ask"), CASES)
def test_a_scan_shows_what_great_expectations_says(name: str, ask: Any) -> None:
    compared(name, FEW, 3, ask)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "ask"), CASES)
def test_a_scan_shows_what_great_expectations_says_of_300_cases(name: str, ask: Any) -> None:
    shown = compared(name, settings(FEW, max_examples=140, derandomize=False), 6, ask)
    print(f"{name}: {len(shown)} cases, {shown.count(True)} hold")
    assert len(shown) >= 300
    assert 15 <= shown.count(True) <= len(shown) - 15
