"""A folder of raw files that is resolved and read as a run does it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.sources import Selection, Window, read_batches, resolve_sources
from tests.support.files import write_files
from tests.support.s3 import S3Server


def parquet(table: pa.Table | dict[str, Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), sink, **options)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    return pa.compress(data, "zstd", asbytes=True)


class Raw:
    """Raw files below `root`. `resolve` and `read` take sources as a spec has them: a text, or a dictionary."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cache = root / "state" / "digests"

    def write(self, name: str, data: str | bytes) -> Path:
        return write_files(self.root, {name: data}) / name

    def resolve(
        self, *sources: Any, window: Window | None = None, window_path: str | None = None, rehash: bool = False
    ) -> list[SourceFile]:
        specs = [SourceSpec.model_validate(source) for source in sources]
        return resolve_sources(
            specs, root=self.root, window=window, window_path=window_path, cache=self.cache, rehash=rehash
        )

    def batches(self, *sources: Any, files: list[SourceFile] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        specs = [SourceSpec.model_validate(source) for source in sources]
        found = self.resolve(*sources) if files is None else files
        return read_batches(found, specs, root=self.root, selection=Selection(**options))

    def read(self, *sources: Any, **options: Any) -> pa.Table:
        return pa.Table.from_batches(list(self.batches(*sources, **options)))


class Bucket:
    """A bucket of its own, and sources in it."""

    def __init__(self, server: S3Server) -> None:
        self.name, self.server = server.bucket(), server
        self.files = s3fs.S3FileSystem(
            key="an-access-key", secret="a-secret-key", endpoint_url=server.url, skip_instance_cache=True,
            use_listings_cache=False,
        )  # fmt: skip

    def write(self, name: str, data: bytes) -> None:
        self.files.pipe_file(f"{self.name}/{name}", data)

    def source(self, pattern: str, /, **more: Any) -> dict[str, Any]:
        return {"uri": f"s3://{self.name}/{pattern}", "storage_options": self.server.options, **more}


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    return Bucket(s3_server)


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    return Raw(tmp_path)
