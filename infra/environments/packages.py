"""The resolved packages of an environment, as a bundle of code holds them: names and versions.

Two files lie beside the code. `packages.txt` has what the user asked for, with all that it needs: the code's digest,
and with it every reuse key, covers it. `install.json` has what is installed: these packages and our own needs. Neither
has hashes of packages, local versions (`+cpu`) or what one build of torch brings, so that CPU and CUDA machines agree.
`install.json` also says which contents were installed where it was resolved: a machine keeps environments apart by it.

Whoever can write the store can write these files: a name or version that is not one is refused, options are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError

FOLDER = ".environment"
SEALED = f"{FOLDER}/packages.txt"
INSTALL = f"{FOLDER}/install.json"
VERSION = 1
# What the CUDA build of torch brings.
_OF_CUDA = re.compile(r"nvidia-|cuda-|triton$|pytorch-triton")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_CONTENTS = re.compile(r"(?:[0-9a-f]{64})?")
_TIME = re.compile(r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00)?")
_MAX_ENTRY_LENGTH = 128
_MAX_ENTRIES = 10_000


@dataclass(frozen=True)
class Packages:
    """The packages of an environment, each as `name==version`, sorted.

    Attributes:
        sealed: what the user asked for, and all that it needs.
        install: what is installed: `sealed` and what Trainwright needs.
        build: names that are built from source; every other package comes as a wheel.
        contents: digest of the files that uv installed where the list was resolved; "" if that is unknown.
        uploaded_before: only files that an index got before this time are installed; "": all.
    """

    sealed: tuple[str, ...]
    install: tuple[str, ...]
    build: tuple[str, ...] = ()
    contents: str = ""
    uploaded_before: str = ""

    @classmethod
    def of(
        cls,
        installed: Mapping[str, str],
        asked: Iterable[str],
        build: Iterable[str],
        contents: str = "",
        uploaded_before: str = "",
    ) -> Self:
        """The packages `installed` (versions by name), of which `asked` are the user's."""
        entries = {name: f"{name}=={public(version)}" for name, version in installed.items()}
        listed = {name: entry for name, entry in sorted(entries.items()) if not is_of_cuda(name)}
        return cls(
            sealed=tuple(listed[name] for name in sorted(set(asked) & listed.keys())),
            install=tuple(listed.values()),
            build=tuple(sorted(canonicalize_name(name) for name in build)),
            contents=contents,
            uploaded_before=uploaded_before,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the sealed list."""
        return digest(list(self.sealed))

    @property
    def versions(self) -> dict[str, str]:
        """Version by name of what is installed."""
        return dict(split(entry) for entry in self.install)

    def files(self) -> dict[str, bytes]:
        """The files of a bundle by name."""
        facts: dict[str, object] = {
            "schema_version": VERSION,
            "install": list(self.install),
            "build": list(self.build),
        }
        more = {"contents": self.contents, "uploaded_before": self.uploaded_before}
        facts |= {name: text for name, text in more.items() if text}
        return {SEALED: "".join(f"{entry}\n" for entry in self.sealed).encode(), INSTALL: json.dumps(facts).encode()}

    @classmethod
    def of_files(cls, sealed: bytes, install: bytes, place: str) -> Self:
        """The packages that a bundle's files hold; CorruptError, naming `place`, if an entry has another form."""
        try:
            facts = json.loads(install)
            if facts["schema_version"] != VERSION:
                raise ValueError(f"its schema version is {facts['schema_version']}")
            read = cls(
                sealed=_list(sealed.decode().splitlines(), _checked),
                install=_list(facts["install"], _checked),
                build=_list(facts["build"], _checked_name),
                contents=_checked_text(facts.get("contents", ""), _CONTENTS),
                uploaded_before=_checked_text(facts.get("uploaded_before", ""), _TIME),
            )
            if not set(read.sealed) <= set(read.install) or len(read.versions) != len(read.install):
                raise ValueError("its two lists do not agree")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(
                f"{place} does not hold the packages of an environment ({type(error).__name__}: {str(error)[:80]}).",
                remedy="Use one version of Trainwright on all machines, then run again.",
            ) from error
        return read


def packages_of(project: Path) -> Packages | None:
    """The packages that an unpacked bundle asks for; None if it asks for none."""
    found = [(project / name).is_file() for name in (SEALED, INSTALL)]
    if not any(found):
        return None
    if not all(found):
        raise incomplete(str(project / FOLDER))
    return Packages.of_files((project / SEALED).read_bytes(), (project / INSTALL).read_bytes(), str(project / FOLDER))


def incomplete(place: str) -> CorruptError:
    """The error for a bundle that has one of the two files."""
    return CorruptError(
        f"{place} has one of the two files of an environment.", remedy="Start a new run, which packs the code again."
    )


def is_of_cuda(name: str) -> bool:
    """Whether the CUDA build of torch brings this package, which other builds lack."""
    return _OF_CUDA.match(name) is not None


def public(version: str) -> str:
    """A version without its local part, such as `+cpu`."""
    return Version(version).public


def split(entry: str) -> tuple[str, str]:
    """Name and version of `name==version`."""
    name, _, version = entry.partition("==")
    return name, version


def _list(entries: object, check: Callable[[str], str]) -> tuple[str, ...]:
    """The entries, each checked; ValueError if they are not a list of different strings."""
    if not isinstance(entries, list) or len(entries) > _MAX_ENTRIES or not all(isinstance(one, str) for one in entries):
        raise ValueError("it does not have a list of strings")
    if len(set(entries)) != len(entries):
        raise ValueError("it has an entry twice")
    return tuple(map(check, entries))


def _checked_text(text: object, form: re.Pattern[str]) -> str:
    if not isinstance(text, str) or not form.fullmatch(text):
        raise ValueError("its contents are not a digest, or its time is not one")
    return text


def _checked(entry: str) -> str:
    name, version = split(entry)
    try:
        plain = public(version) == version
    except InvalidVersion:
        plain = False
    if not plain or len(entry) > _MAX_ENTRY_LENGTH:
        raise ValueError(f"{entry[:_MAX_ENTRY_LENGTH]!r} is not a name with a version")
    return f"{_checked_name(name)}=={version}"


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name) or canonicalize_name(name) != name or len(name) > _MAX_ENTRY_LENGTH:
        raise ValueError(f"{name[:_MAX_ENTRY_LENGTH]!r} is not a package's name")
    return name
