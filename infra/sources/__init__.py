"""The raw data: the files that a run reads, resolved once, and their rows as Arrow batches."""

from __future__ import annotations

from infra.sources.ahead import read_ahead
from infra.sources.digests import digest_now
from infra.sources.in_place import parquet_in_place
from infra.sources.places import Places
from infra.sources.read import Selection, file_facts, in_window, merged_schema, read_batches
from infra.sources.resolve import local_files, resolve_sources
from infra.sources.window import Window, parse_window

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
    "read_ahead",
    "read_batches",
    "resolve_sources",
]
