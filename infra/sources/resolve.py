"""Looks raw files up once: globs, windows in paths, DVC revisions, digests. Nothing later looks them up again."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.spec import SourceSpec
from infra.sources.digests import Digests
from infra.sources.places import Found, place_of
from infra.sources.window import Window

Format = Literal["csv", "jsonl", "parquet", "files"]

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_PLACEHOLDER = re.compile(r"\{\{\s*(start|end)\s*\}\}")
_COLUMN = re.compile(r"\{([^{}]*)\}")


def resolve_sources(
    sources: list[SourceSpec],
    *,
    root: Path,
    window: Window | None,
    window_path: str | None,
    cache: Path,
    rehash: bool = False,
    field: str = "data.source",
) -> list[SourceFile]:
    """The files that the sources name, in their order, a glob's files by name, each with its digest.

    Args:
        root: the spec's folder, from which paths are taken.
        window: the run's window.
        window_path: strftime format that fills `{{ start }}` and `{{ end }}` in the sources' URIs.
        cache: folder of this machine where digests are remembered.
        rehash: read every byte again.
        field: the field of the spec that the sources stand in, for errors.

    Raises:
        UsageError: a file is missing, empty, or of a format that cannot be told.
        StorageUnavailable: the S3 server does not answer.
    """
    digests = Digests(cache, rehash)
    files: list[SourceFile] = []
    for index, source in enumerate(sources):
        here = f"{field}.{index}"
        place = place_of(source, root)
        uri = _filled(source.uri, window, window_path, here)
        found = place.find(uri)
        if not found:
            at = f" at {source.rev}" if source.rev else ""
            raise UsageError(
                f"{here}.uri: no file matches {uri}{at} (from {root}).", remedy="Correct the path or glob."
            )
        resolved = [
            SourceFile(
                uri=file.uri,
                bytes=file.bytes,
                blake3=digests.of(place, file),
                format=_format(source, file, here),
                columns=_columns(source, file, place, root, here),
                source=index,
                rev=place.rev,
            )
            for file in found
        ]
        _refuse_empty(resolved, here)
        files += resolved
    digests.save()
    return files


def base_name(uri: str) -> tuple[str, str]:
    """A file's ending without its compression, and the compression's (`""` if it has none), both in lower case."""
    name, ending = os.path.splitext(uri.lower())
    return (os.path.splitext(name)[1], ending) if ending in COMPRESSIONS else (ending, "")


def _filled(uri: str, window: Window | None, pattern: str | None, here: str) -> str:
    if not _PLACEHOLDER.search(uri):
        return uri
    if window is None or pattern is None:
        raise UsageError(
            f"{here}.uri: {uri} has a window's placeholder, but data.window.path is not set.",
            remedy="Set data.window.path to a strftime format, such as '%Y-%m-%d', and give --window.",
        )
    times = {"start": window.start, "end": window.end}
    return _PLACEHOLDER.sub(lambda match: times[match[1]].strftime(pattern), uri)


def _format(source: SourceSpec, file: Found, here: str) -> Format:
    if source.format != "auto":
        return source.format
    ending, _ = base_name(file.uri)
    if ending not in _ENDINGS:
        raise UsageError(
            f"{here}.format: the ending of {file.uri} does not say what it is.",
            remedy="Set format to csv, jsonl, parquet or files.",
        )
    return _ENDINGS[ending]


def _refuse_empty(files: list[SourceFile], here: str) -> None:
    """Empty files are refused, except among `files`, where an empty text is a text."""
    empty = [file.uri for file in files if not file.bytes]
    if empty and (files[0].format != "files" or len(empty) == len(files)):
        raise UsageError(f"{here}.uri: {empty[0]} is empty.", remedy="Write it again or leave it out.")


def _columns(source: SourceSpec, file: Found, place: object, root: Path, here: str) -> dict[str, str]:
    """For `files`: the pattern's columns, and the path below the glob's fixed part, the same on any machine."""
    if source.format != "files":
        if source.pattern is not None:
            raise UsageError(f"{here}.pattern has an effect only with format: files.", remedy="Set format: files.")
        return {}
    fixed = re.split(r"[*?\[]|\{\{", source.uri, maxsplit=1)[0]
    start = fixed.rpartition("/")[0]
    if file.uri.startswith("s3://"):
        path = file.uri.removeprefix(start).lstrip("/")
    elif source.rev is not None:
        repository = getattr(place, "repository", root)
        path = os.path.relpath(repository / file.uri, os.path.abspath(root / start))
    else:
        path = os.path.relpath(file.uri, os.path.abspath(root / Path(start).expanduser()))
    if source.pattern is None:
        return {"path": path}
    match = _pattern(source.pattern, here).search(file.uri)
    if match is None:
        raise UsageError(
            f"{here}.pattern: the path {file.uri} does not end in {source.pattern}.",
            remedy="Correct the pattern or the glob.",
        )
    return {"path": path, **match.groupdict()}


def _pattern(text: str, here: str) -> re.Pattern[str]:
    names = _COLUMN.findall(text)
    bad = [name for name in names if not name.isidentifier() or name in ("path", "bytes")]
    if not names or bad or len(set(names)) < len(names):
        raise UsageError(
            f"{here}.pattern: {text} names no columns, or one twice, or path or bytes, which are there anyway.",
            remedy="Write each column once in braces, such as {label}/{name}.png.",
        )
    parts = _COLUMN.split(text)
    literal = [re.escape(part) if i % 2 == 0 else f"(?P<{part}>[^/]+)" for i, part in enumerate(parts)]
    return re.compile(f"(?:^|/){''.join(literal)}$")
