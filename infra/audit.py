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
    """Git commit of the tree that holds `folder`, and whether that has uncommitted changes; (None, False) outside."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, False
    return commit, bool(_git(folder, "status", "--porcelain", "--", "."))


def lock_digest() -> str:
    """SHA-256 over the versions of all installed distributions, sorted."""
    versions = sorted({f"{d.metadata['Name'].lower()}=={d.version}" for d in metadata.distributions()})
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
