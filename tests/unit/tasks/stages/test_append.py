"""Appending files to a dataset gives the rows and types that reading all of them at once gives, whatever the files."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.handoffs import Dataset
from infra.contract import contract_worker
from tasks.stages import shard as stage
from tasks.stages.contract_check import data_request
from tasks.stages.validate import contract_key
from tests.support.nights import ROWS, Nights, table, uris
from tests.support.tiny import own_modules

pytestmark = pytest.mark.usefixtures("here")
# One of each ending.
SAMPLE = (1, 2, 10)


def drawn(draw: random.Random, first: int, kind: str, names: list[str]) -> pa.Table:
    """A table with some of the columns a to e; the types and values of those in `names` are drawn."""
    rows = 0 if draw.random() < 0.15 else draw.choice([1, ROWS])
    makers: dict[str, Any] = {
        "a": [lambda n: n % 7, lambda n: n % 7, lambda n: n / 4, lambda n: None],
        "b": [lambda n: "x" if n % 3 else None, lambda n: None, lambda n: f"{n} y"],
        "c": [lambda n: n, lambda n: 2**40 + n, lambda n: None, lambda n: n % 2 == 0, lambda n: "t"],
        "d": [lambda n: [1.5, 2.5], lambda n: [1.5] * (n % 3), lambda n: None],
        "e": [lambda n: date(2026, 1, 1), lambda n: datetime(2026, 1, 1, 5), lambda n: None],
    }  # fmt: skip
    weights = {"c": [4, 2, 4, 1, 1]}
    columns: dict[str, Any] = {"a": 1, "b": "x", "c": 2}
    for name in names:
        choices = makers[name]
        columns.pop(name, None)
        if draw.random() < 0.2 or (kind != "parquet" and name in "de") or (kind == "jsonl" and name == "e"):
            continue
        [make] = draw.choices(choices, weights.get(name))
        values = pa.array([make(n) for n in range(first, first + rows)])
        if kind == "parquet" and pa.types.is_int64(values.type):
            most = max(filter(None, values.to_pylist()), default=0)
            narrow = [kind for bits, kind in ((7, pa.int8()), (31, pa.int32())) if most < 2**bits]
            values = values.cast(draw.choice([pa.int64(), pa.float64(), *narrow]))
        columns[name] = values
    return table(first, rows, **columns)


def outcome(nights: Nights) -> Dataset | str:
    """The dataset, or the sentence with which its files are refused."""
    try:
        return nights.shard()
    except TrainwrightError as error:
        return str(error).replace(str(nights.folder), "")


def compare(folder: Path, seed: int) -> str:
    """Append drawn files in drawn order, and read them at once; returns how it ended."""
    draw = random.Random(seed)
    data = {"schema": "strict"} if draw.random() < 0.2 else {}
    kinds = draw.choice([["parquet"], ["csv"], ["jsonl"], ["parquet", "csv", "jsonl"]])
    nights, at_once = Nights(folder / "nights", **data), Nights(folder / "at-once", **data)
    wide, ends = draw.sample("abcde", draw.choice([1, 2, 5])), ["anew"]
    for number, name in enumerate(draw.sample("abcdefgh", 4)):
        kind = draw.choice(kinds)
        rows = drawn(draw, 1000 * number, kind, wide) if number else table(0, a=1, b="x", c=2)
        for project in (nights, at_once):
            project.put(f"{name}.{kind}", rows)
        made = outcome(nights)
        if isinstance(made, str):
            assert made == outcome(at_once), seed
            return "refused"
        ends += ["extended"] if len(uris(made)) > 1 else []
    assert nights.rows(made) == at_once.rows(at_once.shard()), seed
    return ends[-1]


@pytest.mark.parametrize("seeds", [SAMPLE, pytest.param(range(100, 400), marks=pytest.mark.sweep)], ids=["few", "many"])
def test_appending_is_reading_at_once_in_any_order(seeds: Iterable[int], tmp_path: Path) -> None:
    ends = {compare(tmp_path / str(seed), seed) for seed in seeds}
    assert ends == {"refused", "extended", "anew"}


def test_a_file_that_fits_is_added_and_old_shards_stay(nights: Nights) -> None:
    nights.put("1.csv", table(0, a=1.5, b="x"))
    first = nights.shard()
    nights.put("2.parquet", table(100, a=pa.array([1] * ROWS, pa.int16())))  # whole numbers, and b is missing
    second = nights.shard()
    assert uris(second) == {first.ref.uri, second.ref.uri}
    columns, rows = nights.rows(second)
    assert (columns["a"], rows[100][1]["a"], rows[100][1]["b"]) == ("float64", 1.0, None)
    assert "some files lack columns, which are null in their rows: b" in nights.sentence(second)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (table(100, a=1.5), "the column a was int64 and is double"),
        (table(100, a=1, c="new"), "the column c is new"),
        (table(100, a=1, b="x"), "the column b was null and is string"),
    ],
)
def test_a_file_that_changes_a_type_has_all_sharded_again(rows: pa.Table, why: str, nights: Nights) -> None:
    nights.put("1.parquet", table(0, a=1, **({"b": pa.nulls(ROWS)} if "column b" in why else {})))
    nights.shard()
    nights.put("2.parquet", rows)
    second = nights.shard()
    assert uris(second) == {second.ref.uri}
    assert nights.run.store.manifest(second.ref).parent_in("datasets") is None
    assert f"all files were sharded again, because {why}" in stage._told(nights.run, second, None).sentence


REFUSED: dict[str, tuple[list[pa.Table], dict[str, Any], str]] = {
    "no rows": ([table(0, 0, a=pa.array([], pa.int64()))], {}, "The source has no rows to shard"),
    "all columns of other types": (
        [table(0, a=1, b="x"), table(100, a="x", b=1), table(200, a="x", b="x")],
        {},
        r"1.parquet: the column a is string, .* \(also .*2.parquet\); .*the column b is",
    ),
    "one key for all rows": (
        [table(0, shop="x")],
        {"split": {"key": "shop", "fractions": {"train": 0.7, "val": 0.1, "test": 0.2}}},
        "leaves no rows for .*: all rows have the same key",
    ),
}


@pytest.mark.parametrize(("files", "shards", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_a_dataset_is_refused(
    files: list[pa.Table], shards: dict[str, Any], sentence: str, nights: Nights
) -> None:
    for number, rows in enumerate(files):
        nights.put(f"{number}.parquet", rows)
    with pytest.raises(UsageError, match=sentence):
        nights.shard(**shards)


def test_lists_of_another_length_have_all_sharded_again(nights: Nights) -> None:
    for number, lists, kind, stored in (
        (1, None, "list<float64>", 1),
        (2, [1.0, 2.0], "tensor<float64>[2]", 1),
        (3, [1.0], "list<float64>", 1),
        (4, [3.0, 4.0], "list<float64>", 2),
    ):
        nights.put(f"{number}.parquet", table(100 * number, x=pa.array([lists] * ROWS, pa.list_(pa.float64()))))
        dataset = nights.shard()
        assert (nights.rows(dataset)[0]["x"], len(uris(dataset))) == (kind, stored)


def test_strict_refuses_every_difference_of_every_file(tmp_path: Path) -> None:
    nights = Nights(tmp_path, schema="strict")
    nights.put("1.parquet", table(0, a=1, b="x", c=1))
    nights.put("2.parquet", table(100, a=1, b=None, c=None))  # columns without a value fit any type
    first = nights.shard()
    nights.put("3.parquet", table(200, a=2, b="y", c=3))
    assert uris(nights.shard()) > uris(first)
    nights.put("4.parquet", table(300, a=1.5, b="x", d=1))
    nights.put("5.parquet", table(400, a=1, b=1, d=1))
    with pytest.raises(UsageError) as refused:
        nights.shard()
    for said in (
        "4.parquet has no column c (also ",
        "a as double, but",
        "the column b as int64, but",
        "column d, which",
    ):
        assert said in str(refused.value)


def test_strict_is_part_of_the_keys_and_validate_refuses_first(nights: Nights) -> None:
    nights.put("1.csv", table(0, a=1))
    nights.put("2.csv", table(100, a=1, b=1))
    keys = []
    for data in ({}, {"schema": "union"}, {"schema": "strict"}):
        nights.data = {"source": "days/*", **data}
        with contextlib.suppress(UsageError):
            nights.shard()
        keys.append((contract_key(nights.run), stage.dataset_key(nights.run)))
    assert keys[0] == keys[1]
    assert not set(keys[0]) & set(keys[2])
    with pytest.raises(UsageError, match=r"data.schema is strict, and files differ: .*2.csv has the column b, which "):
        contract_worker.main(data_request(nights.run), lambda report: None)


@pytest.mark.parametrize("name", ["2.parquet", "2.csv", "2.jsonl"])
def test_new_files_without_rows_are_an_empty_night(name: str, nights: Nights) -> None:
    nights.put("1.csv", table(0, a=1))
    first = nights.shard()
    nights.put(name, table(100, 0, a=pa.array([], pa.int64())))
    done = stage.shard.find_or_make(nights.open(), None)
    assert (done.status, done.handoff, done.reused_from) == ("reused", first, first.ref.uri)
    assert "the new files have no rows" in done.sentence
    assert nights.shard() == first
    assert nights.sentence(first) == done.sentence
    nights.put("3.csv", table(200, a=1))
    third = nights.shard()
    assert uris(third) == {first.ref.uri, third.ref.uri}
    assert third.rows("train") + third.rows("test") == 2 * ROWS


@pytest.mark.parametrize("sources", [["days/*.csv", "more/*.csv"], ["more/*.csv", "days/*.csv"]])
def test_a_second_source_is_added(sources: list[str], tmp_path: Path) -> None:
    nights = Nights(tmp_path, source=["days/*.csv"])
    nights.put("1.csv", table(0, a=1))
    first = nights.shard()
    (tmp_path / "more").mkdir()
    nights.put("../more/1.csv", table(100, a=1))
    nights.data = {"source": sources}
    second = nights.shard()
    assert uris(second) == {first.ref.uri, second.ref.uri}
    assert set(nights.rows(second)[1]) == {*range(ROWS), *range(100, 100 + ROWS)}


def test_what_a_transform_got_is_part_of_the_comparison(nights: Nights, tmp_path: Path) -> None:
    (tmp_path / "kinds_of_a_test.py").write_text(
        "import pyarrow as pa\n"
        "def build(batch):\n"
        "    kind = pa.array([str(batch['a'].type)] * len(batch))\n"
        "    return pa.RecordBatch.from_pydict({'id': batch['id'], 'kind': kind})\n"
    )
    for number, one in enumerate((1, 1.5)):
        nights.put(f"{number}.parquet", table(100 * number, a=one))
        with own_modules():
            dataset = nights.shard(transform="kinds_of_a_test.build")
    assert {row["kind"] for _, row in nights.rows(dataset)[1].values()} == {"double"}


@pytest.mark.parametrize("name", ["2.csv", "2.jsonl", "2.parquet"])
def test_an_integer_that_a_float_does_not_hold_is_refused(name: str, nights: Nights) -> None:
    nights.put("1.parquet", table(0, a=0.5))
    first = nights.shard()
    nights.put(name, table(100, a=2**53 + 1))
    with pytest.raises(UsageError, match=f"{name}: double cannot hold the value in row 0 of the column a"):
        nights.shard()
    nights.put(name, table(100, a=2**53 + 2))  # held exactly
    assert nights.rows(nights.shard())[1][100][1]["a"] == 2**53 + 2
    assert first.rows("train")


def test_types_of_sensitive_lists_and_objects_are_not_recorded(tmp_path: Path) -> None:
    nights, at_once = Nights(tmp_path / "nights", sensitive=["d"]), Nights(tmp_path / "at-once", sensitive=["d"])
    for number in (0, 1):
        for project in (nights, at_once):
            project.put(f"{number}.parquet", table(100 * number, a=number, d=[1.5, 2.5]))
        dataset = nights.shard()
        assert "types" not in nights.run.store.manifest(dataset.ref).provenance
    assert nights.rows(dataset) == at_once.rows(at_once.shard())
