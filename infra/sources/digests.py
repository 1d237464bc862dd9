"""Digests of raw files, with a memory on this machine that may spare the hashing of what did not change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from data_contracts.errors import CorruptError
from data_contracts.handoffs import SourceFile
from infra.digests import hash_stream, stream_digest
from infra.sources.places import Found, Gone, Place, Places, gone

_FILE = "sources.json"


class Digests:
    """BLAKE3 digests by place and stamp.

    Args:
        cache: folder of the memory; it may be deleted at any time.
        rehash: trust nothing that is remembered.
    """

    def __init__(self, cache: Path, rehash: bool) -> None:
        self.path = cache / _FILE
        self._known = {} if rehash else self._read()
        self._learned: dict[str, list[str]] = {}

    def of(self, place: Place, file: Found) -> str:
        """The digest of the file's bytes, remembered or computed; CorruptError if DVC recorded another MD5."""
        name = f"{place.rev or ''}:{file.uri}"
        stamp, digest = self._known.get(name, ("", ""))
        if not file.settled or stamp != file.stamp:
            digest = _hash(place, file)
        if file.settled:
            self._learned[name] = [file.stamp, digest]
        return digest

    def save(self) -> None:
        """Remember what was computed; two runs at once may each lose the other's, which costs one more hashing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({**self._read(), **self._learned}))
        draft.replace(self.path)

    def _read(self) -> dict[str, list[str]]:
        try:
            known = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def digest_now(file: SourceFile, places: Places) -> str | None:
    """The digest that a raw file's bytes have now, nothing remembered; None if it is not there any more.

    Raises: UsageError if it may not be read; CorruptError if DVC's copy is damaged; StorageUnavailable if its place
    does not answer.
    """
    try:
        with contextlib.closing(places.of(file).open(file.uri)) as stream:
            return stream_digest(stream)
    except (FileNotFoundError, Gone):
        return None


def _hash(place: Place, file: Found) -> str:
    try:
        stream = place.open(file.uri)
    except FileNotFoundError as error:
        raise gone(file.uri) from error
    md5 = hashlib.md5(usedforsecurity=False)
    with contextlib.closing(stream):
        _, found = hash_stream(stream, *([md5.update] if file.md5 else []))
    if file.md5 and md5.hexdigest() != file.md5:
        raise CorruptError(
            f"DVC's copy of {file.uri} at {place.rev} is damaged: its MD5 is not the recorded {file.md5}.",
            remedy="Delete it from DVC's cache and run `dvc pull`.",
        )
    return found
