"""The engine against Great Expectations, run over the whole frame, and against itself with other batches."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from data_contracts.contract import frames
from data_contracts.contract.findings import Outcome
from tests.support.expectations import TABLE, E, one, run

SAME_AS_GX = [
    E("column_values_to_be_between", column="whole", min_value=2, max_value=9),
    E("column_values_to_be_between", column="whole", min_value=2, max_value=9, mostly=0.6),
    E("column_values_to_be_between", column="real", min_value=0.5, strict_min=True),
    E("column_values_to_be_between", column="gaps", max_value=5),
    E("column_values_to_be_between", column="whole", max_value=5, row_condition="pair < 7", condition_parser="pandas"),
    E("column_values_to_be_between", column="gaps", max_value=5, row_condition="pair<7", condition_parser="pandas"),
    E("column_values_to_be_between", column="whole", max_value=5, row_condition='col("real") > 0.9',
      condition_parser="great_expectations"),
    E("column_values_to_be_in_set", column="text", value_set=["ab", "zz"]),
    E("column_values_to_be_in_set", column="flag", value_set=[True]),
    E("column_values_to_be_in_set", column="whole", value_set=[1, 2, 3, 4, 5, 6], mostly=0.8),
    E("column_values_to_not_be_in_set", column="whole", value_set=[100]),
    E("column_values_to_not_be_null", column="gaps"),
    E("column_values_to_not_be_null", column="gaps", mostly=0.8),
    E("column_values_to_be_null", column="real"),
    E("column_values_to_be_null", column="real", mostly=0.1),
    E("column_values_to_match_regex", column="text", regex="^ab"),
    E("column_values_to_not_match_regex", column="text", regex="9$"),
    E("column_values_to_match_regex_list", column="text", regex_list=["^a", "^z"]),
    E("column_values_to_match_strftime_format", column="text", strftime_format="%Y-%m-%d"),
    E("column_values_to_be_dateutil_parseable", column="text"),
    E("column_values_to_be_json_parseable", column="text"),
    E("column_value_lengths_to_be_between", column="text", min_value=2, max_value=3),
    E("column_value_lengths_to_equal", column="whole", value=1),
    E("column_values_to_be_unique", column="whole"),
    E("column_values_to_be_increasing", column="pair"),
    E("column_values_to_be_decreasing", column="real", strictly=True),
    E("column_value_z_scores_to_be_less_than", column="whole", threshold=2, double_sided=True),
    E("column_values_to_be_of_type", column="whole", type_="int64"),
    E("column_values_to_be_of_type", column="real", type_="int64"),
    E("column_values_to_be_in_type_list", column="text", type_list=["str", "int64"]),
    E("column_pair_values_to_be_equal", column_A="whole", column_B="pair"),
    E("column_pair_values_a_to_be_greater_than_b", column_A="whole", column_B="gaps", or_equal=True),
    E("column_pair_values_to_be_in_set", column_A="whole", column_B="pair", value_pairs_set=[[3, 1], [1, 2]]),
    E("multicolumn_sum_to_equal", column_list=["whole", "pair"], sum_total=8),
    E("select_column_values_to_be_unique_within_record", column_list=["whole", "pair", "gaps"]),
    E("compound_columns_to_be_unique", column_list=["text", "flag"]),
    E("column_mean_to_be_between", column="real", max_value=2),
    E("column_median_to_be_between", column="gaps", min_value=4),
    E("column_stdev_to_be_between", column="whole", max_value=3),
    E("column_min_to_be_between", column="whole", min_value=2),
    E("column_max_to_be_between", column="whole", max_value=50),
    E("column_sum_to_be_between", column="gaps", max_value=5),
    E("column_quantile_values_to_be_between", column="whole",
      quantile_ranges={"quantiles": [0.1, 0.9], "value_ranges": [[0, 1], [1, 2]]}),
    E("column_unique_value_count_to_be_between", column="whole", max_value=5),
    E("column_proportion_of_unique_values_to_be_between", column="whole", min_value=0.9),
    E("column_distinct_values_to_be_in_set", column="text", value_set=["ab"]),
    E("column_distinct_values_to_contain_set", column="text", value_set=["nope"]),
    E("column_most_common_value_to_be_in_set", column="text", value_set=["zz"]),
    E("column_to_exist", column="whole"),
    E("table_row_count_to_equal", value=10),
    E("table_row_count_to_be_between", max_value=9),
    E("table_column_count_to_equal", value=6),
    E("table_columns_to_match_set", column_set=["whole", "gaps"], exact_match=False),
    E("table_columns_to_match_ordered_list", column_list=["whole"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> dict[int, Any]:
    """What Great Expectations says of the whole table, by its public interface."""
    import great_expectations as gx
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    asset = context.data_sources.add_pandas("pandas").add_dataframe_asset("frame")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": TABLE.to_pandas()})
    asked = [
        ExpectationConfiguration(type=one["type"], kwargs=one["kwargs"], meta={"at": at}).to_domain_obj()
        for at, one in enumerate(SAME_AS_GX)
    ]
    found = batch.validate(gx.ExpectationSuite(name="s", expectations=asked), result_format="COMPLETE")
    return {one.expectation_config.meta["at"]: one for one in found.results}


@pytest.fixture(scope="module")
def ours() -> Outcome:
    """What the engine says, of batches and blocks of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "BLOCK_ROWS", 3)
        return run(TABLE, *SAME_AS_GX, rows=2)


@pytest.mark.parametrize(
    ("at", "expectation"), enumerate(SAME_AS_GX), ids=lambda e: json.dumps(e)[:90] if isinstance(e, dict) else ""
)
def test_says_what_great_expectations_says_of_the_whole_frame(
    at: int, expectation: dict[str, Any], theirs: dict[int, Any], ours: Outcome
) -> None:
    assert not theirs[at].exception_info.get("raised_exception")
    failure = next((one for one in ours.failures if one.index == at), None)
    assert (failure is None) == theirs[at].success
    if failure is not None and "unexpected_index_list" in theirs[at].result:
        assert failure.rows == theirs[at].result["unexpected_count"]
        assert failure.row_numbers == theirs[at].result["unexpected_index_list"]


columns = st.fixed_dictionaries(
    {
        "a": st.one_of(st.none(), st.integers(-5, 5), st.sampled_from([2**53 + 1, -(2**60)])),
        "b": st.one_of(st.none(), st.integers(-5, 5)),
        "x": st.one_of(st.none(), st.floats(-5, 5)),
        "s": st.one_of(st.none(), st.sampled_from(["", "a", "ab", "1", "2.5", "n/a", "2024-02-30"])),
        "t": st.one_of(st.none(), st.datetimes()),
        "d": st.one_of(st.none(), st.dates()),
        "f": st.one_of(st.none(), st.booleans()),
    }
)
SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.int8()), ("x", pa.float64()), ("s", pa.string()), ("t", pa.timestamp("us")),
     ("d", pa.date32()), ("f", pa.bool_())]
)  # fmt: skip
EVERYTHING = [
    *(E("column_values_to_be_between", column=name, min_value=-2, max_value=3) for name in "abxs"),
    *(E("column_values_to_be_between", column=name, min_value="1900-01-01", max_value="2100-06-01") for name in "td"),
    *(E("column_values_to_be_in_set", column=name, value_set=[0, 1, 2]) for name in "abxf"),
    E("column_values_to_be_in_set", column="d", value_set=["2000-01-01"]),
    E("column_values_to_be_in_set", column="f", value_set=[True], mostly=0.5),
    *(E("column_values_to_not_be_null", column=name, mostly=0.7) for name in SCHEMA.names),
    *(E("column_value_lengths_to_be_between", column=name, max_value=3) for name in SCHEMA.names),
    *(E("column_values_to_match_regex", column=name, regex="0") for name in SCHEMA.names),
    *(E("column_values_to_match_strftime_format", column=name, strftime_format="%Y-%m-%d") for name in "sd"),
    *(E("column_values_to_be_unique", column=name) for name in SCHEMA.names),
    E("column_values_to_be_increasing", column="a"),
    E("column_values_to_be_between", column="a", max_value=0, row_condition="b > 0", condition_parser="pandas"),
    E(
        "column_values_to_be_between",
        column="x",
        max_value=0,
        row_condition="not b > 0 or a != b",
        condition_parser="pandas",
    ),
    E("column_pair_values_a_to_be_greater_than_b", column_A="a", column_B="b"),
    E("column_pair_values_to_be_equal", column_A="a", column_B="x", mostly=0.2),
    E("multicolumn_sum_to_equal", column_list=["a", "b"], sum_total=0),
    E("select_column_values_to_be_unique_within_record", column_list=["a", "b", "x"], ignore_row_if="never"),
    E("compound_columns_to_be_unique", column_list=["b", "f"]),
    E("column_mean_to_be_between", column="x", min_value=0),
    E("column_sum_to_be_between", column="b", min_value=0),
    E("column_max_to_be_between", column="d", max_value="2020-01-01"),
    E("table_row_count_to_be_between", min_value=4),
]


# Shrinking a case takes minutes here, and the rows of an unshrunk one are few enough to read.
GENERATED = settings(deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])


@pytest.mark.parametrize("cases", [3, pytest.param(60, marks=pytest.mark.sweep)])
def test_says_the_same_however_the_rows_are_batched(cases: int) -> None:
    """Everything is asked of as many generated tables, at once and in batches and blocks of a few rows."""

    @settings(GENERATED, max_examples=cases)
    @given(rows=st.lists(columns, min_size=1, max_size=12), batch=st.integers(1, 5), block=st.integers(1, 7))
    def case(rows: list[dict[str, Any]], batch: int, block: int) -> None:
        table = pa.Table.from_pylist(rows, SCHEMA)
        at_once = run(table, *EVERYTHING)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames, "BLOCK_ROWS", block)
            patch.setattr(frames, "WHOLE_BYTES", 1)
            assert run(table, *EVERYTHING, rows=batch) == at_once

    case()


def test_row_numbers_and_counts_are_exact_and_examples_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BLOCK_ROWS", 64)
    table = pa.table({"a": [i % 7 for i in range(1000)]})
    failure = one(table, E("column_values_to_be_in_set", column="a", value_set=[0, 1, 2, 3, 4, 5]), rows=37)
    expected = [i for i in range(1000) if i % 7 == 6]
    assert failure.rows == len(expected)
    assert failure.row_numbers == expected[:20]
    assert failure.values == ["6"] * 20
    assert "142 of 1,000 rows (rows 6, 13, 20, 27, 34, …)" in failure.sentence


def test_mostly_holds_over_all_rows_where_only_great_expectations_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BLOCK_ROWS", 10)
    table = pa.table({"a": ["2026"] * 90 + ["later"] * 10})
    for mostly, accepted in ((0.9, True), (0.91, False)):
        years = E("column_values_to_match_strftime_format", column="a", strftime_format="%Y", mostly=mostly)
        assert run(table, years, rows=10).accepted is accepted


@pytest.mark.parametrize(
    ("fail_on", "severity", "accepted"),
    [
        ("critical", "critical", False), ("critical", "warning", True), ("critical", "info", True),
        ("warning", "critical", False), ("warning", "warning", False), ("warning", "info", True),
        ("info", "info", False),
    ],
)  # fmt: skip
def test_only_a_failure_as_grave_as_fail_on_rejects(fail_on: str, severity: str, accepted: bool) -> None:
    broken = E("column_values_to_be_between", severity, column="a", max_value=1)
    found = run(pa.table({"a": [5]}), broken, fail_on=fail_on)
    assert (found.accepted, found.rows, found.expectations) == (accepted, 1, 1)
    assert [failure.severity for failure in found.failures] == [severity]


def test_the_gravest_failure_stands_first() -> None:
    kinds = ("info", "critical", "warning")
    found = run(pa.table({"a": [5]}), *(E("column_max_to_be_between", kind, column="a", max_value=1) for kind in kinds))
    assert [failure.severity for failure in found.failures] == ["critical", "warning", "info"]


@pytest.mark.parametrize(
    ("table", "expectations", "what"),
    [
        (pa.table({"a": [1]}), [], "no expectations"),
        (pa.table({"a": pa.array([], pa.int64())}), [E("column_to_exist", column="a")], "no rows"),
        (pa.table({}), [E("column_to_exist", column="a")], "no rows"),
    ],
)
def test_nothing_to_check_is_a_rejection(table: pa.Table, expectations: list[dict[str, Any]], what: str) -> None:
    found = run(table, *expectations, fail_on="critical")
    assert not found.accepted
    assert what in found.failures[0].sentence


SECRET = "s3cr3t"
LEAKS = [
    E("column_values_to_be_in_set", column="key", value_set=["x"]),
    E("column_values_to_match_regex", column="key", regex="^no$"),
    E("column_values_to_not_match_regex", column="key", regex=SECRET),
    E("column_values_to_be_between", column="key", min_value=0),
    E("column_values_to_be_between", column="mixed", min_value=0),
    E("column_mean_to_be_between", column="key", min_value=0),
    E("column_values_to_be_unique", column="key"),
    E("column_min_to_be_between", column="key", min_value=0),
    E("column_distinct_values_to_be_in_set", column="key", value_set=["x"]),
    E("column_most_common_value_to_be_in_set", column="key", value_set=["x"]),
    E("column_pair_values_to_be_equal", column_A="key", column_B="open"),
    E("compound_columns_to_be_unique", column_list=["open", "key"]),
    E("column_values_to_be_null", column="open", row_condition=f'key == "{SECRET}"', condition_parser="pandas"),
]


@pytest.mark.parametrize("expectation", LEAKS, ids=lambda e: e["type"])
def test_no_value_of_a_sensitive_column_comes_out(
    expectation: dict[str, Any], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"key": [SECRET] * 3, "open": ["o"] * 3, "mixed": ["1", "2", SECRET]})
    failure = one(table, expectation, sensitive=["key", "mixed"])
    assert SECRET not in failure.model_dump_json()
    assert SECRET not in "".join(capfd.readouterr()) + caplog.text
    if failure.rows:
        assert failure.row_numbers  # row numbers always
        assert all("•••" in value or value == "o" for value in failure.values)


def test_beside_a_sensitive_column_the_open_one_is_shown() -> None:
    table = pa.table({"key": [SECRET], "open": ["o"]})
    equal = E("column_pair_values_to_be_equal", column_A="key", column_B="open")
    assert one(table, equal, sensitive=["key"]).values == ["key=•••, open=o"]


@pytest.mark.parametrize(
    "expectation",
    [
        E("column_values_to_not_be_null", column="aa"),
        E("column_to_exist", column="aa"),
        E("table_columns_to_match_set", column_set=["a", "b"]),
        E("table_columns_to_match_ordered_list", column_list=["a", "b"]),
    ],
)
def test_no_name_of_a_column_comes_out_that_the_suite_does_not_name(expectation: dict[str, Any]) -> None:
    """Without a header, it is a value of the first row."""
    failure = one(pa.table({"a": [1], SECRET: [2]}), expectation, sensitive=["a"])
    assert SECRET not in failure.model_dump_json()


def test_one_that_cannot_be_computed_leaves_its_neighbours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BLOCK_ROWS", 2)
    table = pa.table({"a": ["x", "x", "y", "x", "y", "z"]})
    bad = E("column_values_to_be_between", column="a", min_value=0)
    fine = E("column_values_to_be_in_set", column="a", value_set=["x"])
    lengths = E("column_values_to_not_match_regex", column="a", regex="z")
    found = run(table, fine, bad, lengths)
    assert [failure.row_numbers for failure in found.failures] == [[2, 4, 5], [], [5]]
    assert "could not be computed" in found.failures[1].sentence


AB = pa.table({"a": [1], "b": ["x"]})
WORDS = pa.table({"a": ["1", "2", "n/a", None, "4.5", "?"]})
NAMED: dict[str, Any] = {"rows": 2, "row_numbers": [2, 5], "values": ["n/a", "?"]}
CATEGORIES = pa.table(
    {"a": pa.chunked_array([pa.array(["x", None]).dictionary_encode(), pa.array(["y", "z"]).dictionary_encode()])}
)
UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes([at]) * 16 for at in range(3)], pa.binary(16)))
# What Arrow cannot hand to pandas.
IDS = pa.table({"ids": pa.ListArray.from_arrays(pa.array([0, 1, None, 3], pa.int32()), UUIDS)})
LISTS, FLOATS = (
    pa.table({"lists": pa.array([[7], None, [7]], kind)}) for kind in (pa.list_(pa.int32()), pa.list_(pa.float32(), 1))
)
PRICES = pa.table({"price": pa.array([Decimal("12.50"), Decimal("50.50"), Decimal("12.60")], pa.decimal128(12, 2))})
# table, expectation; some fields of the failure, a part of its sentence
FOUND: dict[str, tuple[pa.Table, dict[str, Any], dict[str, Any], str]] = {
    **{
        f"a column that is missing, {entry['type']}": (AB, entry, {}, "the data has no column aa (it has a, b)")
        for entry in (
            E("column_values_to_not_be_null", column="aa"),
            E("column_mean_to_be_between", column="aa"),
            E("column_pair_values_to_be_equal", column_A="a", column_B="aa"),
            E("column_to_exist", column="aa"),
        )
    },
    "words among numbers": (
        WORDS, E("column_values_to_be_between", column="a", min_value=0), NAMED, "text that is not a number",
    ),
    "words among numbers, of which the mean is asked for": (
        WORDS, E("column_mean_to_be_between", column="a"), NAMED, "text that is not a number",
    ),
    "texts that have no order with numbers": (
        pa.table({"a": ["x", "y"]}), E("column_values_to_be_between", column="a", min_value=0), {},
        "could not be computed (a is string): Column values, min_value",
    ),
    "a condition on a column that is missing": (
        AB, E("column_values_to_be_between", column="a", min_value=0, row_condition="nope > 0"), {},
        "has no column nope in its row_condition",
    ),
    "decimals": (
        PRICES, E("column_values_to_be_between", column="price", max_value=50),
        {"row_numbers": [1], "values": ["50.50"]}, "",
    ),
    "the mean of decimals": (
        PRICES, E("column_mean_to_be_between", column="price", max_value=25.19), {}, "observed 25.20;",
    ),
    "categories": (
        CATEGORIES, E("column_values_to_be_in_set", column="a", value_set=["x", "y"]), {"row_numbers": [3]}, "",
    ),
    "lengths of categories": (CATEGORIES, E("column_value_lengths_to_equal", column="a", value=2), {"rows": 3}, ""),
    "lists of ids": (IDS, E("column_values_to_not_be_null", column="ids"), {"row_numbers": [2]}, ""),
    "lists of ids, in order": (
        IDS, E("column_max_to_be_between", column="ids", min_value=0), {}, "could not be computed (ids is list<",
    ),
    "lists": (LISTS, E("column_values_to_be_null", column="lists"), {"values": ["[7]", "[7]"]}, ""),
    "lists of a fixed size": (FLOATS, E("column_values_to_be_null", column="lists"), {"values": ["[7.0]"] * 2}, ""),
    "lists, in order": (LISTS, E("column_max_to_be_between", column="lists", min_value=9), {"column": "lists"}, ""),
    "lists of a fixed size, in order": (
        FLOATS, E("column_max_to_be_between", column="lists", min_value=9), {"column": "lists"}, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_what_is_said_of_a_failure(case: str) -> None:
    table, expectation, fields, part = FOUND[case]
    failure = one(table, expectation)
    assert {name: getattr(failure, name) for name in fields} == fields
    assert part in failure.sentence


def test_whole_numbers_beside_nulls_are_whole_numbers() -> None:
    table = pa.table({"a": pa.array([2**53 + 1, None, 2**53], pa.int64()), "b": pa.array([1, None, 3], pa.int32())})
    assert run(
        table,
        E("column_values_to_be_unique", column="a"),
        E("column_values_to_be_of_type", column="a", type_="int64"),
        E("column_values_to_be_in_type_list", column="b", type_list=["int32"]),
        E("column_type_to_be", column="b", type_="int32"),
        E("column_values_to_match_regex", column="b", regex="^[0-9]$"),
    ).accepted
    assert one(table, E("column_distinct_values_to_be_in_set", column="b", value_set=[1])).observed
    pair = E("column_pair_values_to_be_equal", column_A="a", column_B="b")
    assert one(table, pair).values == ["a=9007199254740993, b=1", "a=9007199254740992, b=3"]
