"""The environments of this machine: each made once for its list of packages, and used by every process that needs it.

It has what the user's packages add to this installation's, or have in another version. This installation's own, such as
torch, come after them on the path (`.pth`): they are neither downloaded nor copied. An environment is renamed to its
key when it is complete. Its record has the sizes of its files, so that a damaged environment is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from venv import EnvBuilder

from packaging.requirements import Requirement

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import CorruptError, SpecError, UsageError
from infra import files, scratch
from infra.environments import packages as own
from infra.environments.installer import Sources, find_missing, install
from infra.environments.packages import Packages, Requirements, packages_folder, packages_folder_in, versions
from infra.settings import on_this_machine, state_folder

VERSION = 2
MAX_ENVIRONMENTS = 10
RANK_NEEDS_FILE = Path(__file__).with_name("rank_needs.txt")
RECORD = "whole.json"
BELOW = "trainwright-below.pth"
# What an installer notes, and where this installation lies: not contents of packages.
_NOT_CONTENTS = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", BELOW})
log = logging.getLogger("trainwright")
# Environments that this process uses, with the handles that keep them until it ends.
_in_use: dict[Path, int] = {}


def rank_needs() -> list[str]:
    """The requirements of Trainwright's own part of a process that imports the user's code."""
    return [line for line in RANK_NEEDS_FILE.read_text().splitlines() if line and not line.startswith("#")]


def interpreter(project: Path | None) -> str:
    """The interpreter of a process that imports an unpacked project's code: its environment's, made if needed."""
    packages = None if project is None else own.packages_of(project)
    return sys.executable if packages is None else str(environment(packages) / "bin/python")


def environment(packages: Packages) -> Path:
    """The environment of a list of packages on this machine, complete, and kept until this process ends."""
    target = _place(packages)
    if target in _in_use:
        return target
    with files.locked(target.with_suffix(".making")):
        if not _use_if_complete(target):
            sources = Sources(packages.build, None, packages.uploaded_before)
            # With what a build of torch brings on this machine, which the list leaves out.
            missing = find_missing(packages.install, sources)
            log.info("environment: installing %d packages on this machine", len(missing))
            with scratch.make("environment", root=target.parent) as folder:
                make_environment(folder.path / "new", missing, sources)
                _put_in_place(folder.path / "new", target)
    return target


def resolve(
    requirements: Requirements,
    build_names: Sequence[str],
    wheels: Path | None,
    *,
    afresh: bool = False,
    min_age_days: int = 0,
    clock: Callable[[], float] = time.time,
) -> Packages:
    """The packages that a user's requirements and ours come to, installed on this machine; SpecError if they cannot be.

    The same requirements give the same packages on this machine until they change, unless `afresh` is set. With
    `min_age_days`, files that an index got fewer days ago by the `clock` (Unix time) are refused.
    """
    stats = {path.name: path.lstat() for path in wheels.iterdir()} if wheels else {}
    listing = {name: [stat.st_ino, stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    needs = [*rank_needs(), *map(str, requirements.packages)]
    resolved = _named_by("resolved", needs, requirements.hashes, build_names, listing, min_age_days)
    # Installed again from the list alone, a package would not be compared with the hashes in the requirements.
    with contextlib.suppress(OSError, ValueError, AttributeError, CorruptError):
        texts: dict[str, str] = json.loads(resolved.read_text())
        packages = Packages.of_files({name: text.encode() for name, text in texts.items()}, str(resolved))
        if not afresh and _use_if_complete(_place(packages)):
            return packages
    log.info("environment: resolving %s", requirements.place)
    youngest = datetime.fromtimestamp(clock(), UTC) - timedelta(days=min_age_days)
    before = youngest.isoformat(timespec="seconds") if min_age_days else ""
    sources = Sources(build_names, wheels, before, requirements.hashes)
    with scratch.make("environment", root=resolved.parent) as folder:
        new = folder.path / "new"
        try:
            make_environment(new, find_missing(needs, sources), sources)
        except UsageError as error:
            raise SpecError(f"environment: {requirements.place}: {error.message}", remedy=error.remedy) from error
        packages = _packages_above(new, requirements, build_names)
        packages = replace(packages, contents=contents_digest(new), uploaded_before=before)
        target = _place(packages)
        with files.locked(target.with_suffix(".making")):
            if not _use_if_complete(target) or contents_digest(target) != packages.contents:
                shutil.rmtree(target, ignore_errors=True)
                _put_in_place(new, target)
    files.replace_private(resolved, json.dumps({name: data.decode() for name, data in packages.files().items()}))
    return packages


def make_environment(folder: Path, missing: Mapping[str, str], sources: Sources) -> None:
    """Make an environment that has the packages `missing` (versions by name) before those of this installation."""
    with on_this_machine(folder):
        EnvBuilder(symlinks=True).create(folder)
        (packages_folder_in(folder) / BELOW).write_text(f"{packages_folder()}\n")
    if missing:
        lines = [f"{name}=={version}{sources.hashes.get(name, '')}" for name, version in sorted(missing.items())]
        install(str(folder / "bin/python"), lines, sources, ["--no-deps"])
    sizes = {os.path.relpath(path, folder): path.stat().st_size for path in _files(folder)}
    files.replace_private(folder / RECORD, json.dumps(sizes))


def contents_digest(environment: Path) -> str:
    """Digest of the bytes that were installed: two folders of wheels may have a package of the same version."""
    site, found = packages_folder_in(environment), {}
    for path in _files(environment):
        if path.name not in _NOT_CONTENTS:
            found[os.path.relpath(path, site)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digest(sorted(found.items()))


def _files(environment: Path) -> Iterator[Path]:
    """Every file of the packages of an environment, but what Python compiles by itself."""
    found = packages_folder_in(environment).rglob("*")
    return (path for path in found if "__pycache__" not in path.parts and path.is_file())


def _packages_above(environment: Path, requirements: Requirements, build_names: Sequence[str]) -> Packages:
    """The packages of a new environment, and those below it that the requirements and our own needs come to."""
    site, below = packages_folder_in(environment), packages_folder()
    infos, found = own.dist_infos(site, below), versions(site, below)
    requested = own.closure(infos, requirements.packages)
    names = {*requested, *own.closure(infos, map(Requirement, rank_needs())), *versions(site)}
    return Packages.of({name: found[name] for name in names}, requested, build_names)


def _place(packages: Packages) -> Path:
    """Where the environment of a list of packages lies, or is to lie."""
    return _named_by(".", packages.install, packages.build, packages.contents)


def _named_by(folder: str, *facts: object) -> Path:
    """A place in a folder of environments, named by facts and by this installation: what it changes is made again."""
    ours = [platform.python_version(), sys.base_prefix, sys.prefix, sysconfig.get_platform()]
    place = state_folder() / "environments" / folder
    with on_this_machine(place):
        place.mkdir(parents=True, exist_ok=True)
    return place / digest([VERSION, *ours, versions(packages_folder()), *facts])[:KEY_LENGTH]


def _use_if_complete(environment: Path) -> bool:
    """Keep an environment for this process, if no file was removed or cut since it was made; else remove it."""
    handle = files.hold(environment)
    if handle is None:
        return False
    with contextlib.suppress(OSError, ValueError):
        sizes: dict[str, int] = json.loads((environment / RECORD).read_text())
        if all((environment / name).stat().st_size == size for name, size in sizes.items()):
            _in_use[environment] = handle
            return True
    os.close(handle)
    shutil.rmtree(environment, ignore_errors=True)
    return False


def _put_in_place(made: Path, target: Path) -> None:
    """Give a new environment its name and keep it for this process; others make room."""
    made.rename(target)
    _use_if_complete(target)
    found = [path for path in target.parent.iterdir() if (path / RECORD).exists()]
    with contextlib.suppress(FileNotFoundError):  # another process makes room, too
        files.make_room(found, lambda: sum(path.exists() for path in found) <= MAX_ENVIRONMENTS)
