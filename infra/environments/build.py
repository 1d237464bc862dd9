"""Makes an environment in a new folder: an interpreter, packages of this installation, and what uv adds to them.

The record `whole.json` is written last. It has the number of files, and the sizes of those that are not links to files
of this installation. `is_complete` compares these figures, which takes some hundredths of a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_contracts.canonical import digest
from infra.environments.installed import dist_infos, packages_folder, packages_folder_in
from infra.environments.seed import files_of, seed
from infra.environments.uv import install, make_venv, run
from infra.settings import on_this_machine

RECORD = "whole.json"
# What uv notes about an installation, and our own files: not contents of packages.
_INSTALLER_FILES = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", "uv_build.json"})
_OUR_FILES = frozenset(
    {"pyvenv.cfg", "requirements.txt", "constraints.txt", RECORD, ".lock", ".gitignore", "CACHEDIR.TAG"}
)


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
        run(command, {}, Path("/"))
