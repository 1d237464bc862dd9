"""A profile is the same to the bit whatever the batches, threads and order of files are, and says what numpy says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.canonical import canonical
from data_contracts.profile.profile import Merger, profile_of
from data_contracts.records import Profile

ROWS = 70_000


def merged(parts: Iterable[Profile]) -> Profile:
    """The profile of all parts together."""
    merger = Merger()
    for part in parts:
        merger.add(part)
    return merger.record()


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Columns of every kind, with missing and infinite values."""
    draw = np.random.default_rng(14)
    normal = draw.normal(size=ROWS)
    far = normal + 1e9
    odd = normal.copy()
    odd[::7], odd[1::1000], odd[2::1000] = np.nan, np.inf, -0.0
    city = np.array([f"city {number}" for number in range(30)])[draw.integers(0, 30, ROWS)]
    return pa.table(
        {
            "far": far,
            "odd": pa.array(odd, mask=draw.random(ROWS) < 0.1),
            "whole": draw.integers(-500, 500, ROWS),
            "large": draw.integers(-(2**62), 2**62, ROWS),
            "city": pa.array(city.tolist(), mask=draw.random(ROWS) < 0.2),
            "dictionary": pa.array(city.tolist()).dictionary_encode(),
            "id": [f"{'x' * (number % 300)}ü{number}" for number in range(ROWS)],
            "flag": draw.random(ROWS) < 0.25,
            "at": pa.array(np.arange(ROWS) * 10**9, pa.timestamp("ns")),
            "blob": pa.array([b"\xff" * (number % 5) for number in range(ROWS)]),
            "nested": pa.array([[number] for number in range(ROWS)]),
            "nothing": pa.nulls(ROWS),
            "secret": draw.normal(size=ROWS),
        }
    )


def profiled(table: pa.Table, rows: int = 1 << 16, threads: int = 1) -> Profile:
    return profile_of(table.to_batches(rows), table.schema, ["secret"], threads)


def test_batches_and_threads_change_no_byte(table: pa.Table) -> None:
    first = canonical(profiled(table).to_json())
    assert canonical(profiled(table, 777, threads=4).to_json()) == first
    assert canonical(merged([profiled(table)]).to_json()) == first
    assert Profile.from_json(profiled(table).to_json()) == profiled(table)


def test_the_bytes_are_those_of_earlier_versions(table: pa.Table) -> None:
    digest = hashlib.sha256(canonical(profiled(table).to_json())).hexdigest()
    assert digest == "4d00f3663a11e608544fa4916887356b6e612dfd8a9da289a7e086745eacc7b4"


@pytest.mark.parametrize("rows", [1 << 16, 777])
def test_texts_that_come_as_dictionaries_have_the_same_profile(rows: int) -> None:
    draw = np.random.default_rng(5)
    plain = {
        f"{count}": pa.array([f"ü{number}" for number in draw.integers(0, count, ROWS)], mask=draw.random(ROWS) < 0.1)
        for count in (3, 1000, 5000)
    }
    one = profiled(pa.table(plain))
    coded = pa.table({name: a.dictionary_encode() for name, a in plain.items()}).to_batches(rows)
    mixed = [pa.record_batch([batch.column(0), batch.column(1).cast(pa.string()), batch.column(2)], [*plain])
             for batch in coded[::2]] + coded[1::2]  # fmt: skip
    schema = pa.table(plain).schema
    assert profile_of(coded, schema, []) == one
    assert profile_of(mixed, schema, []) == one


def test_lengths_too_far_apart_to_be_counted_one_by_one_have_the_same_profile() -> None:
    texts = pa.array(["", "x" * 2000, None] * 100)
    coded, plain = (pa.record_batch({"x": column}) for column in (texts.dictionary_encode(), texts))
    one = profile_of([plain, plain], plain.schema, [])
    assert one.columns[0].maximum == 2000
    assert profile_of([coded, coded], plain.schema, []) == profile_of([coded, plain], plain.schema, []) == one


def test_a_dictionary_with_odd_texts_is_read_as_plain_texts() -> None:
    odd = pa.array([b"\xff", b"a", b"a"]).view(pa.string())
    for codes, known in (([1, 2, 1], 1), ([0, 1], None)):
        batch = pa.record_batch([pa.DictionaryArray.from_arrays(pa.array(codes), odd)], ["x"])
        [column] = profile_of([batch], pa.schema({"x": pa.string()}), []).columns
        assert (column.rows, column.distinct) == (len(codes), known)


def test_a_column_without_values_has_one_profile_however_many_parts_it_came_in() -> None:
    [part, other] = (pa.record_batch({"x": pa.nulls(rows, pa.float64()), "y": [1.5] * rows}) for rows in (3, 2))
    one, two = (merged([profile_of([batch], part.schema, []) for batch in parts]) for parts in ([part], [part, other]))
    assert one.columns[0].model_copy(update={"rows": 5, "nulls": 5}) == two.columns[0]
    assert one.columns[0].distinct is None
    assert one.columns[1].distinct == two.columns[1].distinct == 1


@pytest.mark.parametrize("different", [1500, 2000, 4000])
def test_the_least_hashes_are_found_among_few_values_that_occur_often(different: int) -> None:
    values = np.random.default_rng(0).integers(0, different, 300_000)
    batch = pa.record_batch({"x": values})
    distinct = profile_of([batch], batch.schema, []).columns[0].distinct
    assert distinct == pytest.approx(different, rel=0.25)


def test_the_order_of_parts_changes_no_byte(table: pa.Table) -> None:
    parts = [profiled(table.slice(start, 11_000)) for start in range(0, ROWS, 11_000)]
    together, backwards = merged(parts), merged(parts[::-1])
    nested = merged([merged(parts[:3]), merged(parts[3:])])
    assert canonical(together.to_json()) == canonical(backwards.to_json()) == canonical(nested.to_json())
    # Parts differ from the whole only in where blocks begin, so in the last bits of sums.
    for part, whole in zip(together.columns, profiled(table).columns, strict=True):
        exactly = {"moments", "mean", "stdev"}
        assert part.model_dump(exclude=exactly) == whole.model_dump(exclude=exactly)
        assert (part.mean or 0) == pytest.approx(whole.mean or 0, rel=1e-14, abs=1e-12 * (whole.stdev or 0))
        assert (part.stdev or 0) == pytest.approx(whole.stdev or 0, rel=1e-12)


def test_the_figures_are_those_of_numpy(table: pa.Table) -> None:
    profile = profiled(table)
    for name in ("far", "whole", "large"):
        column, values = profile.column(name), table.column(name).to_numpy()
        assert column.mean == pytest.approx(values.mean(), abs=1e-12 * values.std(), rel=1e-13)
        assert column.stdev == pytest.approx(np.std(values - values[0].astype(float)), rel=1e-9)
        assert (column.minimum, column.maximum) == (values.min(), values.max())
        spread = values.max() - values.min()
        for share, value in column.quantiles.items():
            assert value == pytest.approx(np.quantile(values, float(share)), abs=spread / 200)
    odd = table.column("odd").to_pandas().dropna()
    column = profile.column("odd")
    assert column.values == len(odd)
    assert column.infinite == np.isinf(odd).sum()
    assert column.mean == pytest.approx(odd[np.isfinite(odd)].mean())


def test_different_values_are_counted_or_estimated(table: pa.Table) -> None:
    profile = profiled(table)
    found = {one.name: (one.distinct, one.distinct_exact) for one in profile.columns}
    assert found["whole"] == (1000, True)
    assert found["flag"] == (2, True)
    assert found["city"] == found["dictionary"] == (30, True)
    for name in ("far", "large", "id", "at"):
        distinct, exactly = found[name]
        assert not exactly
        assert distinct == pytest.approx(ROWS, rel=0.25)  # four times the standard error
    sample = profile.column("city").sample
    assert (
        dict(zip(sample.labels, sample.counts, strict=True))
        == table.column("city").to_pandas().value_counts().to_dict()
    )


def test_a_sensitive_column_has_counts_only(table: pa.Table) -> None:
    said = profiled(table).column("secret")
    plain = {name: value for name, value in said.to_json().items() if value not in (None, {}, 0)}
    assert plain == {"name": "secret", "type": "double", "kind": "sensitive", "rows": ROWS, "distinct_exact": True}


def test_keys_of_objects_in_a_sensitive_column_are_not_in_its_type() -> None:
    """They are names of the type, and may be values, such as e-mail addresses."""
    table = pa.table({"who": [{"jane@x.example": 1}], "open": [{"a": 1}]})
    profile = profile_of(table.to_batches(), table.schema, {"who"})
    assert [one.type for one in profile.columns] == ["struct<•••>", "struct<a: int64>"]


def test_a_text_that_is_not_utf8_has_counts_only() -> None:
    odd = pa.array([b"\xff", b"a"]).view(pa.string())
    batches = [pa.record_batch({"x": pa.array(["a", None])}), pa.record_batch({"x": odd})]
    [column] = profile_of(batches, batches[0].schema, []).columns
    assert (column.rows, column.nulls, column.bins, column.sample) == (4, 1, None, None)


def test_no_rows_and_no_values() -> None:
    schema = pa.schema({"x": pa.float64(), "y": pa.string()})
    empty = profile_of([], schema, [])
    some = profile_of([pa.record_batch({"x": [1.5], "y": ["a"]}, schema)], schema, [])
    none = profile_of([pa.record_batch({"x": [None], "y": [None]}, schema)], schema, [])
    assert merged([empty, some]) == merged([some, empty]) == some
    assert [one.nulls for one in merged([none, some]).columns] == [1, 1]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, None], pa.float16()),
        pa.array([2**64 - 1, None], pa.uint64()),
        pa.array([Decimal("1.25"), None], pa.decimal256(60, 2)),
        pa.array(["a", None], pa.string_view()),
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])),
        pa.array([date(2026, 1, 1), None], pa.date64()),
        pa.array([datetime(2026, 1, 1), None], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([time(1), None], pa.time32("s")),
        pa.array([{"a": 1}, None]),
        pa.array([b"ab", None], pa.binary(2)),
    ],
    ids=lambda column: str(column.type),
)
def test_every_type_has_a_profile(column: pa.Array) -> None:
    batch = pa.record_batch({"x": column})
    one = profile_of([batch], batch.schema, [])
    assert (one.columns[0].rows, one.columns[0].nulls) == (2, 1)
    assert merged([one]) == one


def test_the_moments_of_parts_that_are_too_large_together_are_unknown() -> None:
    parts = [pa.record_batch({"x": values}) for values in ([0.0, 1.0], [1e200, 1e200])]
    whole = merged([profile_of([part], part.schema, []) for part in parts]).columns[0]
    assert (whole.mean, whole.stdev, whole.moments, whole.maximum) == (None, None, None, 1e200)


def test_a_negative_zero_is_zero() -> None:
    def said(values: list[float]) -> bytes:
        batch = pa.record_batch({"x": values})
        return canonical(profile_of([batch], batch.schema, []).to_json())

    assert said([0.0, -0.0]) == said([-0.0, 0.0])
