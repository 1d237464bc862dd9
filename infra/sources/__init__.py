"""The raw data: which files a run reads, looked up once, and their rows as Arrow batches."""

from __future__ import annotations

from infra.sources.digests import digest_now
from infra.sources.places import Places
from infra.sources.read import read_batches
from infra.sources.resolve import resolve_sources
from infra.sources.window import Window, parse_window

__all__ = ["Places", "Window", "digest_now", "parse_window", "read_batches", "resolve_sources"]
