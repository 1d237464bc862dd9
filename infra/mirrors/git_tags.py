"""Git tags as GTO writes them: `model@v3.0.0` registers a version, `model#champion#2` assigns it to a stage.

Tags are annotated. The message of an assignment names the receipt that it follows, so the same move is assigned once.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from data_contracts.errors import StorageUnavailable, UsageError
from infra.git import run_git

_AS = ("-c", "user.name=Trainwright", "-c", "user.email=trainwright@localhost")


def register(repository: Path, model: str, version: int, commit: str, message: str) -> str | None:
    """Tag the commit as a version of the model, if it is not; returns the tag.

    Returns None if the commit is another version of the model: GTO reads no repository in which it is two.

    Raises:
        UsageError: the tag names another commit, or the repository does not have the commit.
        StorageUnavailable: Git does not answer.
    """
    tag = f"{model}@v{version}.0.0"
    _git(repository, "cat-file", "-e", f"{commit}^{{commit}}")
    versions = _git(repository, "tag", "--points-at", commit).splitlines()
    if any(one.startswith(f"{model}@") and one != tag for one in versions):
        return None
    if not _create(repository, tag, commit, message):
        there = _git(repository, "rev-parse", f"refs/tags/{tag}^{{commit}}")
        if there != commit:
            raise UsageError(
                f"The Git tag {tag} names another commit ({there[:12]}) than version {version} was made from.",
                remedy="Delete the tag if it is wrong, then call `trainwright mirror`.",
            )
    return tag


def assign(repository: Path, model: str, stage: str, commit: str, receipt: str) -> str:
    """Tag the commit as the model's newest assignment to a stage, once for each receipt; returns the tag."""
    mark = f"trainwright receipt {receipt}"
    while True:
        numbers = [0]
        for line in _tags(repository):
            tag, _, subject = line.partition("\t")
            match = re.fullmatch(rf"{re.escape(model)}#([^#]+)#([0-9]+)", tag)
            if match and match[1] == stage and subject == mark:
                return tag
            if match:
                numbers.append(int(match[2]))
        tag = f"{model}#{stage}#{max(numbers) + 1}"
        if _create(repository, tag, commit, mark):  # else another process took the number
            return tag


def _create(repository: Path, tag: str, commit: str, message: str) -> bool:
    """Whether the tag was created; False if there is one of this name."""
    _git(repository, "cat-file", "-e", f"{commit}^{{commit}}")
    try:
        _git(repository, *_AS, "tag", "--annotate", "--no-sign", "--message", message, tag, commit)
    except UsageError:
        if _exists(repository, tag):
            return False
        raise
    return True


def _exists(repository: Path, tag: str) -> bool:
    return bool(_git(repository, "tag", "--list", tag.replace("*", "")))


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = run_git(repository, *arguments)
    except (OSError, subprocess.SubprocessError) as error:
        raise StorageUnavailable(
            f"Git did not answer in {repository}.", remedy="`trainwright mirror` sets the tags later."
        ) from error
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())[:300] or "it gave no reason"
        raise UsageError(
            f"Git cannot set tags in {repository}: {reason}.",
            remedy="Call `trainwright mirror` where the project is checked out with its history.",
        )
    return os.fsdecode(done.stdout).strip()


def _tags(repository: Path) -> list[str]:
    form = "--format=%(refname:strip=2)%09%(contents:subject)"
    return _git(repository, "for-each-ref", form, "refs/tags").splitlines()
