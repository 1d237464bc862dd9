"""The raw data: the files that a run reads, resolved once, and their rows as Arrow batches."""

from __future__ import annotations

from infra.sources.places import Places
from infra.sources.read import (
    Selection,
    file_facts,
    in_window,
    merged_schema,
    parquet_in_place,
    prefetch,
    read_batches,
)
from infra.sources.resolve import Window, digest_now, local_files, parse_window, resolve_sources

__all__ = [
    "Places",
    "Selection",
    "Window",
    "digest_now",
    "file_facts",
    "in_window",
    "local_files",
    "merged_schema",
    "parquet_in_place",
    "parse_window",
    "prefetch",
    "read_batches",
    "resolve_sources",
]
