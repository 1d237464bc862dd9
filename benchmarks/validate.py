"""Seconds to check a Parquet file against a suite, beside Great Expectations on a frame in memory and plain DuckDB.

    python benchmarks/validate.py [--quick]

A table of 2,000,000 rows and 22 columns, and 42 expectations that hold. Every contender takes its turn in every round:

- scan: `infra.contract.contract_worker` reads the file, checks its digest and the suite
- with_profile: the same with the profile, as the validate stage does; `profile_cost` is what it adds, in scans
- first, incremental: a table in 100 files, none of which is known, and then one of which is new
- gx_only: the same, with Great Expectations for everything, as before there was a scan
- gx: Great Expectations' own `Batch.validate` on a pandas frame that is in memory already
- duckdb: a query by hand over the same file, which computes the same counts
- pandera, pointblank: on frames in memory, too; Pointblank has 38 of the expectations. TFDV is left out, because its
  dependencies do not resolve within ten minutes
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import common
from noise import Watch

from data_contracts.canonical import canonical
from data_contracts.contract.engine import check
from data_contracts.contract.file_statistics import FileStatistics, cut, grouped
from data_contracts.contract.suites import load_suite
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from infra.contract import contract_worker
from infra.contract.file_statistics import KNOWN, NEW, statistics_names
from infra.files import stream_digest
from infra.sources import Selection, read, read_batches

ROWS, QUICK_ROWS = 2_000_000, 200_000
FILES, QUICK_FILES = 100, 5
MANY_FILES, QUICK_MANY_FILES = 10_000, 500
REALS, WHOLES, TEXTS = 9, 6, 4


def made(rows: int) -> pa.Table:
    """The table: a key, reals with some nulls, whole numbers, texts, a flag and a time."""
    draw = np.random.default_rng(common.SEED)
    columns: dict[str, Any] = {"id": draw.permutation(rows)}
    for number in range(REALS):
        values = draw.standard_normal(rows)
        columns[f"real{number}"] = pa.array(values, mask=draw.random(rows) < 0.01)
    for number in range(WHOLES):
        columns[f"whole{number}"] = draw.integers(0, 10 ** (number + 1), rows)
    for number in range(TEXTS):
        words = pa.array([f"word {number} {index}" for index in range(10 ** (number + 1))])
        columns[f"text{number}"] = words.take(pa.array(draw.integers(0, len(words), rows)))
    columns["flag"] = draw.random(rows) < 0.5
    columns["at"] = pa.array(draw.integers(1_700_000_000, 1_800_000_000, rows) * 1_000_000, pa.timestamp("us"))
    return pa.table(columns)


def expected() -> list[dict[str, Any]]:
    """42 expectations that hold."""

    def one(name: str, **kwargs: Any) -> dict[str, Any]:
        return {"type": f"expect_{name}", "kwargs": kwargs}

    reals, wholes, texts = (
        [f"{kind}{number}" for number in range(count)]
        for kind, count in (("real", REALS), ("whole", WHOLES), ("text", TEXTS))
    )
    return [
        *(one("column_values_to_not_be_null", column=name) for name in ["id", *wholes, *texts, "flag", "at"]),
        *(one("column_values_to_not_be_null", column=name, mostly=0.9) for name in reals[:4]),
        *(one("column_values_to_be_between", column=name, min_value=-10, max_value=10) for name in reals),
        *(one("column_values_to_be_between", column=name, min_value=0, max_value=10**6) for name in wholes[:3]),
        one("column_values_to_be_in_set", column="text0", value_set=[f"word 0 {index}" for index in range(10)]),
        one("column_values_to_be_in_set", column="whole0", value_set=list(range(10))),
        *(one("column_value_lengths_to_be_between", column=name, min_value=1, max_value=20) for name in texts[1:3]),
        one("column_values_to_be_unique", column="id"),
        one("column_mean_to_be_between", column="real0", min_value=-1, max_value=1),
        one("column_mean_to_be_between", column="whole1", min_value=0, max_value=100),
        one("column_stdev_to_be_between", column="real1", min_value=0.5, max_value=2),
        one("column_min_to_be_between", column="whole2", min_value=0),
        one("column_max_to_be_between", column="real2", max_value=10),
        one("column_sum_to_be_between", column="whole3", min_value=0),
        one("column_unique_value_count_to_be_between", column="text3", min_value=1, max_value=10_000),
        one("table_row_count_to_be_between", min_value=1),
    ]


class Contenders:
    """The contenders over one table, each a function that gives the seconds it took.

    Args:
        path: where the table is stored.
    """

    def __init__(self, table: pa.Table, path: Path) -> None:
        pq.write_table(table, path)
        with path.open("rb") as opened:
            digest = stream_digest(opened)
        file = SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=digest, format="parquet")
        self.sources = [SourceSpec(uri=str(path))]
        self.root, self.path, self.frame = path.parent, path, table.to_pandas()
        asked = self.root / "expectations.json"
        asked.write_text(json.dumps(expected()))
        self.peers = {
            name: common.Peer("contracts", "validate_peers.py", name, str(path), str(asked))
            for name in ("pandera", "pointblank")
        }
        self.suite = load_suite({"name": "benchmark", "expectations": expected()}, self.root)
        self.request = ContractRequest(
            suite=self.suite, files=[file], sources=self.sources, root=str(self.root), window=None,
            window_column=None, fail_on="info", sensitive=[], profile=False,
        )  # fmt: skip

    def scan(self) -> float:
        """The contract worker, without the profile."""
        return self._worker(self.request)

    def with_profile(self) -> float:
        """The contract worker, as the validate stage calls it."""
        return self._worker(self.request.model_copy(update={"profile": True}))

    def _worker(self, request: ContractRequest) -> float:
        read._FACTS.clear()  # a process that validates has not seen the file before
        return _timed(lambda: contract_worker.main(request, lambda report: None).accepted)

    def pandera(self) -> float:
        """Pandera on a pandas frame in memory."""
        return float(self.peers["pandera"].ask(what="check")["seconds"])

    def pointblank(self) -> float:
        """Pointblank on a polars frame in memory."""
        return float(self.peers["pointblank"].ask(what="check")["seconds"])

    def gx_only(self) -> float:
        """The same without the scan."""

        def batches(columns: list[str] | None) -> Any:
            return read_batches(self.request.files, self.sources, root=self.root, selection=Selection(columns=columns))

        return _timed(lambda: check(self.suite, batches, fail_on="info", sensitive=[], resources=None).accepted)

    def gx(self) -> float:
        """Great Expectations' public interface on a frame in memory."""
        import great_expectations as gx

        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
        asset = context.data_sources.add_pandas("pandas").add_dataframe_asset("frame")
        batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": self.frame})
        suite = gx.ExpectationSuite("benchmark", expectations=self.suite["expectations"])
        return _timed(lambda: batch.validate(suite).success)

    def duckdb(self) -> float:
        """The same counts by a query over the file."""
        import duckdb

        names = self.frame.columns
        inside = "count(*) FILTER (WHERE NOT ({name} BETWEEN {low} AND {high}))"
        asked = [
            *(f'count("{name}")' for name in names),
            *(inside.format(name=f"real{number}", low=-10, high=10) for number in range(REALS)),
            *(inside.format(name=f"whole{number}", low=0, high=10**6) for number in range(3)),
            f"count(*) FILTER (WHERE text0 NOT IN ({', '.join(repr(f'word 0 {index}') for index in range(10))}))",
            f"count(*) FILTER (WHERE whole0 NOT IN ({', '.join(map(str, range(10)))}))",
            *(inside.format(name=f"length(text{number})", low=1, high=20) for number in (1, 2)),
            "count(DISTINCT id)", "avg(real0)", "avg(whole1)", "stddev_samp(real1)", "min(whole2)", "max(real2)",
            "sum(whole3)", "count(DISTINCT text3)", "count(*)",
        ]  # fmt: skip
        query = f"SELECT {', '.join(asked)} FROM read_parquet('{self.path}')"
        return _timed(lambda: duckdb.connect().execute(query).fetchone() is not None)


class Files:
    """The table as many files, of which parts are kept, and expectations that add up over files."""

    def __init__(self, table: pa.Table, folder: Path, count: int) -> None:
        self.folder, self.known = folder, folder / "parts" / KNOWN
        each = -(-table.num_rows // count)
        found = []
        for number in range(count):
            path = folder / f"{number:03}.parquet"
            pq.write_table(table.slice(number * each, each), path)
            with path.open("rb") as opened:
                digest = stream_digest(opened)
            found.append(SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=digest, format="parquet"))
        again = ("unique", "stdev")
        merging = [one for one in expected() if not any(word in one["type"] for word in again)]
        self.request = ContractRequest(
            suite=load_suite({"name": "benchmark", "expectations": merging}, folder), files=found,
            sources=[SourceSpec(uri=str(folder / "*.parquet"))], root=str(folder), window=None, window_column=None,
            fail_on="info", sensitive=[], statistics=str(folder / "parts"),
        )  # fmt: skip

    def whole(self) -> float:
        """Without parts."""
        return self._check(self.request.model_copy(update={"statistics": None}))

    def first(self) -> float:
        """No file is known."""
        shutil.rmtree(self.known.parent, ignore_errors=True)
        return self._check(self.request)

    def incremental(self) -> float:
        """One file is new; after `first`."""
        self.known.rmdir()
        (self.known.parent / NEW).rename(self.known)
        names = statistics_names(self.request)
        for name in (names[-1], [name for _, name in cut(names)][-1]):
            if name is not None:
                (self.known / name).unlink()
        return self._check(self.request)

    def _check(self, request: ContractRequest) -> float:
        for name in (KNOWN, NEW):
            (self.known.parent / name).mkdir(parents=True, exist_ok=True)
        read._FACTS.clear()
        return _timed(lambda: contract_worker.main(request, lambda report: None).accepted)

    def many(self, count: int) -> float:
        """So many files, all of which are known; the first one is there, and the others have its parts by turns."""
        parts = [path for path in sorted(self.known.iterdir()) if not path.name.startswith("group-")]
        first = self.request.files[0]
        files = [first.model_copy(update={"blake3": f"{at:064x}", "uri": f"{first.uri}{at}"}) for at in range(1, count)]
        request = self.request.model_copy(update={"files": [first, *files], "statistics": str(self.folder / "many")})
        (self.folder / "many" / NEW).mkdir(parents=True)
        known = self.folder / "many" / KNOWN
        known.mkdir()
        names = statistics_names(request)
        for positions, name in cut(names):
            here = [parts[at % len(parts)].read_bytes() for at in positions]
            group = grouped([FileStatistics.model_validate_json(data) for data in here]) if name is not None else None
            for at, data in zip(positions, here, strict=True) if group is None else ():
                (known / names[at]).write_bytes(data)
            if group is not None:
                (known / str(name)).write_bytes(canonical(group.to_json()))
        return self._check(request)


def _timed(call: Callable[[], bool]) -> float:
    since = time.perf_counter()
    if not call():
        raise RuntimeError("a contender rejected the table")
    return time.perf_counter() - since


def main() -> None:
    """Measure and print."""
    asked, watch = common.arguments(__doc__), Watch()
    packages = ("duckdb", "great-expectations", "pandas", "pyarrow")
    print(common.machine())
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))
    with common.scratch() as folder:
        contenders = Contenders(made(QUICK_ROWS if asked.quick else ROWS), folder / "rows.parquet")
        rows, columns = contenders.frame.shape
        print(f"{rows:,} rows x {columns}, {len(expected())} expectations that hold")
        for peer in contenders.peers.values():
            print(", ".join(f"{name} {version}" for name, version in peer.ask(what="versions").items()))
        names = ("scan", "with_profile", "gx_only", "gx", "duckdb", *contenders.peers)
        every = {name: getattr(contenders, name) for name in names}
        common.interleaved(every, 1)  # imports and a cold page cache
        taken = common.interleaved(every, 3 if asked.quick else 5)
        (folder / "files").mkdir()
        count, many = (QUICK_FILES, QUICK_MANY_FILES) if asked.quick else (FILES, MANY_FILES)
        files = Files(made(QUICK_ROWS if asked.quick else 10 * ROWS), folder / "files", count)
        turns = [(files.whole(), files.first(), files.incremental()) for _ in range(1 if asked.quick else 3)]
        taken |= dict(zip(("whole", "first", "incremental"), map(list, zip(*turns, strict=True)), strict=True))
        print(f"{many:,} files that are known: {files.many(many):.1f} s")
    common.show("check", {name: [value * 1000 for value in values] for name, values in taken.items()}, "ms")
    ratios = {f"vs_{name}": common.ratio(taken[name], taken["scan"]) for name in names[2:]}
    added = [both - alone for both, alone in zip(taken["with_profile"], taken["scan"], strict=True)]
    ratios["profile_cost"] = common.ratio(added, taken["scan"])
    ratios["incremental"] = common.ratio(taken["incremental"], taken["first"], 3)
    common.conclude(ratios, watch.end(), quick=asked.quick)


if __name__ == "__main__":
    main()
