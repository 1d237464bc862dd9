"""A project to which files are added night by night, sharded in this process."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from data_contracts.handoffs import Dataset
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import shard as stage
from tests.support.shard_rows import rows_in
from tests.support.tiny import write_project
from training.shard import worker

ROWS = 40
SPLIT = {"key": "id", "fractions": {"train": 0.6, "test": 0.4}}


def shard_here(patch: pytest.MonkeyPatch) -> None:
    """Have the shard stage do its work in this process, which saves the start of another."""
    patch.setattr(stage, "run_child", lambda child, request, **_: worker.main(request, lambda report: None))


class Nights:
    """A project to which files are added, and its datasets."""

    def __init__(self, folder: Path, **data: Any) -> None:
        self.folder, self.data = folder, {"source": "days/*", **data}
        (folder / "days").mkdir(parents=True)
        self.run: Run | None = None
        self.window: str | None = None

    def put(self, name: str, rows: pa.Table) -> None:
        """Write a file in the format of its name."""
        path = self.folder / "days" / name
        if path.suffix == ".parquet":
            pq.write_table(rows, path)
        elif path.suffix == ".csv":
            pyarrow.csv.write_csv(rows, path)
        else:
            path.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in rows.to_pylist()))

    def open(self, **shards: Any) -> Run:
        """A run on all files now."""
        section = {"split": SPLIT, "target_size_bytes": 2048, "append": True, **shards}
        spec = write_project(self.folder, {"data": self.data, "shards": section})
        options = RunOptions(window=self.window)
        self.run = open_run(read_spec(spec), recorded=False, options=options)
        return self.run

    def shard(self, **shards: Any) -> Dataset:
        """The dataset of all files now, made or found."""
        run = self.open(**shards)
        return stage.find_dataset(run) or stage._make(run, None)

    def sentence(self, dataset: Dataset) -> str:
        """What the stage's line says."""
        found = stage.find_datasets(self.run, stage.dataset_key(self.run), None)
        assert found.handoff == dataset
        return found.sentence

    def rows(self, dataset: Dataset) -> tuple[dict[str, str], dict[int, tuple[str, dict[str, Any]]]]:
        """Columns with their types, and each row with its split by its id."""
        found = {
            row["id"]: (split, dict(sorted(row.items())))
            for split in dataset.splits
            for row in rows_in(self.run.store, dataset, split)
        }
        return dict(sorted(dataset.columns.items())), found


def uris(dataset: Dataset) -> set[str]:
    """The directories in which its shards lie."""
    return {shard.uri for shard in chain(*dataset.splits.values())}


def table(first: int, rows: int = ROWS, **columns: Any) -> pa.Table:
    """Rows with ids from `first` on; a column is one value for all rows, or an array."""
    made = {name: one if isinstance(one, pa.Array) else pa.array([one] * rows) for name, one in columns.items()}
    return pa.table({"id": pa.array(range(first, first + rows), pa.int64()), **made})
