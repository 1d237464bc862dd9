"""What a user asks for: a file of requirements, or a folder with `pyproject.toml` and `uv.lock`.

A node gets names and versions alone, so a requirement must be a name with versions of it; a folder, an address or an
option of pip is refused with the number of its line. Only regular files inside the project are read, and no message has
the text of a line: a path may lead to a file with secrets.
"""

from __future__ import annotations

import platform
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from data_contracts.errors import SpecError
from infra.environments.packages import is_of_cuda
from infra.environments.uv import export

FIELD = "environment"
LOCK = "uv.lock"
_NESTED = re.compile(r"(-r|--requirement|-c|--constraint)[ =]?\s*(\S.*)$")
_COMMENT = re.compile(r"(^|\s)#.*$")
_HASHES = re.compile(r"\s--hash[ =]\S+")
_OUR_NAME = "trainwright"
MOST_NESTED = 50
# Options that a message may name; a line that begins with a dash may be anything.
_OPTIONS = ("--extra-index-url", "--index-url", "--no-index", "--find-links", "--editable", "--pre", "-e", "-i", "-f")


@dataclass(frozen=True)
class Requirements:
    """The packages that a user asks for.

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


def read_requirements(place: Path, project: Path) -> Requirements:
    """The requirements in a file, or those locked in a folder.

    Args:
        project: the folder that the code bundle packs; no file outside of it is read.

    Raises:
        SpecError: the file does not exist, a line is not a requirement, or the lock is for another Python.
    """
    try:
        if place.is_dir():
            return _from_lock(place, project)
        file = _regular_file_inside(place, project)
    except OSError as error:
        sentence = f"{FIELD}: {place} cannot be read ({error.strerror})."
        raise SpecError(sentence, remedy="Correct the path in the spec.") from error
    requirements, constraints = list[str](), list[str]()
    _Reading(project, requirements, constraints).read(file, requirements, ())
    return Requirements(place, tuple(requirements), tuple(constraints))


def _regular_file_inside(file: Path, project: Path, place: str | None = None) -> Path:
    """Where a file is, links followed; SpecError unless it is a regular file inside the project.

    Args:
        place: file and line that name it; None: the spec names it.
    """
    shown = f"{FIELD}: {file}" if place is None else f"{FIELD}: {place}: {file}"
    correct = f"Correct the path in {'the spec' if place is None else 'that line'}."
    try:
        found, root = file.resolve(), project.resolve()
        if not found.is_relative_to(root):
            raise SpecError(f"{shown} is outside of the project {root}.", remedy="Put the file into the project.")
        if not found.is_file():
            said = "is not a regular file" if found.exists() else "does not exist"
            raise SpecError(f"{shown} {said}.", remedy=correct)
    except OSError as error:
        raise SpecError(f"{shown} cannot be read ({error.strerror}).", remedy=correct) from error
    return found


@dataclass
class _Reading:
    """Reads a file and the files that it names, each once.

    Attributes:
        requirements, constraints: the lines that were found.
    """

    project: Path
    requirements: list[str]
    constraints: list[str]
    _read: set[tuple[Path, bool]] = field(default_factory=set)

    def read(self, file: Path, lines: list[str], within: tuple[Path, ...]) -> None:
        """Add a file's requirements to `lines`; `within` are the files that led to it."""
        try:
            text = file.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding
        except (OSError, UnicodeDecodeError) as error:
            sentence = f"{FIELD}: {file} cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'})."
            raise SpecError(sentence, remedy="Correct the file, or the path that names it.") from None
        for number, line in _logical_lines(text):
            place = f"{file}:{number}"
            nested = _NESTED.match(line)
            if nested is None:
                lines.append(_checked(line, place))
                continue
            further = lines if nested[1] in ("-r", "--requirement") else self.constraints
            named = _regular_file_inside(file.parent / _named_file(nested[1], nested[2], place), self.project, place)
            if named in (file, *within):
                raise SpecError(f"{FIELD}: {place}: {named} names itself.", remedy="Remove the line.")
            if len(within) >= MOST_NESTED:
                sentence = f"{FIELD}: {place}: more than {MOST_NESTED} files name one another in a row."
                raise SpecError(sentence, remedy="Name the files in one file.")
            if (named, further is self.constraints) not in self._read:
                self._read.add((named, further is self.constraints))
                self.read(named, further, (*within, file))


def _named_file(option: str, text: str, place: str) -> str:
    """The path after `-r` or `-c`, which may be in quotation marks; SpecError for an address or for several words."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation mark is not closed
        words = []
    if "://" in text:
        raise SpecError(
            f"{FIELD}: {place}: {option} names an address; an environment reads only files of the project.",
            remedy="Save the file in the project, and name it there.",
        )
    if len(words) != 1 or not words[0] or "\0" in text:
        raise SpecError(
            f"{FIELD}: {place}: {option} does not name one file.",
            remedy=f'Put a path with spaces in quotation marks: {option} "my file.txt".',
        )
    return words[0]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
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
    if line.startswith("-"):
        option = next((name for name in _OPTIONS if line.startswith(name)), "this line")
        index = "index" in option or "-links" in option or option in ("-i", "-f")
        remedy = "Set indexes and folders of wheels in pip's configuration, which every machine has its own of."
        raise SpecError(
            f"{FIELD}: {place}: {option} is an option; an environment takes names and versions alone.",
            remedy=remedy if index else "Write the names and versions of packages that have wheels.",
        )
    try:
        requirement = Requirement(_HASHES.sub("", line))
    except InvalidRequirement:
        raise SpecError(
            f"{FIELD}: {place}: this line is not a requirement.",
            remedy="Write a name with versions of it, such as rapidfuzz>=3.9.",
        ) from None
    if requirement.url is not None:
        raise SpecError(
            f"{FIELD}: {place}: {requirement.name} is required from an address or a folder, where nodes cannot get it.",
            remedy="Put its wheel on an index or into the folder of environment.wheels, and name its version.",
        )
    if canonicalize_name(requirement.name) == _OUR_NAME:
        raise SpecError(f"{FIELD}: {place}: Trainwright itself is not installed there.", remedy="Remove the line.")
    return line


def _from_lock(folder: Path, project: Path) -> Requirements:
    """The versions that a project's `uv.lock` holds, without its groups for development."""
    for name in ("pyproject.toml", LOCK):
        if not (folder / name).is_file():
            raise SpecError(
                f"{FIELD}: there is no {name} in {folder}.",
                remedy="Run `uv lock` there, or name a file of requirements: `environment: requirements.txt`.",
            )
        _regular_file_inside(folder / name, project)
    lock = folder / LOCK
    _refuse_another_python(lock)
    lines = export(folder)
    checked = [_checked(_without_folder(folder, line), str(lock)) for line in lines]
    # They come with the build of torch that a machine has; a lock names those of one build.
    names = [canonicalize_name(Requirement(line).name) for line in checked]
    return Requirements(lock, tuple(line for line, name in zip(checked, names, strict=True) if not is_of_cuda(name)))


def _without_folder(folder: Path, line: str) -> str:
    """The line, if it does not name a folder."""
    if line.startswith(("-e", "./", "../", "/", "file:")):
        raise SpecError(
            f"{FIELD}: {folder / LOCK}: one of its packages is a folder, which nodes do not have.",
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
