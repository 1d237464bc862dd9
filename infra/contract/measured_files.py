"""Measures single raw files for a contract, on this machine or, in pieces of work, on others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.contract.measures import ROWS, Measure
from data_contracts.contract.parts import name_of, storable
from data_contracts.contract.rows import Data
from data_contracts.contract.scan.duck import Resources
from data_contracts.contract.scan.scan import scanned
from data_contracts.errors import UsageError
from data_contracts.file_part import FilePart
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra import scratch
from infra.contract.profiles import profiled
from infra.machine import group_limit_bytes
from infra.pieces import Cluster
from infra.sources import Selection, file_facts, parquet_in_place, read_batches
from infra.sources.read import FileFacts, remember_facts

# Of DuckDB's before it spills, at most; what Arrow, Parquet and Great Expectations hold comes on top.
MEMORY_BYTES = 512 * 2**20
# Of the files of one piece of work, as stored. Starting a piece takes as long as measuring some MB.
LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 2**22, 2**28

KnownFile = tuple[SourceFile, FileFacts]


@dataclass(frozen=True)
class FileMeasures:
    """What is measured of each raw file; may be sent to another machine.

    Attributes:
        sources, root: as for `read_batches`.
        sensitive: columns of which only counts are kept.
        measures: aggregates that add up over files, and the number of rows.
        schema: of all files together.
        schema_digest: as each part names the schema of all files.
    """

    sources: list[SourceSpec]
    root: Path
    sensitive: list[str]
    measures: list[Measure]
    schema: pa.Schema
    schema_digest: str


def measured_part(wanted: FileMeasures, file: SourceFile, resources: Resources) -> FilePart | None:
    """A file's part; None if DuckDB cannot measure it. Errors as in `read_batches`."""
    sources, root, schema = wanted.sources, wanted.root, wanted.schema
    select = Selection(schema=schema)

    def read(columns: list[str] | None) -> Any:
        for batch in read_batches([file], sources, root=root, selection=replace(select, columns=columns)):
            resources.moved()
            yield batch

    columns = sorted({name for one in wanted.measures for name in one.columns}) or schema.names[:1]
    data = Data(schema, read, lambda: parquet_in_place([file], sources, root))
    values = scanned(wanted.measures, data, columns, resources)
    profile = profiled(
        [file],
        sources,
        root,
        selection=select,
        sensitive=wanted.sensitive,
        on_batch=resources.moved,
        empty=True,
    )
    if values is None or profile is None:
        return None
    facts = file_facts(file, sources, root)
    return FilePart(
        own=facts.schema.serialize().to_pybytes().hex(),
        text_from=facts.text_from,
        row_groups=list(facts.row_groups),
        schema_of_all=wanted.schema_digest,
        rows=values[ROWS],
        values={name_of(one): value for one, value in values.items() if storable(value)},
        profile=profile,
    )


def memory_bytes() -> int:
    """Half of what this process may use, as the rest of it needs some 200 MB, and decoding some for each thread."""
    return min(MEMORY_BYTES, (group_limit_bytes() or 2 * MEMORY_BYTES) // 2)


def facts_elsewhere(
    cluster: Cluster, sources: list[SourceSpec], root: Path, files: Sequence[SourceFile]
) -> Iterator[FileFacts]:
    """The facts about files, in their order, found by other machines."""
    pieces = in_pieces([file.bytes for file in files], cluster.at_once)
    return cluster.map(partial(read_facts, sources, root), ([files[at] for at in piece] for piece in pieces))


def parts_elsewhere(cluster: Cluster, wanted: FileMeasures, files: Sequence[SourceFile]) -> Iterator[FilePart | None]:
    """The parts of files, in their order, measured by other machines; this process knows the facts about the files."""
    known = [(file, file_facts(file, wanted.sources, wanted.root)) for file in files]
    pieces = in_pieces([file.bytes for file in files], cluster.at_once)
    return cluster.map(partial(measure_file, wanted), ([known[at] for at in piece] for piece in pieces))


def read_facts(sources: list[SourceSpec], root: Path, file: SourceFile) -> FileFacts:
    """The facts about a file; work of another machine."""
    _refuse_unreadable(file)
    return file_facts(file, sources, root)


def measure_file(wanted: FileMeasures, known: KnownFile) -> FilePart | None:
    """A file's part; work of another machine, which reads the file's bytes no more than once for their digest."""
    file, facts = known
    _refuse_unreadable(file)
    remember_facts(file, wanted.sources, facts)
    with scratch.make("contract") as spills:
        # One thread: the cluster already runs as many pieces as should run at once.
        return measured_part(wanted, file, Resources(spills.path, memory_bytes(), threads=1))


def _refuse_unreadable(file: SourceFile) -> None:
    """UsageError for a file that the machine which handed over the work can read, and this one cannot."""
    if file.rev is None and "://" not in file.uri and not os.access(file.uri, os.R_OK):
        raise UsageError(
            f"contract.runner: a worker of the cluster cannot read {file.uri}.",
            remedy="Let source files have the same path on every machine, or put them on S3. If the file was removed, "
            "start a new run.",
        )


def in_pieces(sizes: Sequence[int], at_once: int) -> Iterable[range]:
    """The neighbours in each piece of work: `at_once` pieces of about one size, or more that end at 256 MiB."""
    enough = min(max(sum(sizes) // at_once, LEAST_PIECE_BYTES), MOST_PIECE_BYTES)
    start = piece = 0
    for at, size in enumerate(sizes):
        piece += size
        if piece >= enough or at + 1 == len(sizes):
            yield range(start, at + 1)
            start, piece = at + 1, 0
