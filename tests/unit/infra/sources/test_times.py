"""Times of the years 1 to 9999 in every stored form: all who read them agree with DuckDB; a misfit is named."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.arrow_rows import counts, microseconds
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from infra.sources import Window
from infra.sources.read import in_window
from tests.support.expectations import E, one, run
from tests.support.files import write_files
from tests.support.shard_rows import shard_reader
from tests.unit.infra.sources.conftest import Raw
from training import formats
from training.formats.schema import conform_rows, finish, narrow
from training.shard import splitter

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAR = [datetime(year, 12, 31) for year in (1, 1582, 1677, 1815, 1969, 2024, 2262, 2263, 9999)]
NEAR = [datetime(year, 12, 31) for year in (1678, 1815, 1969, 2024, 2261)]
SPLIT = SplitSpec(time="at", fractions={"train": 0.8, "test": 0.2})


def in_parquet(kind: pa.DataType, **options: Any) -> Callable[[list[datetime]], bytes]:
    def written(times: list[datetime]) -> bytes:
        sink = io.BytesIO()
        naive = pa.array(times, pa.timestamp("us"))
        zoned = getattr(kind, "tz", None)  # a time without a zone is UTC here, and local to Arrow
        values = naive.cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind) if zoned else naive.cast(kind)
        pq.write_table(pa.table({"at": values}), sink, **options)
        return sink.getvalue()

    return written


def in_csv(ending: str) -> Callable[[list[datetime]], bytes]:
    return lambda times: ("at\n" + "".join(f"{at.isoformat()}{ending}\n" for at in times)).encode()


def in_json(ending: str) -> Callable[[list[datetime]], bytes]:
    return lambda times: "".join(json.dumps({"at": at.isoformat() + ending}) + "\n" for at in times).encode()


# Each stored form: its file's name and bytes, and the times that it can hold.
FORMS: dict[str, tuple[str, Callable[[list[datetime]], bytes], list[datetime]]] = {
    "INT96": ("a.parquet", in_parquet(pa.timestamp("us"), use_deprecated_int96_timestamps=True), FAR),
    "date32": ("a.parquet", in_parquet(pa.date32()), FAR),
    "date64": ("a.parquet", in_parquet(pa.date64()), FAR),
    **{
        f"{unit} {zone}": ("a.parquet", in_parquet(pa.timestamp(unit, zone)), NEAR if unit == "ns" else FAR)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Paris")
    },
    "CSV days": ("a.csv", lambda times: ("at\n" + "".join(f"{at.date()}\n" for at in times)).encode(), FAR),
    "JSON days": ("a.jsonl", lambda times: "".join(f'{{"at": "{at.date()}"}}\n' for at in times).encode(), FAR),
    **{
        f"{name} {ending}": (file, written(ending), NEAR if len(ending) > 8 else FAR)
        for name, file, written in (("CSV", "a.csv", in_csv), ("JSON", "a.jsonl", in_json))
        for ending in ("", ".000500", "Z", ".000500Z", ".000500500", ".000500500Z")
    },
}
TABLES = {"a.parquet": "read_parquet", "a.csv": "read_csv", "a.jsonl": "read_json"}


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[] if at % 3 == 0 else pytest.mark.sweep) for at, form in enumerate(FORMS)]
)
def test_all_who_read_a_time_read_the_same(form: str, raw: Raw, tmp_path: Path) -> None:
    name, written, times = FORMS[form]
    file = raw.write(name, written(times))
    table = raw.read(name)
    later = timedelta(microseconds=500 if ".0005" in form else 0)
    wanted = [(at.replace(tzinfo=UTC) + later - EPOCH) // timedelta(microseconds=1) for at in times]
    # DuckDB guesses a type for each of these texts but for some with digits of nanoseconds.
    seen = duckdb.sql(f"""set timezone = 'UTC'; select epoch_us("at"::timestamptz) from {TABLES[name]}('{file}')""")
    assert [value for (value,) in seen.fetchall()] == wanted
    assert microseconds(table.column("at")).to_pylist() == wanted
    assert splitter.microseconds(table.column("at"), SPLIT).tolist() == wanted
    [batch] = table.to_batches()
    for edge in times:
        at = edge.replace(tzinfo=UTC) + later
        before = Window(datetime.min.replace(tzinfo=UTC), at)
        assert in_window(batch, before, "at").to_pylist() == [time < edge for time in times]
        after = Window(at, datetime.max.replace(tzinfo=UTC))
        inside = [time >= edge for time in times]
        assert in_window(batch, after, "at").to_pylist() == inside
    year = E("column_values_to_be_between", column="at", min_value="2000-01-01", max_value="2100-01-01")
    assert one(table, year).row_numbers == [row for row, at in enumerate(times) if at.year != 2024]
    assert run(
        table, E("column_values_to_be_increasing", column="at"), E("column_values_to_not_be_null", column="at")
    ).accepted
    narrowed = narrow(table)
    rows = conform_rows(narrowed, finish(narrowed.schema, table.schema))
    for kind in ("parquet", "tfrecord"):
        shards, path = formats.get(kind), tmp_path / kind
        shards.refuse(rows)
        formats.write_shard(kind, rows, path)
        assert microseconds(shard_reader(kind)(path, rows.schema).column("at")).to_pylist() == wanted


ENDS = [(pa.date32(), 31), *((kind, 63) for kind in map(pa.timestamp, ("s", "ms", "us", "ns"))), (pa.date64(), 63)]


@pytest.mark.parametrize(("kind", "bits"), ENDS, ids=str)
def test_an_infinite_date_stays_the_last_or_is_named(kind: pa.DataType, bits: int) -> None:
    numbers = pa.array([2**bits - 1, None, 0, -(2**bits)], pa.int32() if bits == 31 else pa.int64())
    times = numbers.view(kind)
    assert counts(times)[0].to_pylist() == numbers.to_pylist()
    last, missing, zero, first = microseconds(times).to_pylist()
    unit_us = counts(times)[1] / 1000
    assert (missing, zero) == (None, 0)
    assert last == pytest.approx(min(2**bits * unit_us, 2**63))
    assert first == pytest.approx(-min(2**bits * unit_us, 2**63))
    window = Window(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    reached = kind == pa.timestamp("ns")  # the last time that nanoseconds hold is in 2262
    assert in_window(pa.record_batch({"at": times}), window, "at").to_pylist() == [reached, False, True, reached]
    outcome = run(pa.table({"at": times}), E("column_max_to_be_between", column="at", max_value="2000-01-01"))
    if kind not in (pa.timestamp("us"), pa.timestamp("ns")):
        assert "pandas cannot hold the time in row 0" in outcome.failures[0].sentence


@pytest.mark.parametrize("far", ["far.csv", "far.jsonl", "far.parquet"])
def test_a_time_that_the_type_of_all_files_cannot_hold_is_named(far: str, raw: Raw) -> None:
    write_files(
        raw.root,
        {
            "near.csv": "at\n2024-01-01T10:00:00.123456789\n",
            "far.csv": "at\n2024-01-01T10:00:00\n9999-12-31T00:00:00\n",
            "far.jsonl": '{"at": "2024-01-01T10:00:00"}\n\n{"at": "9999-12-31T00:00:00"}\n',
        },
    )
    days = pa.table({"at": pa.array([date(2024, 1, 1), date(9999, 12, 31)])})
    pq.write_table(days, raw.write("far.parquet", b""), row_group_size=1)
    sentence = rf"{far}: timestamp\[ns\] cannot hold the value in row 1 of the column at, which has this type over all"
    with pytest.raises(UsageError, match=sentence):
        raw.read("near.csv", far)
    if far == "far.parquet":
        [file] = raw.resolve(far)
        with pytest.raises(UsageError, match=sentence):
            list(raw.batches(far, files=[file], row_groups=(1, 2), schema=pa.schema([("at", pa.timestamp("ns"))])))


def test_a_boundary_at_an_infinite_date_is_one_sentence() -> None:
    def select(rank: int) -> tuple[int, int, int]:
        return 2**63 - 1, 0, 10

    with pytest.raises(UsageError, match="a time outside of the years 1 to 9999 would be in both 'train' and 'test'"):
        splitter.cut(select, 10, SPLIT)


def test_a_time_that_a_shard_cannot_hold_names_its_column() -> None:
    times = pa.table({"at": pa.array([2**62]).cast(pa.timestamp("s"))})
    with pytest.raises(
        UsageError, match=r"Column 'at' has a value that timestamp\[ms\], its type in shards, cannot hold"
    ):
        narrow(times)
