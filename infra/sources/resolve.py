"""Resolve raw files once: globs, windows in paths, DVC revisions, digests. No later stage resolves them again."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.sources.digests import Digests
from infra.sources.matching import find_files, refuse_tables, suggestion
from infra.sources.partitions import folder_columns, refuse_partly_named, with_column_types
from infra.sources.places import Folder, Place, SourceEntry, place_of
from infra.sources.streams import base_name
from infra.sources.window import Window

Format = Literal["csv", "tsv", "jsonl", "parquet", "files", "text"]
CSV = ("csv", "tsv")
# They take columns from paths.
NAMED = ("files", "text")

_ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_PLACEHOLDER = re.compile(r"\{\{\s*(start|end)\s*\}\}")
_COLUMN = re.compile(r"\{([^{}]*)\}")
# Columns that each row of `format: text` has.
_OF_TEXT = ("document", "position", "pieces", "offset", "length", "text")


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
        root: the spec's folder, to which paths are relative.
        window: the run's window.
        window_path: strftime format that fills `{{ start }}` and `{{ end }}` in the sources' URIs.
        cache: folder of this machine where digests are cached.
        rehash: read every byte again.
        field: the field of the spec that holds the sources, for errors.

    Raises:
        UsageError: a file is missing or empty, or its format is unknown.
        StorageUnavailable: the S3 server does not answer.
    """
    digests = Digests(cache, rehash)
    files: list[SourceFile] = []
    for index, source in enumerate(sources):
        here = f"{field}.{index}"
        place = place_of(source, root)
        uri = _filled(source.uri, window, window_path, here)
        found, is_folder = find_files(place, uri)
        if not found:
            raise _no_match(uri, source, place, root, here)
        refuse_tables(place, found, root, here)
        resolved = [
            SourceFile(
                uri=file.uri,
                bytes=file.bytes,
                blake3=digests.of(place, file),
                format=_format(source, file, here),
                columns=_columns(source, file, place, root, here, is_folder),
                source=index,
                rev=place.rev,
                hidden_index=_format(source, file, here) == "parquet" and digests.hides_index(place, file),
            )
            for file in found
        ]
        _refuse_empty(resolved, here)
        refuse_partly_named(resolved, here)
        files += resolved
    digests.save()
    return with_column_types(files)


def local_files(uris: Iterable[str], root: Path) -> list[Path]:
    """The files on this machine that sources' URIs name, in any window; files that do not exist are skipped.

    Args:
        root: the spec's folder, to which paths are relative.
    """
    found: list[Path] = []
    for uri in uris:
        if not uri.startswith("s3://"):
            with contextlib.suppress(UsageError):  # reported where the file is read
                found += [Path(one.uri) for one in find_files(Folder(root), _PLACEHOLDER.sub("*", uri))[0]]
    return found


def listed_sources(sources: Iterable[SourceSpec], root: Path) -> list[SourceEntry]:
    """The files that the sources name, in any window, as their places list them; StorageUnavailable.

    FileNotFoundError if a file vanishes while it is listed.
    """
    return [file for one in sources for file in find_files(place_of(one, root), _PLACEHOLDER.sub("*", one.uri))[0]]


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


def _no_match(uri: str, source: SourceSpec, place: Place, root: Path, here: str) -> UsageError:
    at = f" at {source.rev}" if source.rev else ""
    near = suggestion(place, uri)
    tracked = " Neither Git nor DVC may track it there: `dvc add` and commit it, or name a rev that has it."
    remedy = f"Correct the path or glob.{tracked if source.rev else ''}"
    return UsageError(f"{here}.uri: no file matches {uri}{at} (from {root}){near}.", remedy=remedy)


def _format(source: SourceSpec, file: SourceEntry, here: str) -> Format:
    if source.format != "auto":
        return source.format
    ending, _ = base_name(file.uri)
    if ending not in _ENDINGS:
        raise UsageError(
            f"{here}.format: the format of {file.uri} is not clear from its name.",
            remedy="Set format to csv, tsv, jsonl, parquet, files or text.",
        )
    return _ENDINGS[ending]


def _refuse_empty(files: list[SourceFile], here: str) -> None:
    """UsageError for empty files, but not for those of `files`, `text` and JSON Lines among others."""
    empty = [file for file in files if not file.bytes]
    if len(empty) < len(files):
        empty = [file for file in empty if file.format not in (*NAMED, "jsonl")]
    if empty:
        raise UsageError(f"{here}.uri: {empty[0].uri} is empty.", remedy="Write it again, or leave it out.")


def _columns(
    source: SourceSpec, file: SourceEntry, place: Place, root: Path, here: str, is_folder: bool
) -> dict[str, str]:
    """The columns that a file's path gives, the same anywhere: for `files` and `text` those of the pattern, and the
    path below the glob's fixed part or the folder; for rows those that folders name."""
    if source.format not in NAMED:
        if source.pattern is not None:
            raise UsageError(
                f"{here}.pattern has an effect only with format: files or text.", remedy="Set format: files."
            )
        return folder_columns(_written_path(source, file, place, root), here) if source.hive_partitioning else {}
    name, ours = ("path", ("path", "bytes")) if source.format == "files" else ("document", _OF_TEXT)
    fixed = re.split(r"[*?\[]|\{\{", source.uri, maxsplit=1)[0]
    start = fixed.rstrip("/") if is_folder and fixed == source.uri else fixed.rpartition("/")[0]
    if file.uri.startswith("s3://"):
        path = file.uri.removeprefix(start).lstrip("/")
    elif source.rev is not None:
        repository = getattr(place, "repository", root)
        path = os.path.relpath(repository / file.uri, os.path.abspath(root / start))
    else:
        path = os.path.relpath(file.uri, os.path.abspath(root / Path(start).expanduser()))
    if source.pattern is None:
        return {name: path}
    import pyarrow as pa  # takes a while, and most sources have no pattern
    import pyarrow.compute as pc

    names, pattern = _pattern(source.pattern, ours, here)
    # RE2, because Python would try every way of sharing a name out among many columns.
    values = pc.extract_regex(pa.array([file.uri]), pattern)[0].as_py()
    if values is None:
        raise UsageError(
            f"{here}.pattern: the path {file.uri} does not end in {source.pattern}.",
            remedy="Correct the pattern or the glob.",
        )
    return {name: path, **dict(zip(names, values.values(), strict=True))}


def _written_path(source: SourceSpec, file: SourceEntry, place: Place, root: Path) -> str:
    """A file's path as a source writes it: below its bucket or the spec's folder, else the full path."""
    if file.uri.startswith("s3://"):
        return file.uri.removeprefix("s3://").partition("/")[2]
    path = str(getattr(place, "repository", root) / file.uri)
    elsewhere = os.path.isabs(os.path.expanduser(source.uri)) and not Path(path).is_relative_to(root)
    return path if elsewhere else os.path.relpath(path, root)


def _pattern(text: str, ours: tuple[str, ...], here: str) -> tuple[list[str], str]:
    """The columns that a pattern of paths names, and its regular expression."""
    names = _COLUMN.findall(text)
    bad = [name for name in names if not name.isidentifier() or name in ours]
    if not names or bad or len(set(names)) < len(names):
        raise UsageError(
            f"{here}.pattern: {text} must name at least one column, none of them twice, and none that always exists "
            f"({', '.join(ours)}).",
            remedy="Write each column once in braces, such as {label}/{name}.png.",
        )
    parts = _COLUMN.split(text)
    literal = [re.escape(part) if i % 2 == 0 else f"(?P<c{i}>[^/]+)" for i, part in enumerate(parts)]
    return names, rf"(?:^|/){''.join(literal)}\z"
