"""Calls Git, which then runs no program that the folder's own configuration names.

A project may come from somebody else, with its `.git/config`: there, file monitors, hooks, filters, signing programs
and transports name programs that Git runs on its own. Those of the user's configuration and of the system stay.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

TIMEOUT_S = 30
_SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "log.showSignature=false",
    "protocol.allow=never",  # objects that a partial clone lacks would be fetched
)
# No index is written, and no terminal asked.
_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}
# Last parts of the names of settings whose values are programs, or decide which program runs.
_PROGRAM = re.compile(
    r"(?:\.|^)(?:clean|smudge|process|textconv|command|driver|helper|program|defaultkeycommand|external|cmd|vcs"
    r"|sshcommand|askpass|editor|pager|gitproxy|alternaterefscommand|uploadpack|receivepack)$"
)


def run_git(folder: Path, *arguments: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[bytes]:
    """What `git ARGUMENT…` answered in a folder.

    Raises:
        OSError, subprocess.SubprocessError: Git is not there, did not answer in time, or cannot be kept from running a
            program.
    """
    settings = [*_SETTINGS, *_programs_off(folder, timeout_s)]
    return _call(folder, [part for setting in settings for part in ("-c", setting)], arguments, timeout_s)


def _programs_off(folder: Path, timeout_s: float) -> Iterator[str]:
    """Settings that empty those of the folder's configuration that name programs."""
    listed = _call(folder, [], ("config", "--list", "--show-scope", "--name-only", "-z"), timeout_s)
    if listed.returncode and b"show-scope" in listed.stderr:
        raise subprocess.SubprocessError("Git is older than 2.26")
    words = os.fsdecode(listed.stdout).split("\0")
    for scope, name in zip(words[::2], words[1::2], strict=False):
        if scope in ("local", "worktree") and _PROGRAM.search(name.lower()):
            if "=" in name:
                raise subprocess.SubprocessError(f"its setting {name!a} cannot be switched off")
            yield f"{name}="
            if name.startswith("filter."):
                yield f"{name.rpartition('.')[0]}.required=false"


def _call(
    folder: Path, options: list[str], arguments: tuple[str, ...], timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "--no-pager", "-C", str(folder), *options, *arguments]
    env = {**os.environ, **_VARIABLES}
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout_s, env=env
    )
