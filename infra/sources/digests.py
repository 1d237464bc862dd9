"""Digests of raw files, with a cache on this machine that spares the hashing of unchanged files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from io import BufferedReader, BytesIO
from pathlib import Path

from data_contracts.errors import CorruptError
from data_contracts.handoffs import SourceFile
from infra.files import hash_stream, replace_json, stream_digest
from infra.sources.places import Place, Places, SourceEntry, SourceMissing, source_missing

_FILE = "sources.json"
_FOOTER_BYTES = 2**26
_INDEX = b"__index_level_"


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
            known = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


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
    try:
        stream = place.open(file.uri)
    except FileNotFoundError as error:
        raise source_missing(file.uri) from error
    md5 = hashlib.md5(usedforsecurity=False)
    with contextlib.closing(stream):
        _, found = hash_stream(stream, *([md5.update] if file.md5 else []))
    if file.md5 and md5.hexdigest() != file.md5:
        raise CorruptError(
            f"DVC's copy of {file.uri} at {place.rev} is damaged: its MD5 is not the recorded {file.md5}.",
            remedy="Delete it from DVC's cache and run `dvc pull`.",
        )
    return found
