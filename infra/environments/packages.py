"""The packages that a user's code needs: as asked for in a file of requirements, and as a bundle of code holds them.

A bundle has `packages.txt`, what the user asked for with all that it needs, which every reuse key covers, and
`install.json`, what is installed: these packages and our own needs. Neither has hashes, local versions (`+cpu`) or what
one build of torch brings, so that CPU and CUDA machines agree. Whoever can write the store can write these files: an
entry that is not a name with a version is refused. No message has the text of a line: a path may lead to secrets.
"""

from __future__ import annotations

import contextlib
import json
import re
import sysconfig
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field, StringConstraints, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, SpecError

FOLDER = ".environment"
SEALED = f"{FOLDER}/packages.txt"
INSTALL = f"{FOLDER}/install.json"
VERSION = 1
OWN = "trainwright"
# What the CUDA build of torch brings.
_OF_CUDA = re.compile(r"nvidia-|cuda-|triton$|pytorch-triton")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")
_HASHES = re.compile(r"\s--hash[ =]\S+")
_NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
Name = Annotated[str, StringConstraints(pattern=f"^{_NAME}$", max_length=128)]
Entry = Annotated[str, StringConstraints(pattern=rf"^{_NAME}==[0-9][0-9a-z.!]*$", max_length=128)]


@dataclass(frozen=True)
class Packages:
    """The packages of an environment, each as `name==version`, sorted.

    Attributes:
        sealed: what the user asked for, and all that it needs.
        install: what is installed: `sealed` and what Trainwright needs.
        build: names that are built from source; every other package comes as a wheel.
        contents: digest of the files that were installed where the list was resolved; "" if that is unknown.
        uploaded_before: only files that an index got before this time are installed; "": all.
    """

    sealed: tuple[Entry, ...]
    install: tuple[Entry, ...]
    build: tuple[Name, ...] = ()
    contents: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    uploaded_before: Annotated[str, Field(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\+00:00)?$")] = ""

    @model_validator(mode="after")
    def _lists_agree(self) -> Self:
        if not set(self.sealed) <= set(self.install) or len(self.versions) != len(self.install):
            raise ValueError("its two lists do not agree")
        return self

    @classmethod
    def of(cls, installed: Mapping[str, str], requested: Iterable[str], build: Iterable[str]) -> Self:
        """The packages `installed` (versions by name), of which `requested` are the user's."""
        entries = {name: f"{name}=={Version(version).public}" for name, version in installed.items()}
        listed = {name: entry for name, entry in sorted(entries.items()) if not _OF_CUDA.match(name)}
        sealed = tuple(listed[name] for name in sorted(set(requested) & listed.keys()))
        return cls(sealed, tuple(listed.values()), tuple(sorted(map(canonicalize_name, build))))

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
        facts = {"schema_version": VERSION, "install": self.install, "build": self.build}
        facts |= {"contents": self.contents} if self.contents else {}
        facts |= {"uploaded_before": self.uploaded_before} if self.uploaded_before else {}
        return {SEALED: "".join(f"{entry}\n" for entry in self.sealed).encode(), INSTALL: json.dumps(facts).encode()}

    @classmethod
    def of_files(cls, read: Mapping[str, bytes], place: str) -> Self:
        """The packages that a bundle's files hold; CorruptError if one is missing, or an entry has another form."""
        try:
            facts = json.loads(read[INSTALL])
            if facts.pop("schema_version") != VERSION:
                raise ValueError("its schema version is another")
            return TypeAdapter(cls).validate_python({"sealed": read[SEALED].decode().splitlines(), **facts})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(
                f"{place} does not hold the packages of an environment ({type(error).__name__}).",
                remedy="Use one version of Trainwright on all machines, then run again.",
            ) from error


def packages_of(project: Path) -> Packages | None:
    """The packages that an unpacked bundle asks for; None if it asks for none."""
    read = {name: (project / name).read_bytes() for name in (SEALED, INSTALL) if (project / name).is_file()}
    return Packages.of_files(read, str(project)) if read else None


def split(entry: str) -> tuple[str, str]:
    """Name and version of `name==version`."""
    name, _, version = entry.partition("==")
    return name, version


class Requirements(NamedTuple):
    """What a user asks for: the file that says it, the packages, and the hashes of each as options of its line."""

    place: Path
    packages: list[Requirement]
    hashes: dict[str, str]


def read_requirements(place: Path, project: Path) -> Requirements:
    """The requirements in a file; SpecError if it is not a text file of the project, or has anything else."""
    try:
        inside = place.resolve().is_relative_to(project.resolve()) and place.is_file()
        text = place.read_text(encoding="utf-8-sig") if inside else ""
    except (OSError, UnicodeDecodeError):
        inside = False
    if not inside:
        raise SpecError(
            f"environment: {place} is not a text file of the project {project}.",
            remedy="Name a file of requirements: `uv export --no-dev --no-emit-project` makes one of a uv.lock.",
        )
    entries = filter(None, map(str.strip, _COMMENT.sub("", text).replace("\\\n", " ").splitlines()))
    requirements = Requirements(place, [], {})
    for number, entry in enumerate(entries, 1):
        with contextlib.suppress(InvalidRequirement):
            package = Requirement(_HASHES.sub("", entry))
            name = canonicalize_name(package.name)
            if package.url is None and name != OWN:
                requirements.packages.append(package)
                # `uv export` writes a line for each version of a package that some machine needs.
                here = package.marker is None or package.marker.evaluate()
                hashes = "".join(_HASHES.findall(entry)) if here else ""
                requirements.hashes[name] = requirements.hashes.get(name, "") + hashes
        if len(requirements.packages) < number:
            raise SpecError(
                f"environment: {place}: entry {number} is not a package's name with versions of it.",
                remedy="Configure indexes and folders of wheels in uv or pip on each machine. No other option, address "
                "or folder, and not Trainwright itself, can be installed on a node.",
            )
    return requirements


def packages_folder() -> Path:
    """The folder of this installation's packages."""
    return Path(sysconfig.get_path("purelib"))


def packages_folder_in(environment: Path) -> Path:
    """The folder of an environment's own packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))


def dist_infos(*folders: Path) -> dict[str, Path]:
    """The folder of each installed package's metadata, by the package's name; of two, that in the first folder."""
    found = [path for folder in reversed(folders) for path in sorted(folder.glob("*.dist-info"))]
    return {canonicalize_name(path.name.partition("-")[0]): path for path in found if (path / "METADATA").is_file()}


def versions(*folders: Path) -> dict[str, str]:
    """Version by name of what is installed, local version included."""
    return {name: path.stem.partition("-")[2] for name, path in dist_infos(*folders).items()}


def closure(infos: Mapping[str, Path], requirements: Iterable[Requirement]) -> set[str]:
    """Names of the installed packages (`dist_infos`) among `requirements` and among all that these need."""
    done = set[tuple[str, str]]()
    waiting = [(requirement, "") for requirement in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in infos or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
            continue
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in done:
                done.add((name, wanted))
                needs = metadata.Distribution.at(infos[name]).requires or []
                waiting += [(Requirement(text), wanted) for text in needs]
    return {name for name, _ in done}
