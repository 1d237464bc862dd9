"""The seal: what a manifest holds, and how it is written, read and checked.

    {"content":{…},"id":"…","provenance":{…},"seal":"…"}

A manifest is canonical JSON without white space. `content` is kind, schema, files and settings. The id is the SHA-256
of the canonical form of `content`, so the same bytes from the same settings have the same id anywhere. The seal is the
SHA-256 of all bytes before `,"seal":`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from data_contracts.canonical import canonical, digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_json import parse_json
from data_contracts.handoffs import FileEntry, Ref
from infra.store import layout

SCHEMA = 1
# A manifest with some hundred thousand files.
MAX_BYTES = 2**26
_TAIL = re.compile(rb',"seal":"([0-9a-f]{64})"}\Z')
_HEX = re.compile(r"[0-9a-f]{64}")


class AlreadySealed(CorruptError):
    """The directory was sealed before with other content."""


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read and found intact.

    Attributes:
        uri: the sealed directory, below the store's root.
        content: kind, schema, files and settings.
        provenance: parents, code, times, actor, trigger, tags.
    """

    uri: str
    content: dict[str, Any]
    provenance: dict[str, Any]
    id: str
    seal: str

    @property
    def ref(self) -> Ref:
        """A Ref to the directory."""
        return Ref(uri=self.uri, id=self.id, seal=self.seal)

    @property
    def kind(self) -> str:
        """Kind of the content, such as `dataset`."""
        return self.content["kind"]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that shaped the content."""
        return self.content["settings"]

    @cached_property
    def files(self) -> list[FileEntry]:
        """The directory's files, sorted by path."""
        return [FileEntry(**entry) for entry in self.content["files"]]

    @cached_property
    def file_at(self) -> dict[str, FileEntry]:
        """The same files by their paths."""
        return {entry.path: entry for entry in self.files}

    @property
    def parents(self) -> list[Ref]:
        """The sealed directories that this one was made from; CorruptError if they are not said in our form."""
        try:
            return [Ref.model_validate(one) for one in self.provenance.get("parents", [])]
        except (TypeError, ValueError) as error:
            raise CorruptError(f"{self.uri} does not say what it was made from.") from error

    def parent_in(self, area: str) -> Ref | None:
        """The first parent in an area of the store, such as a dataset's report in `contracts`; None without one."""
        return next((one for one in self.parents if one.uri.startswith(f"{area}/")), None)


def write_manifest(
    kind: str, settings: dict[str, Any], provenance: dict[str, Any], files: Iterable[FileEntry]
) -> tuple[bytes, str]:
    """The bytes of a manifest, and its id. ValueError for values that JSON cannot hold (NaN, infinities)."""
    entries = [entry.to_json() for entry in sorted(files, key=lambda entry: entry.path)]
    # To JSON and back: an integer key becomes the string that a reader will see.
    content = json.loads(canonical({"kind": kind, "schema": SCHEMA, "files": entries, "settings": settings}))
    identity = digest(content)
    body = canonical({"content": content, "id": identity, "provenance": json.loads(canonical(provenance))})[:-1]
    return body + b',"seal":"' + hashlib.sha256(body).hexdigest().encode() + b'"}', identity


def read_manifest(uri: str, data: bytes, expected: Ref | None = None) -> Manifest:
    """The manifest of `uri` from its bytes.

    Raises: CorruptError naming the manifest if its seal, id or form is wrong, or if it is not the one that `expected`
    refers to; UsageError if it has a newer schema.
    """
    path = layout.manifest(uri)
    if len(data) > MAX_BYTES:
        raise _corrupt(path, "is larger than any manifest")
    tail = _TAIL.search(data)
    if tail is None:
        raise _corrupt(path, "does not end with a seal")
    body, seal = data[: tail.start()], tail[1].decode()
    if hashlib.sha256(body).hexdigest() != seal:
        raise _corrupt(path, "was changed after it was sealed")
    try:
        value = parse_json(body + b"}")
        schema = value["content"]["schema"]
        if schema > SCHEMA:
            raise UsageError(
                f"{path} has schema {schema}, newer than the {SCHEMA} that this Trainwright reads.",
                remedy="Upgrade Trainwright.",
            )
        manifest = Manifest(uri=uri, seal=seal, **value)
        well_formed = canonical(value) == body + b"}" and _well_formed(manifest)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(path, "is not a manifest") from error
    if not well_formed:
        raise _corrupt(path, "is not a manifest in canonical form")
    if digest(manifest.content) != manifest.id:
        raise _corrupt(path, "carries an id that is not the digest of its content")
    if expected is not None and (expected.id, expected.seal) != (manifest.id, seal):
        raise _corrupt(path, "is whole, but is not the one that the reference names")
    return manifest


def _well_formed(manifest: Manifest) -> bool:
    content = manifest.content
    if content.keys() != {"kind", "schema", "files", "settings"} or not isinstance(content["settings"], dict):
        return False
    if not isinstance(content["kind"], str) or not isinstance(manifest.provenance, dict):
        return False
    paths = [check_file_name(entry.path) for entry in manifest.files]
    sane = all(entry.bytes >= 0 and _HEX.fullmatch(entry.blake3) for entry in manifest.files)
    return sane and paths == sorted(set(paths))


def check_file_name(name: str) -> str:
    """`name`, if a file of a sealed directory may have it; else ValueError."""
    try:
        layout.check_path(name, "file name in a sealed directory")
    except UsageError as error:
        raise ValueError(error.message) from error
    if name == layout.MANIFEST:
        raise ValueError(f"{name} is the manifest's own name; put the file in a folder below.")
    return name


def _corrupt(path: str, what: str) -> CorruptError:
    return CorruptError(f"{path} {what}.", details={"file": path})
