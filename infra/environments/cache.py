"""The environments of this machine: each made once for its list of packages, and used by every process that needs it.

    <state>/environments/<key>/           an environment; locked while a process uses it
    <state>/environments/<key>.making     locked while it is checked and made, so that one process makes it
    <state>/environments/resolved/<key>   what requirements were resolved to

A key has the list, and the contents that were installed where it was resolved: a package of the same version from
another place is another environment. If a machine's own indexes give other contents, the key has these indexes, too.

An environment is made in a folder of its own and renamed when it is complete: an interpreter, packages of this
installation, and what uv adds to them. Its record `whole.json` is written last. It has the number of files, and the
sizes of those that are not links to files of this installation; comparing these takes some hundredths of a second. A
damaged environment is replaced. Those that no process uses are deleted, the least recently used first, beyond a number
that is kept.

Packages of this installation are linked instead of downloaded again: a node has torch already, in the build for its
devices. Files become hard links, so an environment takes little space and a second to make. They become symbolic links
where hard links are impossible: on another file system, such as the scratch of a pod, or to files of another user, such
as those of an image. What was compiled stays compiled.

An environment of a recorded lock has exactly its packages. Those that this installation has in the recorded version are
linked if their files are still what their own list of hashes says; uv installs all others.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import hashlib
import json
import logging
import os
import platform
import re
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import CorruptError, SpecError, UsageError
from infra import files, scratch
from infra.environments.indexes import folder_listing, source_digests
from infra.environments.packages import (
    FIELD,
    INSTALL,
    OWN,
    SEALED,
    TOO_YOUNG,
    UNDATED,
    Packages,
    Requirements,
    UvFailed,
    closure,
    dist_infos,
    install,
    is_of_cuda,
    make_venv,
    packages_folder,
    packages_folder_in,
    packages_of,
    public,
    run_tied,
    uv_binary,
    version_of,
    versions,
)
from infra.files import replace_private
from infra.settings import on_this_machine, state_folder

VERSION = 1
MAX_ENVIRONMENTS = 10
RANK_NEEDS_FILE = Path(__file__).with_name("rank_needs.txt")
PAGE = "docs/environment.md"
_ABSENT = re.compile(r"(\S+) was not found in")
log = logging.getLogger("trainwright")
# Environments that this process uses, and the handles that keep them until it ends.
_in_use: dict[str, tuple[Path, int]] = {}
RECORD = "whole.json"
# What uv notes about an installation, and our own files: not contents of packages.
_INSTALLER_FILES = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", "uv_build.json"})
_OUR_FILES = frozenset(
    {"pyvenv.cfg", "requirements.txt", "constraints.txt", RECORD, ".lock", ".gitignore", "CACHEDIR.TAG"}
)
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)
_LINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!_-]*")


def rank_needs() -> list[str]:
    """The requirements of Trainwright's own part of a process that imports the user's code."""
    return [line for line in RANK_NEEDS_FILE.read_text().splitlines() if line and not line.startswith("#")]


def interpreter(project: Path | None) -> str:
    """The interpreter of a process that imports an unpacked project's code: its environment's, which is made if needed.

    Raises:
        UsageError: the packages cannot be installed on this machine.
        StorageUnavailable: an index does not answer.
    """
    packages = None if project is None else packages_of(project)
    return sys.executable if packages is None else str(interpreter_in(environment(packages)))


def environment(packages: Packages, wheels: Path | None = None) -> Path:
    """The environment of a list of packages on this machine, complete, and kept until this process ends."""
    key = _key(packages)
    if key in _in_use and _in_use[key][0].is_dir():
        return _in_use[key][0]
    base = _environments_folder()
    with _maker_lock(base, key):
        key_of_sources = _key(packages, _package_sources(wheels))
        existing = _use_if_complete(base / key, key) or _use_if_complete(base / key_of_sources, key)
        if existing is not None:
            return existing
        log.info("environment: installing %d packages on this machine", len(packages.install))
        plan = InstallPlan(
            packages.install,
            (),
            _packages_to_link(packages),
            packages.build,
            wheels,
            uploaded_before=packages.uploaded_before,
        )
        with scratch.make("environment", root=base) as folder:
            try:
                make(folder.path / "new", plan)
            except UvFailed as error:
                raise UsageError(
                    f"The packages of the environment cannot be installed on {socket.gethostname()}: {error.reason}",
                    remedy=f"Let pip's settings there name the index or folder of wheels that has them ({PAGE}).",
                ) from error
            same = contents_digest(folder.path / "new") == packages.contents
            return _put_in_place(folder.path, base / (key if same else key_of_sources), key)


def resolve(
    requirements: Requirements,
    build_names: Sequence[str],
    wheels: Path | None,
    *,
    afresh: bool = False,
    min_age_days: int = 0,
    clock: Callable[[], float] = time.time,
) -> Packages:
    """The packages that a user's requirements and ours come to, installed on this machine.

    The same requirements give the same packages on this machine until they change, unless `afresh` is set.

    Args:
        min_age_days: files that an index got fewer days ago by the `clock` (Unix time) are refused; 0: none.

    Raises:
        SpecError: they cannot be installed, or not together with what Trainwright needs.
        StorageUnavailable: an index does not answer.
    """
    needs = rank_needs()
    lines = [*requirements.requirements, "", *requirements.constraints, "", *needs, "", *build_names]
    base = _environments_folder()
    facts = [VERSION, lines, _package_sources(wheels), _platform_facts(), versions(packages_folder())]
    facts += [min_age_days] if min_age_days else []
    resolved = base / "resolved" / digest(facts)[:KEY_LENGTH]
    packages = None if afresh else _read_resolved(resolved)
    # Installed again from the list alone, a package would not be compared with the hashes in the requirements.
    if packages is not None:
        key = _key(packages)
        with _maker_lock(base, key):
            if _use_if_complete(base / key, key) is not None:
                return packages
    parsed = [*map(Requirement, needs), *requirements.parsed()]
    log.info("environment: resolving %s", requirements.place)
    youngest = datetime.fromtimestamp(clock(), UTC) - timedelta(days=min_age_days)
    before = youngest.isoformat(timespec="seconds") if min_age_days else ""
    asked, linked = [*needs, *requirements.requirements], closure(packages_folder(), parsed)
    plan = InstallPlan(asked, requirements.constraints, linked, build_names, wheels, uploaded_before=before)
    with scratch.make("environment", root=base) as folder:
        try:
            site = make(folder.path / "new", plan)
        except UvFailed as error:
            raise _not_installable(requirements, error.reason) from error
        contents = contents_digest(folder.path / "new")
        packages = Packages.of(versions(site), closure(site, requirements.parsed()), build_names, contents, before)
        key = _key(packages)
        with _maker_lock(base, key):
            existing = _use_if_complete(base / key, key)
            if existing is None or contents_digest(existing) != contents:
                _move_away(base / key)
                _put_in_place(folder.path, base / key, key)
    with on_this_machine(base):
        resolved.parent.mkdir(exist_ok=True)
        files = {name: data.decode() for name, data in packages.files().items()}
        replace_private(resolved, json.dumps(files))
    return packages


def packages_in(packages: Packages) -> Path:
    """The folder of packages in the environment of a list."""
    return packages_folder_in(environment(packages))


def _not_installable(requirements: Requirements, reason: str) -> SpecError:
    """The error for requirements that uv did not install."""
    absent = {canonicalize_name(name) for name in _ABSENT.findall(reason)}
    if UNDATED in reason:
        remedy = "Use an index with upload times (PEP 700), or leave environment.packages.min_age_days out."
    elif TOO_YOUNG in reason:
        remedy = "Ask for an older version, wait, or lower environment.packages.min_age_days."
    elif "building from source is disabled" in reason or "no usable wheels" in reason or "no wheels" in reason:
        remedy = "If its source may be built here and on every node, which runs its code, name it in environment.build."
    elif absent & requirements.names or "there is no version of" in reason:
        remedy = (
            "Correct the name or the version, or let pip's settings name the index or folder of wheels that has it."
        )
    else:
        remedy = f"Ask for versions that fit each other and what Trainwright itself needs in a rank ({PAGE})."
    return SpecError(f"{FIELD}: {requirements.place}: {reason}", remedy=remedy)


def _read_resolved(path: Path) -> Packages | None:
    try:
        files = json.loads(path.read_text())
        return Packages.of_files(files[SEALED].encode(), files[INSTALL].encode(), str(path))
    except (OSError, ValueError, KeyError, AttributeError, CorruptError):
        return None


def _environments_folder() -> Path:
    base = state_folder() / "environments"
    with on_this_machine(base.parent):
        base.mkdir(exist_ok=True)
    return base


@contextlib.contextmanager
def _maker_lock(base: Path, key: str) -> Iterator[None]:
    """Let one process at a time check and make an environment; UsageError if the state folder cannot be written to."""
    with contextlib.ExitStack() as stack:
        with on_this_machine(base):
            stack.enter_context(files.locked(base / f"{key}.making"))
        yield


def _platform_facts() -> list[str]:
    """What an environment depends on besides its packages: this Python, this installation and this machine's kind."""
    return [platform.python_version(), sys.base_prefix, sys.prefix, sysconfig.get_platform()]


def _package_sources(wheels: Path | None) -> list[object]:
    """Where packages come from on this machine."""
    return [None if wheels is None else folder_listing(wheels), *source_digests(os.environ)]


def _key(packages: Packages, *more: object) -> str:
    """The name of an environment: its packages, this machine's kind, and the builds that this installation has.

    When this installation changes, an environment that links to it is not used again.
    """
    ours, theirs = versions(packages_folder()), packages.versions
    builds = sorted(f"{name}=={ours[name]}" for name in ours.keys() & theirs.keys())
    facts = [VERSION, list(packages.install), list(packages.build), _platform_facts(), builds, packages.contents, *more]
    return digest(facts)[:KEY_LENGTH]


def _packages_to_link(packages: Packages) -> set[str]:
    """The packages that this installation has in the wanted version, and what its build of torch brings."""
    ours, theirs = versions(packages_folder()), packages.versions
    same = {name for name in ours.keys() & theirs.keys() if public(ours[name]) == theirs[name]}
    needed = closure(packages_folder(), [Requirement(name) for name in sorted(same)])
    return same | {name for name in needed if is_of_cuda(name)}


def _use_if_complete(folder: Path, key: str) -> Path | None:
    """Keep an environment for this process, if it is complete; a damaged one is removed."""
    handle = files.hold(folder)
    if handle is None:
        return None
    if is_complete(folder):
        _in_use[key] = (folder, handle)
        return folder
    log.warning("environment: %s is damaged and is made again", folder)
    os.close(handle)
    _move_away(folder)
    return None


def _move_away(folder: Path) -> None:
    """Remove an environment from its place at once, if there is one."""
    with scratch.make("environment", root=folder.parent) as aside, contextlib.suppress(FileNotFoundError):
        os.rename(folder, aside.path / "damaged")


def _put_in_place(made: Path, target: Path, key: str) -> Path:
    """Give a new environment its name and keep it for this process; others make room."""
    handle = files.hold(made / "new")  # the lock stays with the folder when it is renamed
    assert handle is not None, "it was just made"
    with on_this_machine(target.parent):
        os.rename(made / "new", target)
    _in_use[key] = (target, handle)
    found = [path for path in target.parent.iterdir() if (path / RECORD).exists()]
    with contextlib.suppress(FileNotFoundError):  # another process makes room, too
        files.make_room(found, lambda: sum(path.exists() for path in found) <= MAX_ENVIRONMENTS)
    return target


@dataclass(frozen=True)
class InstallPlan:
    """What an environment is made of.

    Attributes:
        requirements, constraints: lines as uv reads them.
        linked: names of packages to link from this installation, unless the requirements ask for other versions.
        build: names that are built from source.
        wheels: the folder that packages come from; None: the indexes of this machine.
        whole: whether the requirements name every package, so that nothing else is looked up.
        uploaded_before: only files that an index got before this time (ISO 8601); "": all.
    """

    requirements: Sequence[str]
    constraints: Sequence[str]
    linked: Iterable[str]
    build: Sequence[str]
    wheels: Path | None
    whole: bool = False
    uploaded_before: str = ""


def make(folder: Path, plan: InstallPlan) -> Path:
    """Make the environment and return its folder of packages.

    Raises:
        UvFailed: the packages cannot be installed, or not together.
    """
    make_venv(folder, sys.executable)
    site = packages_folder_in(folder)
    with on_this_machine(folder):
        linked = seed(plan.linked, site)
        requirements, constraints = folder / "requirements.txt", folder / "constraints.txt"
        requirements.write_text("".join(f"{line}\n" for line in plan.requirements))
        constraints.write_text("".join(f"{line}\n" for line in plan.constraints))
    bounds = ["--constraints", str(constraints)] if plan.constraints else []
    alone = ["--no-deps"] if plan.whole else []
    arguments = ["--requirements", str(requirements), *bounds, *alone]
    install(interpreter_in(folder), arguments, plan.build, plan.wheels, plan.uploaded_before)
    with on_this_machine(folder):
        _compile(site, linked)
        _record(folder, site)
    return site


def interpreter_in(environment: Path) -> Path:
    """The interpreter of an environment."""
    return environment / "bin" / "python"


def is_complete(environment: Path) -> bool:
    """Whether an environment is complete, and no file was removed or cut since it was made.

    A package may add files to its own folder, such as a cache: another process that runs with them is not disturbed.
    """
    try:
        record = json.loads((environment / RECORD).read_text())
        if not interpreter_in(environment).exists():
            return False
        sizes: dict[str, int] = record["sizes"]
        if any((environment / name).stat().st_size != size for name, size in sizes.items()):
            return False
        return sum(1 for _ in _files(packages_folder_in(environment))) >= record["files"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def contents_digest(environment: Path) -> str:
    """Digest of the bytes that uv installed; what is shared with this installation is not read.

    The hashes in a wheel's own list of its files are not used, because uv does not compare them with the files.
    """
    site, found = packages_folder_in(environment), {}
    for path in _files(environment):
        name = os.path.relpath(path, environment)
        noted = Path(name).parent.suffix == ".dist-info" and Path(name).name in _INSTALLER_FILES
        if noted or name in _OUR_FILES or os.path.islink(path) or _is_shared(path, site):
            continue
        with open(path, "rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digest(sorted(found.items()))


def _is_shared(path: str, site: Path) -> bool:
    """Whether a file is one file with this installation's file of that name."""
    try:
        return os.path.samefile(path, packages_folder() / os.path.relpath(path, site))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _record(folder: Path, site: Path) -> None:
    files, sizes = 0, {}
    for path in _files(site):
        files += 1
        if not _is_shared(path, site):
            sizes[os.path.relpath(path, folder)] = os.stat(path).st_size
    draft = folder / f"{RECORD}.draft"
    draft.write_text(json.dumps({"files": files, "sizes": sizes}))
    draft.rename(folder / RECORD)


def _files(folder: Path) -> Iterator[str]:
    """Every file below a folder, but what Python compiles by itself."""
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as scanned:
            entries = list(scanned)
        folders = {entry.path for entry in entries if entry.is_dir(follow_symlinks=False)}
        waiting += (path for path in folders if not path.endswith("__pycache__"))
        yield from (entry.path for entry in entries if entry.path not in folders)


def _compile(site: Path, linked: set[str]) -> None:
    """Compile what uv installed, so that eight ranks do not do it at once."""
    theirs = dist_infos(packages_folder())
    tops = {
        site / file.parts[0]
        for name, info in dist_infos(site).items()
        if name not in linked or theirs[name].name != info.name
        for file in files_of(info)
        if file.suffix == ".py"
    }
    if tops:
        # Some packages carry files that do not compile, so the exit code says nothing.
        command = [sys.executable, "-I", "-m", "compileall", "-q", "-j", "0", *map(str, sorted(tops))]
        run_tied(command, {}, Path("/"))


def seed(names: Iterable[str], target: Path) -> set[str]:
    """Link packages of this installation into the folder of packages `target`; returns the names of those linked.

    A package without a list of its files, and one that is run from its sources, is left out.
    """
    source = packages_folder()
    infos, linked, made = dist_infos(source), set[str](), set[Path]()
    for name in sorted(set(names) & infos.keys()):
        files = list(files_of(infos[name]))
        if not files or (infos[name] / "direct_url.json").exists():
            continue
        for file in files:
            _link(source / file, target / file, made)
        linked.add(name)
    return linked


def files_of(dist_info: Path) -> Iterator[PurePosixPath]:
    """The files of a package below the folder of packages; programs and data outside of it are left out."""
    with contextlib.suppress(FileNotFoundError), (dist_info / "RECORD").open(newline="") as record:
        for row in csv.reader(record):
            file = PurePosixPath(row[0]) if row else PurePosixPath("..")
            if not file.is_absolute() and ".." not in file.parts and file.suffix != ".pyc":
                yield file


def _link(source: Path, target: Path, made: set[Path]) -> None:
    if target.parent not in made:
        target.parent.mkdir(parents=True, exist_ok=True)
        made.add(target.parent)
    _link_file(source, target)
    if source.suffix == ".py":
        # Its time of change, which the compiled file records, is the same for every link of the source.
        compiled = Path(cache_from_source(str(source)))
        cached = target.parent / "__pycache__"
        if cached not in made:
            cached.mkdir(exist_ok=True)
            made.add(cached)
        with contextlib.suppress(FileNotFoundError):
            _link_file(compiled, cached / compiled.name)


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        pass  # two packages list one file, such as a package's root that they share
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.symlink(source, target)


def make_locked(folder: Path, lock: Sequence[str], wheels: Path | None) -> Path:
    """Make the environment in a new folder and return its interpreter.

    Args:
        lock: `name==version` of every package.
        wheels: the folder that packages come from which cannot be linked; None: the indexes of this machine.

    Raises:
        UsageError: the lock no longer resolves, which the sentence explains.
        CorruptError: a line of the lock is something else.
        StorageUnavailable: an index does not answer.
    """
    # The lock is read from a store, and a line of a file of requirements may be an option.
    if wrong := [line for line in lock if not _LINE.fullmatch(line)]:
        raise CorruptError(f"The recorded lock has a line that is not a name and a version: {wrong[0][:80]!r}.")
    wanted = dict(line.split("==", 1) for line in lock)
    wanted = {canonicalize_name(name): version for name, version in wanted.items() if canonicalize_name(name) != OWN}
    infos = dist_infos(packages_folder())
    same = [name for name, version in wanted.items() if name in infos and version_of(infos[name]) == version]
    linked = [name for name in same if is_intact(infos[name])]
    requirements = [f"{name}=={version}" for name, version in wanted.items()]
    try:
        make(folder, InstallPlan(requirements, [], linked, [], wheels, whole=True))
    except UvFailed as error:
        raise UsageError(
            f"The lock of {len(requirements)} packages no longer resolves: {error.reason}",
            remedy="Name a folder that has the wheels of these versions with --wheels, or set pip's index to one that "
            "has them.",
        ) from error
    python = interpreter_in(folder)
    if "uv" in linked and not (python.parent / "uv").exists():
        # A program, which is outside of the folder of packages; it makes the environments of users' code.
        (python.parent / "uv").symlink_to(uv_binary())
    return python


def is_intact(dist_info: Path) -> bool:
    """Whether a package's files are what its list says; a file without a hash in the list is not compared."""
    site = dist_info.parent
    try:
        with (dist_info / "RECORD").open(newline="") as record:
            rows = [row for row in csv.reader(record) if len(row) == 3 and row[1] and ".." not in Path(row[0]).parts]
        return bool(rows) and all(_has(site / name, noted) for name, noted, _ in rows)
    except (OSError, ValueError):
        return False


def _has(path: Path, noted: str) -> bool:
    kind, _, expected = noted.partition("=")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, kind).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode() == expected
