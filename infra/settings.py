"""Settings of this machine: Trainwright's own state folder, the stores that were used from here, approved credentials.

Which credentials of this machine may be sent to which addresses, its user approves. A spec names both, and whoever
wrote it may be somebody else. So the list lies in the state folder, or comes from the operator's environment, and never
from a spec or a store.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import pwd
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from data_contracts.errors import UsageError
from data_contracts.quoting import APPROVED
from infra.files import locked, replace_private, tag

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
FILE = "approved.json"
# Approves a Dask cluster, which can run code in the process of the run. The name is an earlier one, from when Prefect's
# settings were sent to it; it stays, so that earlier approvals hold.
CLUSTER = "prefect:settings"
# Keys that sign, and what opens the Prefect server, which runs any program.
_NEVER = re.compile(r"env:(?:TRAINWRIGHT|PREFECT)_", re.IGNORECASE)


def state_folder() -> Path:
    """The folder for state of this machine: `TRAINWRIGHT_HOME`, else the user's (platformdirs); made if absent.

    On Linux the default is `$XDG_STATE_HOME/trainwright`, usually `~/.local/state/trainwright`.

    Only this user may enter the folder: its mode is changed if others may enter it. UsageError if another user owns it.
    """
    named = os.environ.get("TRAINWRIGHT_HOME")
    folder = Path(named) if named else user_state_path("trainwright", appauthor=False)
    remedy = "Name another with TRAINWRIGHT_HOME."
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.stat()
    except OSError as error:
        raise UsageError(f"The state folder {folder} cannot be made ({error.strerror}).", remedy=remedy) from error
    if facts.st_uid != os.geteuid():
        raise UsageError(f"The state folder {folder} belongs to another user ({_user(facts.st_uid)}).", remedy=remedy)
    if facts.st_mode & _OTHERS and not _closed_to_others(folder):
        raise UsageError(f"The state folder {folder} cannot be made private to this user.", remedy=remedy)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"This user may not write in the state folder {folder}.", remedy=remedy)
    with contextlib.suppress(OSError):  # a full disk; it is still left out while TRAINWRIGHT_HOME names it
        tag(folder)
    return folder


def library_folders() -> dict[str, str]:
    """Environment variables that keep libraries out of the folders that all users of this machine share.

    By default libraries use fixed names there, which anyone can create first. Variables that are set already are kept.
    """
    below = {"DVC_SITE_CACHE_DIR": "dvc", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    return {name: os.environ.get(name) or str(state_folder() / folder) for name, folder in below.items()}


def is_private_place(folder: Path) -> bool:
    """Whether no other user but root can rename or replace what this user makes in `folder`, nor a folder above it."""
    here = folder.resolve()
    try:
        return all(map(_is_private, (here, *here.parents)))
    except OSError:
        return False


def _is_private(place: Path) -> bool:
    facts = place.stat()
    group = facts.st_mode & stat.S_IWGRP and (_has_access_list(place) or not _has_own_group(facts.st_gid))
    shared = (group or facts.st_mode & stat.S_IWOTH) and not facts.st_mode & stat.S_ISVTX
    return facts.st_uid in (0, os.geteuid()) and not shared


def _has_access_list(place: Path) -> bool:
    """Whether a POSIX access list may give other users and groups what the mode says of the group."""
    try:
        return sys.platform == "linux" and "system.posix_acl_access" in os.listxattr(place)
    except OSError as error:
        return error.errno not in (errno.ENOTSUP, errno.ENOSYS)  # this file system has none


def _has_own_group(gid: int) -> bool:
    """Whether a group is this user's own: with its name and no other member, as many systems make one for each user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


@contextlib.contextmanager
def on_this_machine(folder: Path) -> Iterator[None]:
    """Raise UsageError naming `folder` if this machine cannot do what is asked: a full disk, no permission.

    So a local fault is never mistaken for a fault of a store or a server, and is not retried.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"The folder {folder} on this machine cannot be used ({error.strerror or error}).",
            remedy="Free space on its disk and permit this user to write there, or name another: TRAINWRIGHT_HOME for "
            "state and copies, TMPDIR for scratch.",
        ) from error


def writing(file: RawIOBase, folder: Path) -> Callable[[bytes | memoryview], None]:
    """A function that writes pieces to `file`, which is in `folder`; UsageError if the disk is full.

    The file is unbuffered, so that a full disk is noticed here and not when the file is closed.
    """

    def write(piece: bytes | memoryview) -> None:
        left = memoryview(piece)
        with on_this_machine(folder):
            while left:
                left = left[file.write(left) or 0 :]

    return write


def remember_store(uri: str, storage_options: Mapping[str, object], pointers: str | None = None) -> None:
    """Record that a store was used from this machine, so that a run can be found by its id alone.

    `pointers` is its database, which this user approves with this call.
    """
    entry = {"uri": uri, "storage_options": storage_options, "pointers": pointers}
    folder = state_folder()
    with locked(folder):  # of two processes at once, neither loses the other's entry
        known = {entry["uri"]: entry for entry in known_stores()}
        if known.pop(uri, None) != entry:
            replace_private(folder / "stores.json", json.dumps([*known.values(), entry][-50:]))


def known_stores() -> list[dict]:
    """Stores used from this machine, the latest last: `{"uri", "storage_options", "pointers"}` each.

    Earlier versions recorded no `pointers`.
    """
    try:
        return json.loads((state_folder() / "stores.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []


def _closed_to_others(folder: Path) -> bool:
    """Remove other users' permissions; False if the file system does not keep that."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    return not folder.stat().st_mode & _OTHERS


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def check_approved(fields: Mapping[str, str], address: str, also: Mapping[str, Any] | None = None) -> None:
    """UsageError unless this machine's user has approved that credentials are sent to an address.

    Args:
        fields: the field that names each credential (`env:NAME`, `profile:NAME`), by the credential.
        also: approvals that were recorded elsewhere.
    """
    refuse_own(fields)
    if not fields:
        return
    lists = (also or {}, approved_in_environment(), _approved_in_file())
    approved = {name for approvals in lists for name in approvals.get(address, ())}
    if missing := [name for name in fields if name not in approved]:
        command = shlex.join(["trainwright", "store", "approve", address, *missing])
        raise UsageError(
            f"{fields[missing[0]]}: nobody on this machine has approved that {' and '.join(missing)} may be sent to "
            f"{address}; nothing was sent.",
            remedy=f"If that address may have it, run `{command}`; without a terminal, set {APPROVED}.",
        )


def refuse_own(fields: Mapping[str, str]) -> None:
    """UsageError for a credential that no address ever gets."""
    for name, field in fields.items():
        if _NEVER.match(name):
            raise UsageError(
                f"{field} names {name.partition(':')[2]}, a variable of Trainwright's or Prefect's own, which is sent "
                "to no address.",
                remedy="Name a variable that holds the credential of this address alone.",
            )


def approve(address: str, names: Iterable[str]) -> list[str]:
    """Record that credentials may be sent to an address; returns all that may. UsageError as `refuse_own`."""
    refuse_own({name: name for name in names})
    folder = state_folder()
    with locked(folder):
        approvals = _approved_in_file()
        approvals[address] = sorted({*approvals.get(address, ()), *names})
        replace_private(folder / FILE, json.dumps(approvals))
    return approvals[address]


def approved_in_environment() -> dict[str, list[str]]:
    """The credentials for each address that the operator set for this process; UsageError if they cannot be read."""
    return _parsed(os.environ.get(APPROVED) or "{}", APPROVED)


def _approved_in_file() -> dict[str, list[str]]:
    file = state_folder() / FILE
    return _parsed(file.read_text() if file.exists() else "{}", str(file))


def _parsed(text: str, where: str) -> dict[str, list[str]]:
    try:
        return {str(address): [str(name) for name in names] for address, names in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{where} does not list approved credentials.",
            remedy='Write {"ADDRESS": ["env:NAME"]}, in JSON; `trainwright store approve --json` prints it.',
        ) from error
