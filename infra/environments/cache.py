"""The environments of this machine: each made once for its list of packages, and used by every process that needs it.

    <state>/environments/<key>/           an environment; locked while a process uses it
    <state>/environments/<key>.making     locked while it is checked and made, so that one process makes it
    <state>/environments/resolved/<key>   what requirements were resolved to

A key has the list, and the contents that were installed where it was resolved: a package of the same version from
another place is another environment. If a machine's own indexes give other contents, the key has these indexes, too.

An environment is made in a folder of its own and renamed when it is complete. A damaged one is replaced. Those that no
process uses are deleted, the least recently used first, beyond a number that is kept.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import CorruptError, SpecError, UsageError
from infra import files, scratch
from infra.environments import build
from infra.environments.indexes import folder_listing, source_digests
from infra.environments.installed import closure, packages_folder, packages_folder_in, versions
from infra.environments.packages import INSTALL, SEALED, Packages, is_of_cuda, packages_of, public
from infra.environments.requirements import FIELD, Requirements
from infra.environments.uv import TOO_YOUNG, UNDATED, UvFailed
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
    return sys.executable if packages is None else str(build.interpreter_in(environment(packages)))


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
        plan = build.InstallPlan(
            packages.install,
            (),
            _packages_to_link(packages),
            packages.build,
            wheels,
            uploaded_before=packages.uploaded_before,
        )
        with scratch.make("environment", root=base) as folder:
            try:
                build.make(folder.path / "new", plan)
            except UvFailed as error:
                raise UsageError(
                    f"The packages of the environment cannot be installed on {socket.gethostname()}: {error.reason}",
                    remedy=f"Let pip's settings there name the index or folder of wheels that has them ({PAGE}).",
                ) from error
            same = build.contents_digest(folder.path / "new") == packages.contents
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
    before = _days_ago(min_age_days, clock()) if min_age_days else ""
    asked, linked = [*needs, *requirements.requirements], closure(packages_folder(), parsed)
    plan = build.InstallPlan(asked, requirements.constraints, linked, build_names, wheels, uploaded_before=before)
    with scratch.make("environment", root=base) as folder:
        try:
            site = build.make(folder.path / "new", plan)
        except UvFailed as error:
            raise _not_installable(requirements, error.reason) from error
        contents = build.contents_digest(folder.path / "new")
        packages = Packages.of(versions(site), closure(site, requirements.parsed()), build_names, contents, before)
        key = _key(packages)
        with _maker_lock(base, key):
            existing = _use_if_complete(base / key, key)
            if existing is None or build.contents_digest(existing) != contents:
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


def _days_ago(days: int, now_s: float) -> str:
    return (datetime.fromtimestamp(now_s, UTC) - timedelta(days=days)).isoformat(timespec="seconds")


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
    if build.is_complete(folder):
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
    found = [path for path in target.parent.iterdir() if (path / build.RECORD).exists()]
    with contextlib.suppress(FileNotFoundError):  # another process makes room, too
        files.make_room(found, lambda: sum(path.exists() for path in found) <= MAX_ENVIRONMENTS)
    return target
