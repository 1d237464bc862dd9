"""The password of our own Prefect server: a file in the state folder that only its owner can read.

Prefect calls it the auth string (`user:password`) and expects all of it wherever it asks for a password. It is made
when a server first starts and deleted by `trainwright down`. Processes pass it on in environments, which only the owner
can read as well; it never appears in an address, an argument or a log.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from data_contracts.errors import UsageError
from infra.files import replace_private
from infra.settings import state_folder


def path() -> Path:
    """The file that holds the password."""
    return state_folder() / "password"


def read() -> str | None:
    """The password; None if there is none.

    Raises:
        UsageError: other users of this machine may have read it.
    """
    try:
        with path().open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            known = file.read().strip()
    except FileNotFoundError:
        return None
    if mode & 0o077:
        raise UsageError(
            f"Other users of this machine may have read the password in {path()} (its mode is {mode:04o}).",
            remedy="Delete the file and run `trainwright up`: it makes a new password and restarts the server and the "
            "worker.",
        )
    return known or None


def ensure(chosen: str | None = None) -> str:
    """The password, made if there is none; `chosen`, set by the person, replaces it. Call this under `locked`."""
    known = read()
    wanted = chosen or known or f"trainwright:{secrets.token_urlsafe(32)}"
    if wanted != known:
        replace_private(path(), f"{wanted}\n")
    return wanted


def forget() -> None:
    """Delete the password: the next server gets another."""
    path().unlink(missing_ok=True)
