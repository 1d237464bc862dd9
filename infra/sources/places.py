"""Where raw files lie: a folder, an S3 bucket, or a DVC repository at a revision.

Each place finds files by path, folder or glob, and opens them; of one that matches nothing, it is said what it may have
meant. A resolved file is hashed as it is read, so that the data is what was resolved. DVC's files are read through its
Python API, from its cache, else from its remote.
"""

from __future__ import annotations

import bz2
import contextlib
import difflib
import errno
import glob
import gzip
import io
import itertools
import lzma
import os
import re
import stat
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError
from data_contracts.foreign_files import open_plain
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.quoting import text_of
from infra import scratch
from infra.files import stream_digest
from infra.settings import library_folders, writing
from infra.store.s3 import connect, translate

_TICK_NS = 2 * 10**9
# Of names that are compared with one that does not exist; the second is the most that a server gives at once.
_MOST_NAMES, _MOST_KEYS = 10_000, 1_000
# Names that Spark, Hive, Databricks and table formats write beside data, also where a glob matches them.
_MARKER = re.compile(
    r"(^|/)((_SUCCESS|_metadata|_common_metadata|_(started|committed)_\d+|[^/]*\.crc)$|_(temporary|delta_log)/)"
)
_DOT = re.compile(r"(^|/)\.")
_MARKER_OR_HIDDEN = re.compile(f"{_MARKER.pattern}|{_DOT.pattern}")
_HIDDEN = re.compile(r"(^|/)(\.|_[^/=]*(/|$))")
# How many folders of a source are looked at for the files of a table format; each costs requests to a bucket.
_MOST_FOLDERS = 16
_FOLDER_OF_VALUES = re.compile(r"(/[^/=]+=[^/]*)*/[^/]*$")
# The folder that a table format keeps in a table's folder, or, as Iceberg does, beside the folder of its data.
_TABLES = {"_delta_log": ("Delta", ".json"), "metadata": ("Iceberg", ".metadata.json"), ".hoodie": ("Hudi", "")}
_CHUNK = 1 << 22
_READ_BYTES = 1 << 20
# A compressed Parquet file is copied in full before it is read, up to the larger of both: some kilobytes could fill the
# disk.
_MOST_TIMES, _FREE_BYTES = 100, 1 << 30
# Of how many bytes at most one is left, by a file's compression: reached by a character that repeats.
_MOST_COMPRESSED = {"": 1, ".gz": 1 << 11, ".xz": 1 << 14, ".zst": 1 << 15, ".bz2": 1 << 21}
# Errors of decompressors. The system's own OSErrors, from reading and copying, are told apart where they occur.
_DAMAGED = (lzma.LZMAError, zlib.error, EOFError, OSError)


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
        some = itertools.islice(glob.iglob("**", root_dir=top, recursive=True), _MOST_NAMES)
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

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
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

    def _info(self, pattern: str) -> list[Mapping[str, Any]]:
        try:
            return [self._filesystem.info(pattern)]
        except FileNotFoundError:
            return []

    def _entry(self, info: Mapping[str, Any]) -> SourceEntry:
        # The time is included because not every server's ETag is a digest of the bytes.
        parts = (info["size"], info.get("ETag", ""), info.get("VersionId") or "", info.get("LastModified", ""))
        stamp = ":".join(map(str, parts))
        return SourceEntry(f"s3://{info['name']}", info["size"], stamp, settled=bool(info.get("ETag")))

    def _translated(self, uri: str | None = None) -> Any:
        return translate(uri or self.uri, self.bucket)


class _Guarded:
    """A remote file whose `read` raises our errors."""

    def __init__(self, file: BinaryIO, guard: Callable[[], Any]) -> None:
        self._file, self._guard = file, guard

    def read(self, size: int = -1) -> bytes:
        """As a file's `read`."""
        with self._guard():
            return self._file.read(size)

    def seek(self, offset: int) -> int:
        """As a file's `seek`, from its beginning."""
        return self._file.seek(offset)

    def close(self) -> None:
        """As a file's `close`."""
        self._file.close()


class SourceMissing(UsageError):
    """A raw file no longer exists, and cannot be fetched from anywhere."""


def not_a_file(uri: str) -> UsageError:
    """The error for a named pipe or a device in a file's place."""
    return UsageError(f"{uri} is not a regular file.", remedy="Name a file, or copy what it gives into one.")


class DvcTracked:
    """The DVC repository that holds `root`, at the commit that `rev` names.

    Raises:
        UsageError: there is no such repository or revision, or the libraries cannot read the repository.
    """

    def __init__(self, root: Path, rev: str) -> None:
        os.environ.setdefault("DVC_NO_ANALYTICS", "1")
        os.environ.update(library_folders())
        # Files of AWS's that `.dvc/config` names may name programs; DVC takes none if these variables are set.
        os.environ.setdefault("AWS_CONFIG_FILE", os.path.expanduser("~/.aws/config"))
        os.environ.setdefault("AWS_SHARED_CREDENTIALS_FILE", os.path.expanduser("~/.aws/credentials"))
        from dvc.api import DVCFileSystem
        from dvc.exceptions import NotDvcRepoError
        from dvc.fs import GitFileSystem
        from dvc.repo import Repo
        from dvc.scm import SCM
        from scmrepo.exceptions import RevError

        try:
            with _readable(root, NotDvcRepoError, RevError), Repo(Repo.find_root(str(root))) as repository:
                self.repository = Path(repository.root_dir)
                self.rev: str | None = repository.scm.resolve_rev(rev)
                # pygit2 reads it again in a thread, and waits for that thread forever if it cannot.
                repository.scm.pygit2.repo.index.read()
                # Remotes and their credentials are today's, also from config.local, which is in no commit.
                config = {name: dict(repository.config[name]) for name in ("core", "remote", "cache")}
        except NotDvcRepoError as error:
            raise UsageError(
                f"rev {rev} is given, but {root} is not in a DVC repository.",
                remedy="Leave rev out, run `dvc init` there, or move the spec below the folder of `dvc init --subdir`.",
            ) from error
        except RevError as error:
            raise UsageError(
                f"rev {rev} is not a revision of the Git repository at {root}.", remedy="Name a commit, tag or branch."
            ) from error
        self.root = root
        with _readable(root):
            # Given an address, DVC looks for the repository at the root of Git's only, not in a folder of it.
            scm = SCM(str(self.repository))
            top = os.path.join("/", self.repository.relative_to(scm.root_dir))
            committed = GitFileSystem(scm=scm, rev=self.rev)
            self._filesystem = DVCFileSystem(repo=Repo(top, committed, scm=scm, config=config, uninitialized=True))

    def find(self, pattern: str) -> list[SourceEntry]:
        """See `Place`; UsageError also if the repository cannot be read."""
        with self._lists_of_folders(pattern):
            below = self._below(pattern)
            if self._filesystem.exists(below):
                return [self._entry_of(below)]
            return [self._entry_of(name) for name in (self._matching(pattern) if has_wildcards(pattern) else ())]

    def open(self, uri: str) -> BinaryIO:
        """See `Place`."""
        with self._lists_of_folders(uri):
            there = self._filesystem.exists(uri)
        if not there:
            raise FileNotFoundError(uri)
        try:
            with translate(uri, "DVC's remote"):
                return self._filesystem.open(uri, "rb")
        except FileNotFoundError as error:
            if not getattr(self._tracked(uri), "hash_info", None):
                raise SourceMissing(
                    f"{uri} is an output of dvc.yaml that no dvc.lock has at {self.rev}.",
                    remedy="Run `dvc repro` and commit dvc.lock, or name a revision that has it.",
                ) from error
            raise self._missing(uri) from error

    @contextlib.contextmanager
    def _lists_of_folders(self, uri: str) -> Iterator[None]:
        """As `_readable`; SourceMissing if the list of a tracked folder's files, which DVC keeps as a file, is gone."""
        from dvc_data.index import DataIndexDirError

        try:
            with _readable(self.repository, DataIndexDirError):
                yield
        except DataIndexDirError as error:
            raise self._missing(f"The list of the files in the folder of {uri}") from error

    def _missing(self, what: str) -> SourceMissing:
        return SourceMissing(
            f"{what} at {self.rev} is neither in DVC's cache nor in a remote.",
            remedy="Run `dvc pull` here, or `dvc push` where it was added.",
        )

    def folder(self, path: str) -> str | None:
        """See `Place`."""
        below = self._below(path)
        with self._lists_of_folders(path):
            return below if self._filesystem.isdir(below) else None

    def names(self, folder: str) -> list[str]:
        """See `Place`."""
        below = self._below(folder)
        with self._lists_of_folders(folder):
            names = self._filesystem.find(below) if self._filesystem.isdir(below) else []
        return sorted(os.path.join(folder, os.path.relpath(name, below)) for name in map(os.path.normpath, names))

    def _below(self, path: str) -> str:
        """A path from the spec's folder as one from the repository's; UsageError if it lies outside."""
        below = os.path.relpath(os.path.abspath(self.root / path), self.repository)
        if below.startswith(".."):
            raise UsageError(f"{path} lies outside the DVC repository {self.repository}.", remedy="Leave rev out.")
        return below

    def _matching(self, pattern: str) -> list[str]:
        """Files that match a glob. The folders before the first wildcard are taken literally.

        DVC's own glob finds nothing if the first folder has a wildcard in its name, such as `run[1]`.
        """
        from fsspec.utils import glob_translate

        fixed = fixed_folders(pattern)
        rest = one_star(pattern.removeprefix(fixed).lstrip("/"))
        base = os.path.relpath(os.path.abspath(self.root / fixed), self.repository)
        if not self._filesystem.isdir(base):
            return []
        depth = None if "**" in rest else rest.count("/") + 1
        files = map(os.path.normpath, self._filesystem.find(base, maxdepth=depth))
        pattern_of_names = re.compile(glob_translate(rest))
        return sorted(name for name in files if pattern_of_names.match(os.path.relpath(name, base)))

    def _entry_of(self, name: str) -> SourceEntry:
        hash_info = getattr(self._tracked(name), "hash_info", None)
        # Old repositories hash texts with changed line ends (`md5-dos2unix`); that is not a digest of the bytes.
        md5 = hash_info.value if hash_info is not None and hash_info.name == "md5" else None
        size = self._filesystem.info(name)["size"]
        if size is None:  # for a file in a tracked folder, DVC keeps only the digest
            with self.open(name) as opened:
                size = opened.seek(0, os.SEEK_END)
        return SourceEntry(name, size, f"md5:{md5}", settled=md5 is not None, md5=md5)

    def _tracked(self, name: str) -> Any:
        """What DVC tracks of a file; None if only Git tracks it."""
        return self._filesystem.info(name).get("dvc_info", {}).get("entry")


@contextlib.contextmanager
def _readable(folder: Path, *told_apart: type[Exception]) -> Iterator[None]:
    """UsageError where DVC and its Git libraries cannot read a repository; others of ours and `told_apart` pass.

    They raise classes of four packages, and ValueError or OSError for some damage: no list of classes is complete.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (TrainwrightError, MemoryError, *told_apart)):
            raise
        raise UsageError(
            f"DVC cannot read the repository at {folder} ({type(error).__name__}: {text_of(error)}).",
            remedy="Check it with `git fsck` and `dvc status`; DVC knows few extensions of .git/config.",
        ) from error


def find_files(place: Place, uri: str) -> tuple[list[SourceEntry], bool]:
    """The files that a path, folder or glob names, by name, without those that are not data; and if it is a folder.

    A file that exists under exactly this name is meant by it. Umlauts and accents are found in both of Unicode's forms.
    """
    found: dict[str, SourceEntry] = {}
    for form in dict.fromkeys([uri, *(unicodedata.normalize(form, uri) for form in ("NFC", "NFD"))]):
        folder = place.folder(form)
        if folder is not None:
            entries = place.find(f"{glob.escape(form.rstrip('/'))}/**")
            return [one for one in entries if not _HIDDEN.search(one.uri.removeprefix(folder).lstrip("/"))], True
        matched = place.find(form)
        found |= {one.uri: one for one in (_data(place, form, matched) if has_wildcards(form) else matched)}
        if found and not has_wildcards(uri):
            break
    if not found and not uri.isascii():
        for name in _matching(_same_form(uri), _names_near(place, uri)):
            found |= {one.uri: one for one in place.find(name)}
    return sorted(found.values(), key=lambda one: one.uri), False


def _data(place: Place, pattern: str, files: list[SourceEntry]) -> list[SourceEntry]:
    """The files that a glob matches, without those that mark something, and hidden ones unless the glob says so."""
    fixed = fixed_folders(pattern)
    start = fixed if "://" in fixed else place.folder(fixed) or ""
    below = [file.uri.removeprefix(start).lstrip("/") for file in files]
    beside = _MARKER if _DOT.search(pattern.removeprefix(fixed)) else _MARKER_OR_HIDDEN
    return [file for file, name in zip(files, below, strict=True) if not beside.search(name)]


def suggestion(place: Place, uri: str) -> str:
    """A clause that says what a path or glob that matches nothing may have meant; "" if nothing is near."""
    names = _names_near(place, uri)
    literal = re.sub(r"\[", "[[]", uri)
    if "[" in uri and _matching(literal, names):
        [brackets, *_] = re.findall(r"\[[^]]*\]?", uri)
        return f"; {brackets} is a pattern for one character: write {literal}"
    above, _, last = uri.rpartition("/")
    deeper = f"{above}/**/{last}".lstrip("/")
    if "**" not in uri and _matching(deeper, names):
        return f"; {deeper} does, such as {_matching(deeper, names)[0]}"
    lowered = {name.lower(): name for name in names}
    near = [lowered[name] for name in _matching(_same_form(uri).lower(), list(lowered))]
    bucket = "/".join(uri.split("/")[:3]) + "/" if "://" in uri else ""  # every name begins with it
    short = [name.removeprefix(bucket) for name in names]
    near = near or [bucket + name for name in difflib.get_close_matches(uri.removeprefix(bucket), short, 1)]
    return f"; the nearest name is {near[0]}" if near else ""


def refuse_tables(place: Place, files: Iterable[SourceEntry], root: Path, here: str) -> None:
    """UsageError for files of a table format: rows that were deleted or replaced are still in some of them."""
    folders = dict.fromkeys(_FOLDER_OF_VALUES.sub("", one.uri) for one in files if one.uri.endswith(".parquet"))
    for folder in list(folders)[:_MOST_FOLDERS]:
        repository = getattr(place, "repository", None)
        written = folder if repository is None else os.path.relpath(repository / folder, root)
        for table in (written, written.rpartition("/")[0]):
            for folder_name, (kind, ending) in _TABLES.items() if table.strip("/") not in ("", "s3:") else ():
                if any(name.endswith(ending) for name in place.names(f"{table}/{folder_name}")):
                    raise UsageError(
                        f"{here}.uri: {table} is a {kind} table, and some of its Parquet files may hold rows that were"
                        " deleted or replaced.",
                        remedy="Write the table's rows as of one version to a folder of Parquet files, and name that.",
                    )


def _names_near(place: Place, uri: str) -> list[str]:
    """Names of files below the folder that a path or glob begins with, or below the nearest one above that exists."""
    folder = fixed_folders(uri)
    with contextlib.suppress(TrainwrightError):  # whoever may read a file may not always list others
        while not (names := place.names(folder)) and folder.strip("/") and not re.fullmatch("s3://[^/]*", folder):
            folder = folder.rpartition("/")[0]
        return names
    return []


def _matching(pattern: str, names: list[str]) -> list[str]:
    """The names that a glob matches, in whichever form their characters are."""
    from fsspec.utils import glob_translate

    # By RE2, because Python would try every way of sharing a name out among many stars.
    wanted = rf"\A{glob_translate(one_star(pattern)).removesuffix('Z')}z"
    texts = pa.array(map(_same_form, names), pa.string())
    with contextlib.suppress(pa.ArrowInvalid):  # nothing is in [z-a]
        return list(itertools.compress(names, pc.match_substring_regex(texts, wanted).to_pylist()))
    return []


def _same_form(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def base_name(uri: str) -> tuple[str, str]:
    """A file's extension without its compression, and the compression's (`""` if it has none), both in lower case."""
    name, ending = os.path.splitext(uri.lower())
    return (os.path.splitext(name)[1], ending) if ending in _MOST_COMPRESSED else (ending, "")


def most_bytes(file: SourceFile) -> int:
    """How many bytes a file has at most when it is decompressed."""
    return file.bytes * _MOST_COMPRESSED[base_name(file.uri)[1]]


def changed(file: SourceFile) -> CorruptError:
    """The error for a file whose bytes are not those that were resolved."""
    return CorruptError(
        f"{file.uri} changed after this run resolved it: its bytes do not have the digest {file.blake3[:16]}….",
        remedy="Start a new run, which reads the file as it is now.",
    )


@contextlib.contextmanager
def stream(file: SourceFile, place: Place) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed, read once from the beginning.

    Raises:
        CorruptError: on leaving without an error, if the whole file's bytes do not have its digest.
        UsageError: the file is gone, or its compressed data is damaged.
    """
    hasher = blake3()
    with contextlib.closing(stored_bytes(file.uri, place)) as opened:
        stored = _hashed(opened, file.uri, hasher)
        try:
            with joined(stored) as buffered, decompressed(buffered, file) as plain:
                yield plain
            for _ in stored:  # what a decompressor left, such as bytes after the end of its stream
                pass
            if hasher.hexdigest() != file.blake3:
                raise changed(file)
        except (CorruptError, StorageUnavailable):
            raise
        except Exception as error:
            # A file that changed may be unreadable for that reason; then the change is the cause.
            with contextlib.closing(stored_bytes(file.uri, place)) as again:
                if stream_digest(again) != file.blake3:
                    raise changed(file) from error
            if isinstance(error, _DAMAGED) and base_name(file.uri)[1]:
                raise UsageError(
                    f"{file.uri} is not a whole {base_name(file.uri)[1]} file ({text_of(error)}).",
                    remedy="Compress it again.",
                ) from error
            raise


def _hashed(opened: BinaryIO, uri: str, hasher: blake3) -> Iterator[bytes]:
    """The bytes of an open file, which a hasher gets, too."""
    try:
        while chunk := opened.read(_CHUNK):
            hasher.update(chunk)
            yield chunk
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageUnavailable(f"{uri} cannot be read now ({error.strerror or error}).") from error


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """What is left of a stream."""
    return iter(partial(stream.read, _READ_BYTES), b"")


def joined(chunks: Iterator[bytes]) -> io.BufferedReader[Any]:
    """Chunks of bytes as one stream."""
    return io.BufferedReader(_Joined(chunks), _READ_BYTES)


class _Joined(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and (chunk := next(self._chunks, None)) is not None:
            self._left = memoryview(chunk)
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


@contextlib.contextmanager
def random_access(file: SourceFile, place: Place, stamp: Stamp | None = None) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed, for reading in any order; its digest is checked before anything is read.

    An uncompressed local file is read in place; any other file is copied to a temporary file first.

    Args:
        stamp: result of `stamp_of` when the file's digest was checked; the file is hashed again only if its stamp has
            changed since.

    Raises: UsageError also if a compressed file becomes much too large.
    """
    if _lies_here(file, place):
        with contextlib.closing(stored_bytes(file.uri, place)) as opened:
            before = _stamp(opened)
            if stamp != before:
                _check_digest(opened, file)
            try:
                yield opened
            finally:
                # A file that changed may be unreadable for that reason; then the change is the cause.
                after = _stamp(opened)
                if after[:3] != before[:3]:
                    raise changed(file)
                if after != before:  # a new name or mode, or bytes whose mtime was set back
                    _check_digest(opened, file)
        return
    copy = scratch.unnamed_file()
    with io.BufferedReader(copy, _CHUNK) as buffered:
        write = writing(copy, scratch.default_root())
        with stream(file, place) as plain:
            most_bytes = max(_FREE_BYTES, _MOST_TIMES * file.bytes)
            while chunk := plain.read(_CHUNK):
                write(chunk)
                if copy.tell() > most_bytes:
                    raise UsageError(
                        f"{file.uri} is more than {_MOST_TIMES} times as large when it is decompressed.",
                        remedy="Check the file; write Parquet with a compression of its own.",
                    )
        buffered.seek(0)
        yield cast(BinaryIO, buffered)


def stamp_of(file: SourceFile, place: Place) -> Stamp | None:
    """The stamp of a file that `random_access` reads in place; None for any other file."""
    if not _lies_here(file, place):
        return None
    with contextlib.closing(stored_bytes(file.uri, place)) as opened:
        return _stamp(opened)


def whole(file: SourceFile, place: Place) -> bytes:
    """All bytes of a small file; CorruptError if they are not what was resolved."""
    with contextlib.closing(stored_bytes(file.uri, place)) as opened:
        data = opened.read()
    if blake3(data).hexdigest() != file.blake3:
        raise changed(file)
    return data


def _lies_here(file: SourceFile, place: Place) -> bool:
    return place.rev is None and "://" not in file.uri and not base_name(file.uri)[1]


def _stamp(opened: BinaryIO) -> Stamp:
    return stamp_of_stat(os.fstat(opened.fileno()))


def _check_digest(opened: BinaryIO, file: SourceFile) -> None:
    opened.seek(0)
    if stream_digest(opened) != file.blake3:
        raise changed(file)
    opened.seek(0)


def stored_bytes(uri: str, place: Place) -> BinaryIO:
    """A file's stored bytes; SourceMissing if it is gone: it was there when the run was resolved."""
    try:
        return place.open(uri)
    except FileNotFoundError as error:
        raise SourceMissing(
            f"{uri} is no longer there, though it was when the run was resolved.",
            remedy="Put it back, or start a new run.",
        ) from error


def decompressed(raw: io.BufferedReader[Any], file: SourceFile) -> Any:
    """A context manager with the plain bytes of a file that may be compressed."""
    ending = base_name(file.uri)[1]
    if ending == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if ending == ".bz2":
        return bz2.BZ2File(raw)
    if ending == ".xz":
        return lzma.LZMAFile(raw)
    if ending == ".zst":
        # `stream` closes it: closing it here would close its source before the rest is hashed.
        return contextlib.nullcontext(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
    return contextlib.nullcontext(raw)
