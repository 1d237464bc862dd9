"""Sharding without a store: tables become source files, shards become files in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from data_contracts.handoffs import FileEntry, SourceFile
from data_contracts.pipeline_spec import ShardsSpec, SourceSpec
from infra.files import file_digest
from tests.support.shard_rows import shard_reader
from training import formats
from training.shard.spill import Spill
from training.shard.two_passes import Sharded, Sharding, shard_files
from training.shard.units import Source


@dataclass(frozen=True)
class Kept:
    """Stores shards in a folder."""

    folder: Path
    format: str

    def __call__(self, name: str, rows: pa.Table) -> FileEntry:
        path = self.folder / name
        formats.write_shard(self.format, rows, path)
        data = path.read_bytes()
        return FileEntry(path=name, bytes=len(data), blake3=blake3(data).hexdigest())


def small_runs(patch: pytest.MonkeyPatch, run_bytes: int) -> None:
    """Have every run of a spill written when this many bytes wait for it."""
    original = Spill.__init__

    def init(self: Spill, folder: Path, _run_bytes: int, _keep_bytes: int = 0, *rest: Any) -> None:
        original(self, folder, run_bytes, 0, *rest)

    patch.setattr(Spill, "__init__", init)


class Shards:
    """What sharding some tables, each a source file, made of them; `transform` names a function of `module`.

    With `pieces`, the tables are documents by name instead.
    """

    def __init__(
        self,
        folder: Path,
        tables: Sequence[pa.Table] | Mapping[str, bytes],
        *,
        row_group_rows: int | None = None,
        pieces: dict[str, int] | None = None,
        **options: Any,
    ):
        raw, self.folder, spilled = folder / "raw", folder / "shards", folder / "spilled"
        for one in (raw, self.folder, spilled):
            one.mkdir(parents=True, exist_ok=True)
        files = []
        for number, table in enumerate(tables):
            path = raw / (table if isinstance(table, str) else f"{number}.parquet")
            if isinstance(tables, Mapping):
                path.write_bytes(tables[path.name])
            else:
                pq.write_table(table, path, row_group_size=row_group_rows)
            how: dict[str, Any] = {"format": "text", "columns": {"document": path.name}} if pieces else {}
            files.append(
                SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=file_digest(path),
                           **{"format": "parquet", **how})
            )  # fmt: skip
        names = ("project", "one_split", "required", "sensitive", "earlier", "report", "cluster", "left_out")
        given = {name: options.pop(name) for name in names if name in options}
        self.spec = ShardsSpec(**{"split": {"key": "id"}, "target_size_bytes": 1024, **options})
        cut = {"format": "text", "pieces": pieces} if pieces else {}
        source = Source([SourceSpec.model_validate({"uri": str(raw), **cut})], raw)
        kept = Kept(self.folder, self.spec.format)
        self.sharded: Sharded = shard_files(Sharding(files, source, self.spec, kept, spilled, **given))
        self.spilled = sorted(path.name for path in spilled.iterdir())

    @property
    def digests(self) -> list[tuple[str, str, int]]:
        """Every shard in order: name, digest, rows."""
        return [(one.path, one.blake3, one.rows) for shards in self.sharded.splits.values() for one in shards]

    def read(self, split: str) -> pa.Table:
        """A split's rows in stored order."""
        read = shard_reader(self.spec.format)
        tables = [read(self.folder / one.path, self.sharded.schema) for one in self.sharded.splits[split]]
        return pa.concat_tables([self.sharded.schema.empty_table(), *tables])

    def rows(self, split: str) -> int:
        """Rows of a split."""
        return sum(one.rows for one in self.sharded.splits[split])
