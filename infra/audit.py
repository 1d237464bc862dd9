"""Who ran what from which revision: the facts in the provenance of every manifest.

Git is called so that it runs no program that the folder's own configuration names. A project may come from somebody
else, with its `.git/config`: there, file monitors, hooks, filters, signing programs and transports name programs that
Git runs on its own. Those of the user's configuration and of the system stay.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

# What started a run, where its flow is not told otherwise (`data_contracts.run_report.Trigger`).
TRIGGER = "TRAINWRIGHT_TRIGGER"


def now() -> str:
    """The time, UTC, ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def actor() -> str:
    """The person or service that acts: `TRAINWRIGHT_ACTOR`, a CI system's actor, else the login name."""
    for variable in ("TRAINWRIGHT_ACTOR", "GITHUB_ACTOR", "GITLAB_USER_LOGIN"):
        if os.environ.get(variable):
            return os.environ[variable]
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def revision(folder: Path) -> tuple[str | None, bool]:
    """The Git commit of a project's folder, and whether the project differs from it; (None, False) outside of Git.

    If Git does not answer, nothing proves that there are no changes, so the project counts as changed.
    """
    if not in_repository(folder):
        return None, False
    commit, listed = _git(folder, "rev-parse", "HEAD"), _git(folder, "ls-files", "--stage", "-z", "--", ".")
    # Git would look into a submodule with the submodule's own configuration; so we do it, one by one.
    changes = _git(folder, "status", "--porcelain", "--ignore-submodules=dirty", "--", ".")
    if commit is None or listed is None or changes is None or changes:
        return commit, True
    submodules = [folder / entry.partition("\t")[2] for entry in listed.split("\0") if entry.startswith("160000 ")]
    return commit, any((submodule / ".git").exists() and revision(submodule)[1] for submodule in submodules)


def in_repository(folder: Path) -> bool:
    """Whether there is a `.git` in `folder` or above it."""
    start = folder.resolve()
    return any((one / ".git").exists() for one in (start, *start.parents))


def lock() -> list[str]:
    """`name==version` of every installed distribution, sorted."""
    abouts = [headers(distribution) for distribution in metadata.distributions()]
    return sorted({f"{about['name'].lower()}=={about.get('version')}" for about in abouts if "name" in about})


def lock_digest(lines: Sequence[str] | None = None) -> str:
    """SHA-256 over a lock; default: of this installation."""
    return hashlib.sha256("\n".join(lock() if lines is None else lines).encode()).hexdigest()


def headers(distribution: metadata.Distribution) -> dict[str, str]:
    """A distribution's metadata above the description, by lower-case name; {} for an uninstallation's remains (`~x`).

    `distribution.metadata` parses the description, too: half a second for three hundred distributions.
    """
    # An `.egg-info` may be a file.
    text = next((text for name in ("METADATA", "PKG-INFO", "") if (text := distribution.read_text(name))), "")
    lines = text.partition("\n\n")[0].splitlines()
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = run_git(folder, *arguments)
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return os.fsdecode(answer.stdout).strip()


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
