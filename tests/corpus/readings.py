"""How pandas, DuckDB and Great Expectations read the files of the corpus, and how we do: each in a line of text.

`python -m tests.corpus.readings` reads all of them and writes `expected.json` and the table of `docs/files.md`.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import glob
import json
import math
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.errors import TrainwrightError
from data_contracts.pipeline_spec import ShardsSpec, SourceSpec
from infra.sources import file_facts, merged_schema, read_batches, resolve_sources
from tests.corpus.make import BASE, CASES, Case, cycled, write_case
from tests.corpus.reasons import why
from tests.support.expectations import RESOURCES, E, check, reader, suite
from tests.support.shard_rows import shard_reader
from tests.support.sharding import Kept
from training.shard.two_passes import Sharding, shard_files
from training.shard.units import Source

EXPECTED = Path(__file__).with_name("expected.json")
PAGE = Path(__file__).parents[2] / "docs" / "files.md"
READERS = ("pandas", "duckdb", "ours")
# Sources that peers read as a folder.
FOLDER = ("data", "data/*", "data/**/*.parquet")
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}


@dataclass
class Reading:
    """What a reader made of a case: its columns with types and values, or the name of its error."""

    columns: dict[str, tuple[str, list[Any]]]
    rows: int
    error: str = ""
    frame: pd.DataFrame | None = None
    table: pa.Table | None = None

    def line(self, case: Case) -> str:
        """The reading in a line: the rows, and each column that is not as in the base table."""
        if self.error:
            return self.error
        said = [f"{self.rows} rows"]
        if case.tabular and (missing := [name for name in BASE if name not in self.columns]):
            return f"{self.rows} rows; no {', '.join(missing)}, but {shown(list(self.columns))[:120]}"
        for name, (kind, values) in self.columns.items():
            base = name in BASE and case.tabular
            if not (base and same(values, cycled(BASE[name], self.rows))):
                said.append(f"{name[:20]} {kind[:40]}: {'other values' if base else repeated(values)}")
        return "; ".join(said)

    def has_values_of(self, other: Reading) -> bool:
        """Whether it has the same columns and values, to the bit; types may differ."""
        mine, theirs = ({name: column for name, (_, column) in one.columns.items()} for one in (self, other))
        return mine.keys() == theirs.keys() and all(same(mine[name], theirs[name]) for name in mine)

    def means(self, case: Case) -> bool:
        """Whether the reading has exactly the columns and values that are meant."""
        if self.error or case.means is None:
            return bool(self.error) == (case.means is None)
        meant = {name: cycled(values, case.rows) for name, values in case.means.items()}
        if case.tabular:
            meant |= BASE
        there = {name: values for name, (_, values) in self.columns.items()}
        return self.rows == case.rows and there.keys() == meant.keys() and all(same(there[n], meant[n]) for n in meant)


def plainly(value: Any) -> Any:
    """A value without its library's type; a missing one is None, NaN stays."""
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, np.datetime64 | np.timedelta64):
        return plainly(pd.Timestamp(value) if isinstance(value, np.datetime64) else pd.Timedelta(value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): plainly(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plainly(one) for one in value]
    if isinstance(value, pd.Timestamp) and not value.nanosecond:
        value = value.to_pydatetime()
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)
    return value.to_pytimedelta() if isinstance(value, pd.Timedelta) else value


def shown(value: Any) -> str:
    """A value as a text that says its kind and every bit of it."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(one)}" for key, one in value.items()) + "}"
    if isinstance(value, str):
        return json.dumps(value) if not value.isprintable() else json.dumps(value, ensure_ascii=False)
    if isinstance(value, decimal.Decimal):
        return f"{value}m"
    if isinstance(value, datetime.timedelta):
        return f"{value.total_seconds()} s"
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def same(one: list[Any], other: list[Any]) -> bool:
    # Most are equal as they are, and their texts are quickly made.
    return repr(one) == repr(other) or list(map(shown, map(plainly, one))) == list(map(shown, map(plainly, other)))


def repeated(values: list[Any]) -> str:
    """The shortest run of values that repeats, of which the first eight are shown."""
    texts = [shown(value) for value in map(plainly, values)]
    size = next((n for n in range(1, 9) if texts == cycled(texts[:n], len(texts))), 0) if texts else 0
    return ", ".join(texts[:size] if size else [*texts[:4], "…", *texts[-2:]]) if texts else "none"


def of_arrow(table: pa.Table, types: list[str] | None = None) -> Reading:
    kinds = types or [str(one) for one in table.schema.types]
    values = [column.to_pylist() for column in table.columns]
    names = table.schema.names
    return Reading(dict(zip(names, zip(kinds, values, strict=True), strict=True)), table.num_rows, table=table)


def of_frame(frame: pd.DataFrame) -> Reading:
    """A frame as pandas means it: NaN is a missing value."""

    def value(one: Any) -> Any:
        return None if isinstance(one, float | np.floating) and math.isnan(one) else one

    names = [str(name) for name in frame.columns]
    columns = [(str(kind), [value(one) for one in frame.iloc[:, at]]) for at, kind in enumerate(frame.dtypes)]
    return Reading(dict(zip(names, columns, strict=True)), len(frame), frame=frame)


def paths(case: Case, folder: Path) -> list[Path]:
    """The files or the folder that a peer is given."""
    sources = case.source if isinstance(case.source, list) else [case.source or next(iter(case.files))]
    if not isinstance(sources[0], str):
        return []
    if case.source is None:
        return [folder / "data" / sources[0]]
    if case.source in FOLDER:
        return [folder / "data"]
    found = [sorted(glob.glob(str(folder / "data" / one))) for one in sources]
    return [Path(path) for some in found for path in some]


def kind_of(path: Path) -> tuple[str, str]:
    """The file's format and compression, by its name."""
    compression = _COMPRESSED.get(path.suffix.lower(), "")
    ending = path.with_suffix("").suffix if compression else path.suffix
    return {".ndjson": ".jsonl"}.get(ending.lower(), ending.lower()).lstrip("."), compression


def frame_of(path: Path, said: dict[str, Any]) -> pd.DataFrame:
    """A file as pandas reads it, with its defaults but for what `data.csv` says."""
    kind, compression = kind_of(path)
    read = {"csv": pd.read_csv, "json": pd.read_json, "jsonl": pd.read_json}.get(kind, pd.read_parquet)
    options: dict[str, Any] = {"lines": True} if kind == "jsonl" else {}
    if compression == "zstd":  # pandas needs a package for it
        with pa.input_stream(str(path), compression="zstd") as opened:
            return read(opened, **options)
    return read(path, **options, **as_pandas(said))


def as_pandas(said: dict[str, Any]) -> dict[str, Any]:
    """Settings of `data.csv` as pandas has them."""
    names = {"separator": "sep", "skip_rows": "skiprows"}
    options = {names.get(name, name): value for name, value in said.items()}
    return {"quoting": csv.QUOTE_NONE} if options.pop("quote", None) else options


def as_duckdb(said: dict[str, Any]) -> str:
    """Settings of `data.csv` as DuckDB has them."""
    names = {"separator": "delim", "skip_rows": "skip", "decimal": "decimal_separator"}
    given = {names.get(name, name): "" if value == "none" else value for name, value in said.items()}
    return "".join(f", {name} = {value!r}" for name, value in given.items())


def by_pandas(case: Case, folder: Path) -> Reading:
    files = paths(case, folder)
    if not files:
        return Reading({}, 0, "does not read it")
    frames = [frame_of(file, case.csv) for file in files]
    return of_frame(pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0])


def by_duckdb(case: Case, folder: Path) -> Reading:
    files = paths(case, folder)
    if not files:
        return Reading({}, 0, "does not read it")
    kind, _ = kind_of(files[0])
    reads = {"csv": "read_csv", "json": "read_json", "jsonl": "read_json"}.get(kind, "read_parquet")
    # The characters of a glob stand for themselves in a file's name.
    names = [f"{one}/**/*.parquet" if one.is_dir() else re.sub(r"([*?\[])", r"[\1]", str(one)) for one in files]
    listed = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    options = ", union_by_name = true" * (len(names) > 1) + as_duckdb(case.csv)
    relation = _duckdb().sql(f"select * from {reads}([{listed}]{options})")
    kinds = [str(one) for one in relation.types]
    if "HUGEINT" in kinds:  # which Arrow does not have
        rows = relation.fetchall()
        columns = zip(kinds, map(list, zip(*rows, strict=True)), strict=True)
        return Reading(dict(zip(relation.columns, columns, strict=True)), len(rows))
    return of_arrow(relation.to_arrow_table(), kinds)


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """A connection of this process: one that was made before a fork waits for ever, because its threads are gone."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'; set threads = 1")
    return connection


def by_us(folder: Path, source: list[dict[str, Any]]) -> Reading:
    sources = [SourceSpec.model_validate(one) for one in source]
    files = resolve_sources(sources, root=folder, window=None, window_path=None, cache=folder / "cache")
    schema = merged_schema(files, [file_facts(file, sources, folder) for file in files])
    return of_arrow(pa.Table.from_batches(read_batches(files, sources, root=folder), schema))


def by_shards(folder: Path, source: list[dict[str, Any]]) -> Reading:
    """The rows in the shards that are made of a case, in order of their `id`."""
    sources = [SourceSpec.model_validate(one) for one in source]
    files = resolve_sources(sources, root=folder, window=None, window_path=None, cache=folder / "cache")
    for name in ("shards", "spilled"):
        (folder / name).mkdir()
    spec = ShardsSpec.model_validate({"split": {"key": "id"}, "workers": 1})
    kept = Kept(folder / "shards", spec.format)
    sharded = shard_files(Sharding(files, Source(sources, folder), spec, kept, folder / "spilled"))
    read = shard_reader(spec.format)
    shards = [read(folder / "shards" / one.path, sharded.schema) for some in sharded.splits.values() for one in some]
    table = pa.concat_tables(shards)
    return of_arrow(table.take(pc.sort_indices(table.column("id"))))


def expectations(case: Case) -> list[dict[str, Any]]:
    """A suite that the meant values meet, but that values are also asked to be there and unique."""
    means = case.means or {}
    asked = [E("table_row_count_to_equal", value=case.rows)]
    for name, values in means.items():
        if not name:
            continue  # an expectation cannot name it
        asked.append(E("column_values_to_not_be_null", column=name))
        asked.append(E("column_values_to_be_unique", column=name))
        if all(isinstance(one, int | str | bool | None | float) for one in values) and values[:1] != [None]:
            asked.append(
                E(
                    "column_values_to_be_in_set",
                    column=name,
                    value_set=[v for v in values if v is not None and v == v and v != math.inf],
                )
            )
    return asked


def broken(case: Case, held: list[bool | None]) -> Reading:
    names = [
        f"{one['kwargs'].get('column', '')} {one['type'].rsplit('_to_', 1)[-1]}"[:40] for one in expectations(case)
    ]
    told = [name.strip() + (" raises" if ok is None else "") for name, ok in zip(names, held, strict=True) if not ok]
    return Reading({}, 0, "breaks " + ", ".join(told) if told else "holds")


class GreatExpectations:
    """Great Expectations over frames of pandas."""

    def __init__(self) -> None:
        import great_expectations as gx

        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
        asset = context.data_sources.add_pandas("pandas").add_dataframe_asset("frame")
        self._definition = asset.add_batch_definition_whole_dataframe("whole")

    def __call__(self, case: Case, frame: pd.DataFrame) -> Reading:
        import great_expectations as gx

        batch = self._definition.get_batch(batch_parameters={"dataframe": frame})
        asked = gx.ExpectationSuite(
            "s", expectations=[{k: one[k] for k in ("type", "kwargs")} for one in expectations(case)]
        )
        results = batch.validate(asked).results
        by_id = [(one.expectation_config.type, one.expectation_config.kwargs.get("column"), one) for one in results]
        held: list[bool | None] = []
        for want in expectations(case):
            [found] = [r for kind, column, r in by_id if (kind, column) == (want["type"], want["kwargs"].get("column"))]
            held.append(None if found.exception_info.get("raised_exception") else bool(found.success))
        return broken(case, held)


def our_verdict(case: Case, table: pa.Table) -> Reading:
    """The verdict of our engine on what we read."""
    asked = expectations(case)
    outcome = check(suite(*asked), reader(table), fail_on="critical", sensitive=[], resources=RESOURCES)
    return broken(case, [index not in outcome.indices for index in range(len(asked))])


def error_of(error: Exception) -> str:
    return type(error).__name__


def our_error(error: TrainwrightError, folder: Path) -> str:
    """The sentence and its exit code, without the folder."""
    text = str(error).replace(f"{folder}/data/", "").replace(str(folder), ".")
    return f"exit code {error.exit_code}: {text}"


def read_all(
    folder: Path, names: list[str], expect: GreatExpectations | None
) -> Iterator[tuple[str, dict[str, Reading]]]:
    """Each case with what each reader makes of it: `pandas`, `duckdb`, `ours`, and the verdicts `gx` and `our verdict`.

    The verdicts are on the suite of `expectations`: theirs on the frame of pandas, ours on what we read.
    """
    for number, name in enumerate(names):
        case, here = CASES[name], folder / str(number)
        source = write_case(name, here)
        readings: dict[str, Reading] = {}
        for reader_name, read in (("pandas", by_pandas), ("duckdb", by_duckdb)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    readings[reader_name] = read(case, here)
                except Exception as error:
                    readings[reader_name] = Reading({}, 0, error_of(error))
        try:
            readings["ours"] = by_us(here, source)
        except TrainwrightError as error:
            readings["ours"] = Reading({}, 0, our_error(error, here))
        except Exception as error:
            readings["ours"] = Reading({}, 0, f"INTERNAL {type(error).__name__}: {error}"[:300])
        if readings["ours"].table is not None and case.tabular:
            try:
                readings["shards"] = by_shards(here, source)
            except TrainwrightError as error:
                readings["shards"] = Reading({}, 0, our_error(error, here))
        yield name, readings | (verdicts(case, readings, expect) if expect else {})


def verdicts(case: Case, readings: dict[str, Reading], expect: GreatExpectations) -> dict[str, Reading]:
    """What Great Expectations and our engine say of what pandas and we read; of nothing, an error."""
    found = {}
    if readings["pandas"].frame is not None:
        found["gx"] = expect(case, readings["pandas"].frame)
    if readings["ours"].table is not None:
        found["our verdict"] = our_verdict(case, readings["ours"].table)
    return found


def lines_of(case: Case, readings: dict[str, Reading]) -> dict[str, Any]:
    """A line for each reader, and which of them read what is meant."""
    lines = {reader: reading.line(case) for reader, reading in readings.items()}
    if "shards" in readings and readings["shards"].has_values_of(readings["ours"]):
        lines["shards"] = "as read"
    return {**lines, "as meant": [reader for reader in READERS if readings[reader].means(case)]}


def table(lines: dict[str, dict[str, Any]]) -> str:
    """The table of the page: who reads each file as meant, and why not."""
    marks = {True: "yes", False: "no"}
    rows = [
        [name, *(marks[reader in some["as meant"]] for reader in READERS), why(name, some)]
        for name, some in lines.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |".replace("  |", " |") for row in rows)


def write_expected() -> None:
    """Write `expected.json` and the table of the page."""
    with tempfile.TemporaryDirectory() as scratch:
        read = read_all(Path(scratch), list(CASES), GreatExpectations())
        found = {name: lines_of(CASES[name], readings) for name, readings in read}
    EXPECTED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    before, _ = PAGE.read_text().split("| csv-plain |")
    PAGE.write_text(before + table(found) + "\n")


if __name__ == "__main__":
    write_expected()
