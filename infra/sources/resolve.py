"""Resolves raw files once: globs, windows in paths, DVC revisions, digests. No later stage resolves them again.

The window is the part of the data that a run reads: START..END, half open. Digests of unchanged files come from a cache
on this machine. Folders may name columns (`fold=train/part-0.parquet`), as Spark and Hive write them: one value for a
file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.quoting import column_shown
from infra.files import hash_stream, replace_json, stream_digest
from infra.sources.documents import DOCUMENT, PLACE, TEXT
from infra.sources.places import (
    Folder,
    Place,
    Places,
    SourceEntry,
    SourceMissing,
    base_name,
    find_files,
    place_of,
    refuse_tables,
    stored_bytes,
    suggestion,
)
from infra.sources.types import plain

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
# How a time in ISO format begins.
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")
_PLACEHOLDER = re.compile(r"\{\{\s*(start|end)\s*\}\}")
_COLUMN = re.compile(r"\{([^{}]*)\}")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LENGTH = re.compile(r"(\d+)([smhdw])")
_REMEDY = "Write START..END in ISO format, such as 2026-01-01..2026-02-01, or a length, such as 7d or 12h."
_FILE = "sources.json"
_FOOTER_BYTES = 2**26
_INDEX = b"__index_level_"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile("0|-?[1-9][0-9]*")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WITHOUT = "set hive_partitioning: false for this source, and folders' names give no columns"


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
    name, ours = ("path", ("path", "bytes")) if source.format == "files" else (DOCUMENT, (*PLACE, TEXT))
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


@dataclass(frozen=True)
class Window:
    """Times t with start <= t < end, both with a time zone; `parse_window` reads what `str` writes."""

    start: datetime
    end: datetime

    @classmethod
    def from_iso(cls, start: str, end: str) -> Window:
        """The window between two ISO times; a time without a zone is UTC."""
        return cls(_aware(datetime.fromisoformat(start)), _aware(datetime.fromisoformat(end)))

    def __str__(self) -> str:
        return f"{self.start.isoformat()}..{self.end.isoformat()}"


def parse_window(text: str, now: datetime) -> Window:
    """Parse a window.

    Args:
        text: `START..END` in ISO format (without a zone: UTC), or a length that ends at `now`: `12h`, `7d`, `2w`.
        now: the scheduled time, or the present.

    Raises:
        UsageError: `text` is neither, or END is not after START.
    """
    now = _aware(now)
    length = _LENGTH.fullmatch(text.strip())
    try:
        if length:
            start, end = now - timedelta(**{_UNITS[length[2]]: int(length[1])}), now
        else:
            first, dots, last = text.partition("..")
            if not dots:
                raise ValueError("it has no `..`")
            window = Window.from_iso(first.strip(), last.strip())
            start, end = window.start, window.end
    except (ValueError, OverflowError) as error:
        raise UsageError(f"The window {text!r} cannot be read: {error}.", remedy=_REMEDY) from error
    if start >= end:
        raise UsageError(f"The window {text!r} is empty: its end is not after its start.", remedy=_REMEDY)
    return Window(start, end)


def window_since(since: str) -> Window:
    """The requested time: a length, START..END, or the first day."""
    now = datetime.now(UTC)
    try:
        day = datetime.fromisoformat(since)
    except ValueError:
        try:
            window = parse_window(since, now)
        except UsageError as error:
            if ".." in since:
                raise
            remedy = "Name a length such as 7d or 12h, or a day such as 2026-11-20."
            why = "is a day that no calendar has" if _DAY.match(since.strip()) else "cannot be read"
            raise UsageError(f"--since: {since!r} {why}.", remedy=remedy) from error
    else:
        window = Window(day if day.tzinfo else day.replace(tzinfo=UTC), now)
    if window.start >= now:
        raise UsageError(f"--since: {since} lies in the future.", remedy="Name a time that has passed, such as 30d.")
    try:
        # In UTC, as run ids and the table are.
        return Window(window.start.astimezone(UTC), window.end.astimezone(UTC))
    except OverflowError as error:
        raise UsageError(f"--since: {since} lies too far away.", remedy="Name a later time, such as 30d.") from error


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


class Digests:
    """BLAKE3 digests by place and stamp.

    Args:
        cache: folder of the cache file; it may be deleted at any time.
        rehash: ignore all cached digests.
    """

    def __init__(self, cache: Path, rehash: bool) -> None:
        self.path = cache / _FILE
        self._known = {} if rehash else self._read()
        self._learned: dict[str, list[str]] = {}

    def of(self, place: Place, file: SourceEntry) -> str:
        """The digest of the file's bytes, cached or computed; CorruptError if DVC recorded another MD5."""
        return self._recalled(f"{place.rev or ''}:{file.uri}", file, lambda: _hash(place, file))

    def hides_index(self, place: Place, file: SourceEntry) -> bool:
        """Whether a Parquet file's footer names a column that pandas hides, cached or looked up; no parser reads it."""
        name = f"index:{place.rev or ''}:{file.uri}"
        return _INDEX.decode() in self._recalled(name, file, lambda: _index_in_footer(place, file))

    def _recalled(self, name: str, file: SourceEntry, look: Callable[[], str]) -> str:
        stamp, fact = self._known.get(name, ("", ""))
        if not file.settled or stamp != file.stamp:
            fact = look()
        if file.settled:
            self._learned[name] = [file.stamp, fact]
        return fact

    def save(self) -> None:
        """Cache the computed digests; two runs at once may each lose the other's, which costs one more hashing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self.path, {**self._read(), **self._learned})

    def _read(self) -> dict[str, list[str]]:
        try:
            return dict(json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return {}


def digest_now(file: SourceFile, places: Places) -> str | None:
    """The current digest of a raw file's bytes, without the cache; None if the file no longer exists.

    Raises: UsageError if it may not be read; CorruptError if DVC's copy is damaged; StorageUnavailable if its place
    does not answer.
    """
    try:
        with contextlib.closing(places.of(file).open(file.uri)) as stream:
            # A store may name any file, such as /proc/self/pagemap, which says that it is empty and holds 256 GiB.
            empty = isinstance(stream, BufferedReader) and not os.fstat(stream.fileno()).st_size
            return stream_digest(BytesIO() if empty else stream, file.bytes)
    except (FileNotFoundError, SourceMissing):
        return None


def _index_in_footer(place: Place, file: SourceEntry) -> str:
    with contextlib.closing(place.open(file.uri)) as stream:
        stream.seek(max(0, file.bytes - 8))
        size = min(int.from_bytes(stream.read(4), "little"), _FOOTER_BYTES, max(0, file.bytes - 8))
        stream.seek(file.bytes - 8 - size if size else 0)
        return _INDEX.decode() if _INDEX in stream.read(size) else ""


def _hash(place: Place, file: SourceEntry) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    with contextlib.closing(stored_bytes(file.uri, place)) as stream:
        _, found = hash_stream(stream, *([md5.update] if file.md5 else []))
    if file.md5 and md5.hexdigest() != file.md5:
        raise CorruptError(
            f"DVC's copy of {file.uri} at {place.rev} is damaged: its MD5 is not the recorded {file.md5}.",
            remedy="Delete it from DVC's cache and run `dvc pull`.",
        )
    return found


def folder_columns(path: str, here: str) -> dict[str, str]:
    """The columns that the folders of a path name, and their values as text; UsageError if one is named twice."""
    values: dict[str, str] = {}
    for name, sign, value in (folder.partition("=") for folder in path.split("/")[:-1]):
        if sign and name:
            if _unescaped(name) in values:
                raise UsageError(
                    f"{here}.uri: two folders of {path} give the column {name}.", remedy=f"Rename one, or {_WITHOUT}."
                )
            values[_unescaped(name)] = _unescaped(value)
    return values


def refuse_partly_named(files: Sequence[SourceFile], here: str) -> None:
    """UsageError if the folders of some files of a source name a column, and those of others do not."""
    for file in files:
        for name in files[0].columns.keys() ^ file.columns.keys():
            having, other = (file, files[0]) if name in file.columns else (files[0], file)
            raise UsageError(
                f"{here}.uri: a folder of {having.uri} gives the column {column_shown(name)}, and no folder of"
                f" {other.uri} does.",
                remedy=f"Move the files so that each has the same folders, or {_WITHOUT}.",
            )


def with_column_types(files: list[SourceFile]) -> list[SourceFile]:
    """The files with one type for each column that their folders name: whole numbers, dates, or text."""
    texts: dict[str, set[str]] = {}
    for file in files:
        for name, text in file.columns.items() if is_partitioned(file) else ():
            texts.setdefault(name, set()).add(text)
    types = {name: _type(values - {_NO_VALUE}) for name, values in texts.items()}
    return [
        file.model_copy(update={"column_types": {name: types[name] for name in file.columns}})
        if is_partitioned(file)
        else file
        for file in files
    ]


def is_partitioned(file: SourceFile) -> bool:
    """Whether a file of rows has columns that its folders name; of `files` and `text`, a pattern gives the columns."""
    return bool(file.columns) and file.format not in NAMED


def partition_schema(file: SourceFile) -> pa.Schema:
    """The columns that a file's folders name."""
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in file.column_types.items()])


def partition_value(file: SourceFile, name: str, kind: pa.DataType) -> pa.Scalar:
    """The value that a file's folder gives a column, in a type that its text fits; else pa.ArrowInvalid."""
    return pa.scalar(None if file.columns[name] == _NO_VALUE else file.columns[name], pa.string()).cast(kind)


def with_partitions(batch: pa.RecordBatch, file: SourceFile, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of the file's own columns, with those of `schema` that its folders name.

    UsageError if the file has such a column, too, and another value in it. A row of JSON Lines may leave it out.
    """
    wanted, own = set(schema.names), set(batch.schema.names)
    for name in filter(wanted.__contains__, file.column_types):
        if name not in own:
            value = partition_value(file, name, schema.field(name).type)
            columns = [*batch.columns, pa.repeat(value, batch.num_rows)]
            batch = pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, name])
            continue
        at = batch.schema.get_field_index(name)
        column = batch.column(at).cast(plain(batch.column(at).type))
        try:
            value = partition_value(file, name, column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _disagreement(file, name) from error
        if file.format == "jsonl":
            column = pc.coalesce(column, value)
        same = pc.equal(column, value) if value.is_valid else pc.is_null(column)
        if pc.any(pc.invert(pc.fill_null(same, False))).as_py():
            raise _disagreement(file, name)
        batch = batch.set_column(at, name, column)
    return batch


def _disagreement(file: SourceFile, name: str) -> UsageError:
    return UsageError(
        f"{file.uri}: the file's own column {column_shown(name)} has other values than the folder's name says.",
        remedy=f"Correct the file or the folder's name; or {_WITHOUT}.",
    )


def _unescaped(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def _type(texts: Collection[str]) -> str:
    """The name of the type that holds these texts; a number with leading zeros is a text, such as a postal code."""
    kinds = {_type_of(text) for text in texts}
    return kinds.pop() if len(kinds) == 1 else "string"


def _type_of(text: str) -> str:
    if _WHOLE.fullmatch(text):
        return "int64" if -(2**63) <= int(text) < 2**63 else "string"
    with contextlib.suppress(ValueError):  # of a day that does not exist
        if _DATE.fullmatch(text) and date.fromisoformat(text):
            return "date32"
    return "string"
