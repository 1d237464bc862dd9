"""The places of raw files: a folder, an S3 bucket, or a DVC repository at a revision. Each finds and opens files."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from data_contracts.errors import StorageUnavailable, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.plain_file import open_plain
from infra.store.s3 import connect, translate

_TICK_NS = 2 * 10**9
# Of names that are compared with one that does not exist; the second is the most that a server gives at once.
_MOST_NAMES, _MOST_KEYS = 10_000, 1_000


class Stamp(NamedTuple):
    """Facts of a local file that change with its bytes: programs can set back mtime (`rsync --times`), not ctime."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int


def stamp_of_stat(facts: os.stat_result) -> Stamp:
    """The stamp of a local file."""
    return Stamp(facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_ctime_ns)


@dataclass(frozen=True)
class SourceEntry:
    """A file as a place lists it.

    Attributes:
        stamp: changes when the bytes do: (size, mtime, inode, ctime), (ETag, version, time) or DVC's digest.
        settled: whether the stamp can be trusted yet; a file written just now may change within one clock tick.
        md5: the digest that DVC recorded, or None.
    """

    uri: str
    bytes: int
    stamp: str
    settled: bool = True
    md5: str | None = None


class Place(Protocol):
    """The interface of a place for `resolve_sources` and `read_batches`."""

    rev: str | None

    def find(self, pattern: str) -> list[SourceEntry]:
        """Files that match a path or glob, by name; [] if there are none."""
        ...

    def open(self, uri: str) -> BinaryIO:
        """The file's bytes from the beginning; FileNotFoundError if it is gone."""
        ...

    def folder(self, path: str) -> str | None:
        """The folder that a path names, as the URIs of its files begin; None if it is not a folder."""
        ...

    def names(self, folder: str) -> list[str]:
        """Files below a folder, written as `folder` is; not all of many. [] if there is no such folder."""
        ...


def has_wildcards(uri: str) -> bool:
    """Whether a URI may be a glob; a file whose name has such characters may exist, too."""
    return any(sign in uri for sign in "*?[")


def fixed_folders(uri: str) -> str:
    """The folders that a glob names without a wildcard."""
    return re.split(r"[*?\[]", uri, maxsplit=1)[0].rpartition("/")[0]


def one_star(pattern: str) -> str:
    """A glob in which a `**` amid a name is `*`, as Python's glob reads it; fsspec refuses it."""
    return re.sub(r"(?<=[^/])\*\*+|\*\*+(?=[^/])", "*", pattern)


def place_of(source: SourceSpec, root: Path, rev: str | None = None) -> Place:
    """The place that a source's URI names, at the resolved commit `rev`; without `rev`, `source.rev` is resolved."""
    if source.uri.startswith("s3://"):
        return Bucket(source.uri, source.storage_options)
    if source.rev is not None:
        from infra.sources.dvc_tracked import DvcTracked

        return DvcTracked(root, rev or source.rev)
    return Folder(root)


class Places:
    """The places of some sources, each made once, because an S3 place holds connections."""

    def __init__(self, sources: list[SourceSpec], root: Path) -> None:
        self._sources, self._root = sources, root
        self._made: dict[tuple[int, str | None], Place] = {}

    def of(self, file: SourceFile) -> Place:
        """The place of a resolved file."""
        key = (file.source, file.rev)
        if key not in self._made:
            self._made[key] = place_of(self._sources[file.source], self._root, file.rev)
        return self._made[key]


class Folder:
    """Local files; paths are relative to `root`."""

    rev: str | None = None

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, pattern: str) -> list[SourceEntry]:
        """See `Place`."""
        wanted = Path(pattern).expanduser()
        path = os.path.abspath(self.root / wanted)
        if os.path.exists(path):
            return [self._entry(path)]
        # Only the given path is a pattern: the folder above may be called `run[1]`.
        self._refuse_links(wanted)
        matches = glob.glob(str(wanted), root_dir=self.root, recursive=True)
        names = sorted(os.path.abspath(self.root / match) for match in matches)
        return [self._entry(name) for name in names if os.path.isfile(name)]

    def open(self, uri: str) -> BinaryIO:
        """See `Place`."""
        try:
            return open_plain(uri)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(uri) from error
        except PermissionError as error:
            raise UsageError(
                f"{uri} cannot be read by this user: permission denied.", remedy="Give read permission on it."
            ) from error
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENXIO):
                raise not_a_file(uri) from error
            raise StorageUnavailable(f"{uri} cannot be read now ({error.strerror}).") from error

    def folder(self, path: str) -> str | None:
        """See `Place`."""
        absolute = os.path.abspath(self.root / Path(path).expanduser())
        return absolute if os.path.isdir(absolute) else None

    def names(self, folder: str) -> list[str]:
        """See `Place`."""
        top = self.root / Path(folder).expanduser()
        some = islice(glob.iglob("**", root_dir=top, recursive=True), _MOST_NAMES)
        return sorted(os.path.join(folder, name) for name in some if os.path.isfile(top / name))

    def _refuse_links(self, pattern: Path) -> None:
        """UsageError if a `**` would walk through a link: out of its folder, in a circle, or to files it has already.

        Links that a pattern names, by itself or by `*`, are followed.
        """
        if "**" not in pattern.parts:
            return
        above = pattern.parts[: pattern.parts.index("**")]
        for top in glob.glob(os.path.join(*above), root_dir=self.root) if above else [""]:
            for folder, names, _ in os.walk(self.root / top):
                names[:] = [name for name in names if not name.startswith(".")]  # as glob does
                for name in names:
                    if os.path.islink(link := os.path.join(folder, name)):
                        raise UsageError(
                            f"{link} is a link to a folder, and ** does not follow links.",
                            remedy="Name what is behind it in a source of its own, or move the link elsewhere.",
                        )

    def _entry(self, name: str) -> SourceEntry:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{name.encode(errors='backslashreplace').decode()} has a name that is not UTF-8.", remedy="Rename it."
            ) from error
        if os.path.isdir(name):
            raise UsageError(f"{name} is a folder.", remedy=f"Name its files with a glob, such as {name}/*.csv.")
        facts = os.stat(name)
        if not stat.S_ISREG(facts.st_mode):
            raise not_a_file(name)
        stamp = stamp_of_stat(facts)
        # A file system's clock ticks in milliseconds: a change within the tick leaves the stamp unchanged.
        settled = time.time_ns() - max(stamp.mtime_ns, stamp.ctime_ns) > _TICK_NS
        return SourceEntry(name, stamp.size, ":".join(map(str, stamp)), settled)


class Bucket:
    """Objects on an S3 server; URIs contain the whole key (`s3://bucket/key`)."""

    rev: str | None = None

    def __init__(self, uri: str, options: dict[str, Any]) -> None:
        self.uri = uri
        self.bucket = uri.removeprefix("s3://").partition("/")[0]
        # Listings are never cached: a run lists once, and must see what is there then.
        self._filesystem = connect(options, self._translated(), use_listings_cache=False, skip_instance_cache=True)

    def find(self, pattern: str) -> list[SourceEntry]:
        """See `Place`."""
        with self._translated():
            found = self._info(pattern)
            if not found and has_wildcards(pattern):
                found = list(self._filesystem.glob(one_star(pattern), detail=True).values())
            files = [one for one in found if one["type"] == "file" and not one["name"].endswith("/")]
        if found and not files and not has_wildcards(pattern):
            raise UsageError(f"{pattern} is a folder.", remedy=f"Name its files with a glob, such as {pattern}/*.csv.")
        return sorted((self._entry(one) for one in files), key=lambda one: one.uri)

    def open(self, uri: str) -> BinaryIO:
        """See `Place`."""
        with self._translated(uri):
            opened = _Guarded(self._filesystem.open(uri, "rb"), lambda: self._translated(uri))
        return cast(BinaryIO, opened)

    def folder(self, path: str) -> str | None:
        """See `Place`."""
        with self._translated():
            return next((f"s3://{one['name']}" for one in self._info(path) if one["type"] == "directory"), None)

    def names(self, folder: str) -> list[str]:
        """See `Place`."""
        prefix = folder.removeprefix("s3://").partition("/")[2]
        with self._translated():
            page = self._filesystem.call_s3(
                "list_objects_v2", Bucket=self.bucket, Prefix=f"{prefix}/" if prefix else "", MaxKeys=_MOST_KEYS
            )
        return [f"s3://{self.bucket}/{one['Key']}" for one in page.get("Contents", [])]

    def _info(self, pattern: str) -> list[dict[str, Any]]:
        try:
            return [self._filesystem.info(pattern)]
        except FileNotFoundError:
            return []

    def _entry(self, one: dict[str, Any]) -> SourceEntry:
        # The time is included because not every server's ETag is a digest of the bytes.
        parts = (one["size"], one.get("ETag", ""), one.get("VersionId") or "", one.get("LastModified", ""))
        stamp = ":".join(map(str, parts))
        return SourceEntry(f"s3://{one['name']}", one["size"], stamp, settled=bool(one.get("ETag")))

    def _translated(self, uri: str | None = None) -> Any:
        return translate(uri or self.uri, self.bucket)


class _Guarded:
    """A remote file whose `read` raises our errors."""

    def __init__(self, file: BinaryIO, guard: Callable[[], Any]) -> None:
        self._file, self._guard = file, guard

    def read(self, size: int = -1) -> bytes:
        """As a file\'s `read`."""
        with self._guard():
            return self._file.read(size)

    def seek(self, offset: int) -> int:
        """As a file\'s `seek`, from its beginning."""
        return self._file.seek(offset)

    def close(self) -> None:
        """As a file\'s `close`."""
        self._file.close()


class SourceMissing(UsageError):
    """A raw file no longer exists, and cannot be fetched from anywhere."""


def not_a_file(uri: str) -> UsageError:
    """The error for a named pipe or a device in a file's place."""
    return UsageError(f"{uri} is not a regular file.", remedy="Name a file, or copy what it gives into one.")


def source_missing(uri: str) -> SourceMissing:
    """The error for a file that was there when the run was resolved."""
    return SourceMissing(
        f"{uri} is no longer there, though it was when the run was resolved.", remedy="Put it back, or start a new run."
    )
