"""Gives DuckDB resolved Parquet files to read by itself, with all cores: open files whose digests were checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from data_contracts.contract.rows import ParquetFiles
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.sources.partitions import partition_value
from infra.sources.places import Places
from infra.sources.read import file_facts
from infra.sources.streams import random_access

# A process may usually have 1024 open files.
_MOST = 256
# The open files of this process: a path below it opens the file that is open, even if its name was given to another.
_OPEN = Path("/proc/self/fd")


@contextlib.contextmanager
def parquet_in_place(files: list[SourceFile], sources: list[SourceSpec], root: Path) -> Iterator[ParquetFiles | None]:
    """The files, all rows of them in order, to be read until this ends; None if they are not all Parquet.

    As long as they are read they stay open, and each is read through its descriptor. So the bytes are those whose
    digest was checked before; if a file was written to meanwhile, this raises.

    Raises: CorruptError if a file's bytes are not what was resolved; nothing that was read may be used then.
    """
    # A column that folders name for some files only may be in the others themselves.
    unlike = any(file.format != "parquet" or file.columns.keys() != files[0].columns.keys() for file in files)
    if not files or len(files) > _MOST or unlike or not _OPEN.is_dir():
        yield None
        return
    places = Places(sources, root)
    facts = [file_facts(file, sources, root) for file in files]
    rows = [sum(count for count, _ in one.row_groups) for one in facts]
    with contextlib.ExitStack() as held:
        opened = [
            held.enter_context(random_access(file, places.of(file), one.stamp))
            for file, one in zip(files, facts, strict=True)
        ]
        paths = tuple(str(_OPEN / str(one.fileno())) for one in opened)
        constants = {
            name: tuple(partition_value(file, name, pa.string()).as_py() for file in files) for name in files[0].columns
        }
        yield ParquetFiles(paths, tuple(accumulate(rows[:-1], initial=0)), constants)
