"""The packages that a user's code needs: as asked for, as resolved, and as installed; and uv, which installs them.

A user asks by a file of requirements, or a folder with `pyproject.toml` and `uv.lock`. A node gets names and versions
alone, so a requirement must be a name with versions of it; a folder, an address or an option of pip is refused with the
number of its line. Only regular files inside the project are read, and no message has the text of a line: a path may
lead to a file with secrets.

A bundle of code holds the resolved list in two files. `packages.txt` has what the user asked for, with all that it
needs: the code's digest, and with it every reuse key, covers it. `install.json` has what is installed: these packages
and our own needs. Neither has hashes of packages, local versions (`+cpu`) or what one build of torch brings, so that
CPU and CUDA machines agree. `install.json` also says which contents were installed where it was resolved: a machine
keeps environments apart by it. Whoever can write the store can write these files: a name or version that is not one is
refused, options are not read.

uv runs with the indexes of this machine, without credentials that it does not need, and ends with this process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sysconfig
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, SpecError, StorageUnavailable, TrainwrightError, UsageError
from infra import scratch
from infra.environments.indexes import uv_settings, without_credentials
from infra.processes.environment import for_user_code
from infra.processes.processes import marked_env, module_command, new_mark, run_to_end, terminable

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
FIELD = "environment"
LOCK = "uv.lock"
_NESTED = re.compile(r"(-r|--requirement|-c|--constraint)[ =]?\s*(\S.*)$")
_COMMENT = re.compile(r"(^|\s)#.*$")
_HASHES = re.compile(r"\s--hash[ =]\S+")
# Trainwright runs from its sources.
OWN = "trainwright"
MOST_NESTED = 50
# Options that a message may name; a line that begins with a dash may be anything.
_OPTIONS = ("--extra-index-url", "--index-url", "--no-index", "--find-links", "--editable", "--pre", "-e", "-i", "-f")
_DIST_INFO = ".dist-info"
_REQUIRES = re.compile(r"^Requires-Dist:\s*(.+)$", re.MULTILINE)
MAX_CHARACTERS = 700
# The ends of sentences about releases whose age counts.
UNDATED = "does not say when it got its files, so their age is not known."
TOO_YOUNG = "Only files that the index got before"
_UNDATED_FILE = re.compile(r"^warning: `([^`]*)` is missing an upload date.*\n?", re.MULTILINE)
_LEFT_OUT = re.compile(r"filtered by `exclude-newer` to only include packages uploaded before (\S+)\. ")
# uv reads no configuration that a person made for other projects.
_UV_VARIABLES = {
    "UV_NO_CONFIG": "1",
    "UV_NO_PROGRESS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "NO_COLOR": "1",
}
_UNREACHABLE = re.compile(
    r"error sending request|failed to (?:fetch|download)|connect(?:ion)? (?:error|refused|reset)|timed out|dns error|"
    r"status (?:server )?error|\b50\d\b",
    re.IGNORECASE,
)
# A retry does not change this, so it is looked for before the words of an outage.
_HASH_MISMATCH = re.compile(r"hash mismatch|hashes? (?:do|does) not match", re.IGNORECASE)
_REFUSED = re.compile(r"\b(?:401 unauthorized|403 forbidden|404 not found|status code:? 40[134])\b", re.IGNORECASE)
_DISK = re.compile(r"no space left|disk quota|permission denied|read-only file system", re.IGNORECASE)


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
        requested: Iterable[str],
        build: Iterable[str],
        contents: str = "",
        uploaded_before: str = "",
    ) -> Self:
        """The packages `installed` (versions by name), of which `requested` are the user's."""
        entries = {name: f"{name}=={public(version)}" for name, version in installed.items()}
        listed = {name: entry for name, entry in sorted(entries.items()) if not is_of_cuda(name)}
        return cls(
            sealed=tuple(listed[name] for name in sorted(set(requested) & listed.keys())),
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
                lines.append(_checked_line(line, place))
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


def _checked_line(line: str, place: str) -> str:
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
    if canonicalize_name(requirement.name) == OWN:
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
    lines = export_lock(folder)
    checked = [_checked_line(_without_folder(folder, line), str(lock)) for line in lines]
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


def packages_folder() -> Path:
    """The folder of this installation's packages."""
    return Path(sysconfig.get_path("purelib"))


def packages_folder_in(environment: Path) -> Path:
    """The folder of an environment's packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))


def dist_infos(folder: Path) -> dict[str, Path]:
    """The folder of each installed package's metadata, by the package's name."""
    found = sorted(folder.glob(f"*{_DIST_INFO}"))
    return {canonicalize_name(path.name.partition("-")[0]): path for path in found if (path / "METADATA").is_file()}


def versions(folder: Path) -> dict[str, str]:
    """Version by name of what is installed, local version included."""
    return {name: version_of(path) for name, path in dist_infos(folder).items()}


def version_of(dist_info: Path) -> str:
    """The version that a package's metadata folder is named after."""
    return dist_info.name.removesuffix(_DIST_INFO).partition("-")[2]


def closure(folder: Path, requirements: Iterable[Requirement]) -> set[str]:
    """Names of the installed packages among `requirements` and among all that these need."""
    infos = dist_infos(folder)
    needs: dict[str, list[Requirement]] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(one, frozenset(one.extras)) for one in requirements if _applies(one, frozenset())]
    while waiting:
        requirement, extras = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in infos or (name, extras) in done:
            continue
        done.add((name, extras))
        if name not in needs:
            needs[name] = _needs(infos[name])
        waiting += [(one, frozenset(one.extras)) for one in needs[name] if _applies(one, extras)]
    return {name for name, _ in done}


def _needs(dist_info: Path) -> list[Requirement]:
    headers = (dist_info / "METADATA").read_text(errors="replace").partition("\n\n")[0]
    found = []
    for text in _REQUIRES.findall(headers):
        try:
            found.append(Requirement(text.strip()))
        except InvalidRequirement:
            continue  # of another installer; what is not understood is not taken over
    return found


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement counts here, for a package that is wanted with `extras`."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


class UvFailed(Exception):
    """uv ended with an error; `reason` is what it printed, as one line without credentials."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def run_uv(*arguments: str, folder: Path | None = None) -> str:
    """What `uv ARGUMENT…` printed on its standard output.

    Raises:
        UvFailed: it ended with an error of the request.
        StorageUnavailable: an index does not answer; CorruptError: a package has another hash.
        UsageError: an index refuses this machine, or this machine's disk does not take the files.
    """
    variables, options = uv_settings(os.environ) if arguments[0] == "pip" else ({}, [])
    more = [option for option in options if option not in arguments]
    code, output, errors = run_tied([uv_binary(), *arguments, *more], {**variables, **_UV_VARIABLES}, folder)
    if code != 0:
        raise _uv_error(errors)
    return output


def run_tied(
    command: Sequence[str], variables: Mapping[str, str], folder: Path | None = None
) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a command, which ends with this process and gets no credentials of its own."""
    mark = new_mark()
    with terminable(), scratch.make("install", mark=mark) as own:
        output, errors = own.path / "output.txt", own.path / "errors.txt"
        # A supervisor installs in a thread, which nothing waits for once the node ends.
        tied = module_command("infra.processes.tied_to_parent", "--", *command)
        environ = marked_env(mark, scratch.variables(own.path), {**for_user_code(os.environ, {}), **variables})
        with output.open("wb") as out, errors.open("wb") as err:
            code = run_to_end(tied, mark, environ, stdout=out, stderr=err, folder=folder, handles=own.handles)
        return code, output.read_text(errors="replace"), errors.read_text(errors="replace")


def make_venv(folder: Path, python: str) -> None:
    """An empty environment in a new folder, which may be renamed afterwards."""
    run_uv("venv", "--quiet", "--relocatable", "--no-project", "--python", python, str(folder))


def install(
    python: Path, arguments: Sequence[str], build: Sequence[str], wheels: Path | None, uploaded_before: str = ""
) -> None:
    """Install into the environment of `python`: from wheels alone, except the names in `build`.

    Args:
        arguments: files of requirements and constraints, as options.
        wheels: a folder that every package comes from; default: the indexes of this machine.
        uploaded_before: only files that an index got before this time (ISO 8601); "": all.
    """
    sources = [option for name in build for option in ("--no-binary", name)]
    places = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
    if uploaded_before:
        # uv takes a wheel from a folder whatever its age.
        if wheels is not None or uv_settings(os.environ)[0].get("UV_FIND_LINKS"):
            raise UvFailed(f"A folder of wheels (find-links) {UNDATED}")
        places += ["--exclude-newer", uploaded_before]
    # Copies, not links: damage here, or code that writes into a package, would reach uv's cache and come back from it.
    ways = ("--only-binary", ":all:", "--link-mode", "copy")
    run_uv("pip", "install", "--python", str(python), *ways, *sources, *places, *arguments)


def export_lock(folder: Path) -> list[str]:
    """The locked requirements of a project, without the project itself; SpecError if uv cannot read them."""
    options = ("--frozen", "--no-dev", "--no-emit-project", "--no-header", "--no-annotate", "--no-hashes")
    try:
        text = run_uv("export", "--quiet", *options, folder=folder)
    except UvFailed as error:
        raise SpecError(
            f"environment: {folder / 'uv.lock'} cannot be read: {error.reason}",
            remedy="Run `uv lock` in its folder.",
        ) from error
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def uv_binary() -> str:
    """Path of the program."""
    from uv import find_uv_bin

    try:
        return str(find_uv_bin())
    except FileNotFoundError as error:
        raise UsageError("uv, which installs environments, is not there.", remedy="Run `make setup` again.") from error


def _uv_error(text: str) -> TrainwrightError | UvFailed:
    """The error for what uv printed."""
    undated, left_out = _UNDATED_FILE.search(text), _LEFT_OUT.search(text)
    reason = as_sentence(_UNDATED_FILE.sub("", text))
    if _DISK.search(reason):
        return UsageError(
            f"uv cannot write on this machine: {reason}",
            remedy="Free space, and permit this user to write: TRAINWRIGHT_HOME names the folder of environments, "
            "UV_CACHE_DIR that of uv's downloads.",
        )
    if _HASH_MISMATCH.search(reason):
        return CorruptError(
            f"A package does not have the hash that was asked for: {reason}",
            remedy="Find out who changed it; correct the hash if the change is right.",
        )
    if _REFUSED.search(reason):
        return UsageError(
            f"The package index refuses this machine, or lacks the file: {reason}",
            remedy="Correct the address and the password of the index in pip's configuration of this machine.",
        )
    if _UNREACHABLE.search(reason):
        return StorageUnavailable(f"The package index does not answer uv: {reason}")
    if undated is not None:
        reason += f" The index of {undated[1]} {UNDATED}"
    elif left_out is not None:
        reason += f" {TOO_YOUNG} {left_out[1]} count."
    return UvFailed(reason)


def as_sentence(text: str) -> str:
    """What uv printed as one line, without its frames, its hints and the credentials in addresses."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("Using Python", "Resolved"))]
    plain = re.sub(r"[│×╰─▶├]+|\b(?:error|cause|warning): ", " ", without_credentials("\n".join(lines)))
    joined = " ".join(plain.partition("hint:")[0].split())
    return joined if len(joined) <= MAX_CHARACTERS else f"{joined[:MAX_CHARACTERS]}…"
