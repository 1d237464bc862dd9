"""What a user asks for: a file of requirements, or a folder with `pyproject.toml` and `uv.lock`.

A node gets names and versions alone, so a requirement must be a name with versions of it; a folder, an address or an
option of pip is refused with the line that has it.
"""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from data_contracts.errors import SpecError
from infra.environments import uv
from infra.environments.packages import is_of_cuda

FIELD = "environment"
LOCK = "uv.lock"
_NESTED = re.compile(r"(-r|--requirement|-c|--constraint)[ =]?\s*(\S+)$")
_COMMENT = re.compile(r"(^|\s)#.*$")
_HASHES = re.compile(r"\s--hash[ =]\S+")
_OWN = "trainwright"


@dataclass(frozen=True)
class Wanted:
    """What a user asks for.

    Attributes:
        place: the file that says it.
        requirements, constraints: lines as pip and uv read them.
    """

    place: Path
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    names: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Set the names that are asked for, in the form in which they can be compared."""
        names = frozenset(canonicalize_name(requirement.name) for requirement in self.parsed())
        object.__setattr__(self, "names", names)

    def parsed(self) -> list[Requirement]:
        """The requirements without their hashes."""
        return [Requirement(_HASHES.sub("", line)) for line in self.requirements]


def read_wanted(place: Path) -> Wanted:
    """The requirements in a file, or those locked in a folder.

    Raises:
        SpecError: the file does not exist, a line is not a requirement, or the lock is for another Python.
    """
    if place.is_dir():
        return _locked(place)
    if not place.is_file():
        raise SpecError(f"{FIELD}: {place} does not exist.", remedy="Correct the path in the spec.")
    requirements, constraints = list[str](), list[str]()
    _read(place, requirements, constraints, [])
    return Wanted(place, tuple(requirements), tuple(constraints))


def _read(file: Path, lines: list[str], constraints: list[str], within: list[Path]) -> None:
    """Add the lines of a file, and of the files that it names, to `lines` or `constraints`."""
    if file in within:
        raise SpecError(f"{FIELD}: {file} names itself.", remedy="Remove the line that names it.")
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        sentence = f"{FIELD}: {file} cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'})."
        raise SpecError(sentence, remedy="Correct the file, or the path that names it.") from error
    for number, line in _logical(text):
        nested = _NESTED.match(line)
        if nested is None:
            lines.append(_checked(line, f"{file}:{number}"))
        elif nested[1] in ("-r", "--requirement"):
            _read(file.parent / nested[2], lines, constraints, [*within, file])
        else:
            _read(file.parent / nested[2], constraints, constraints, [*within, file])


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers: continued lines joined, without comments and empty lines."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if joined else number
        joined += _COMMENT.sub("", line).rstrip()
        if joined.endswith("\\"):
            joined = f"{joined[:-1]} "
            continue
        if joined.strip():
            yield first, joined.strip()
        joined = ""
    if joined.strip():
        yield first, joined.strip()


def _checked(line: str, place: str) -> str:
    """The line, if it is a name with versions of it."""
    quoted = uv.without_credentials(line)
    if line.startswith("-"):
        index = "index" in line or "-links" in line or line.startswith(("-i", "-f"))
        remedy = "Set indexes and folders of wheels in pip's configuration, which every machine has its own of."
        raise SpecError(
            f"{FIELD}: {place}: {quoted.split()[0]} is an option; an environment takes names and versions alone.",
            remedy=remedy if index else "Write the names and versions of packages that have wheels.",
        )
    try:
        requirement = Requirement(_HASHES.sub("", line))
    except InvalidRequirement as error:
        raise SpecError(
            f"{FIELD}: {place}: {quoted!r} is not a requirement.",
            remedy="Write a name with versions of it, such as rapidfuzz>=3.9.",
        ) from error
    if requirement.url is not None:
        raise SpecError(
            f"{FIELD}: {place}: {requirement.name} is required from an address or a folder, where nodes cannot get it.",
            remedy="Put its wheel on an index or into the folder of environment.wheels, and name its version.",
        )
    if canonicalize_name(requirement.name) == _OWN:
        raise SpecError(f"{FIELD}: {place}: Trainwright itself is not installed there.", remedy="Remove the line.")
    return line


def _locked(folder: Path) -> Wanted:
    """The versions that a project's `uv.lock` holds, without its groups for development."""
    for name in ("pyproject.toml", LOCK):
        if not (folder / name).is_file():
            raise SpecError(
                f"{FIELD}: there is no {name} in {folder}.",
                remedy="Run `uv lock` there, or name a file of requirements: `environment: requirements.txt`.",
            )
    lock = folder / LOCK
    _refuse_another_python(lock)
    lines = uv.export(folder)
    checked = [_checked(_local(folder, line), str(lock)) for line in lines]
    # They come with the build of torch that a machine has; a lock names those of one build.
    return Wanted(lock, tuple(line for line in checked if not is_of_cuda(canonicalize_name(Requirement(line).name))))


def _local(folder: Path, line: str) -> str:
    """The line, if it does not name a folder."""
    if line.startswith(("-e", "./", "../", "/", "file:")):
        raise SpecError(
            f"{FIELD}: {folder / LOCK}: {line.split()[-1]} is a folder, which nodes do not have.",
            remedy="Import its code from the project, or put its wheel on an index.",
        )
    return line


def _refuse_another_python(lock: Path) -> None:
    """SpecError if the Pythons that the lock was made for are without this one."""
    try:
        wanted = str(tomllib.loads(lock.read_text()).get("requires-python", ""))
        pythons = SpecifierSet(wanted)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, InvalidSpecifier) as error:
        raise SpecError(f"{FIELD}: {lock} is not a lock of uv.", remedy="Run `uv lock` in its folder.") from error
    if not pythons.contains(platform.python_version(), prereleases=True):
        raise SpecError(
            f"{FIELD}: {lock} is for Python {wanted}, but Trainwright runs with Python {platform.python_version()}.",
            remedy="Set requires-python in pyproject.toml so that it includes this version, and run `uv lock`.",
        )
