"""Who ran what from which revision: the facts in the provenance of every manifest."""

from __future__ import annotations

import getpass
import hashlib
import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from infra.git import run_git

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
