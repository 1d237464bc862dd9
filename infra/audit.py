"""Who ran what from which revision: the facts that every manifest's provenance carries."""

from __future__ import annotations

import getpass
import hashlib
import os
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path


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
    """Git's commit for a project's folder, and whether the project differs from it; (None, False) outside of Git.

    Where Git does not answer, nothing proves that there are no changes: that counts as changed.
    """
    if not in_repository(folder):
        return None, False
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", ".")
    return commit, commit is None or changes is None or bool(changes)


def in_repository(folder: Path) -> bool:
    """Whether a `.git` lies in `folder` or above it."""
    start = folder.resolve()
    return any((one / ".git").exists() for one in (start, *start.parents))


def lock_digest() -> str:
    """SHA-256 over the versions of all installed distributions, sorted."""
    named = [(name, d) for d in metadata.distributions() if (name := _name(d))]
    versions = sorted({f"{name.lower()}=={d.version}" for name, d in named})
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()


def _name(distribution: metadata.Distribution) -> str | None:
    """A distribution's name; None for what an uninstallation left behind (`~x.dist-info`)."""
    try:
        return distribution.metadata["Name"] if distribution.metadata is not None else None
    except FileNotFoundError:  # so says the backport importlib_metadata, once a library has imported it
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
