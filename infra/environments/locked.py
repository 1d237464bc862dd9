"""Makes an environment with exactly the packages of a recorded lock.

Packages that this installation has in the recorded version are linked if their files are still what their own list of
hashes says; uv installs all others, from the indexes of this machine or from a folder of wheels.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from data_contracts.errors import CorruptError, UsageError
from infra.environments.build import InstallPlan, interpreter_in, make
from infra.environments.installed import dist_infos, packages_folder, version_of
from infra.environments.uv import UvFailed, binary

_LINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!_-]*")
# Trainwright runs from its sources.
OWN = "trainwright"


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
        (python.parent / "uv").symlink_to(binary())
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
