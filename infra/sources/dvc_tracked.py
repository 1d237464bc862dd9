"""Files that DVC tracks, at a Git revision: read through DVC's Python API from its cache, else from its remote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

from data_contracts.errors import UsageError
from infra.sources.places import WILDCARDS, Found


class Tracked:
    """The DVC repository that holds `root`, at the commit that `rev` names.

    Raises:
        UsageError: there is no such repository or revision.
    """

    def __init__(self, root: Path, rev: str) -> None:
        os.environ.setdefault("DVC_NO_ANALYTICS", "1")
        from dvc.api import DVCFileSystem
        from dvc.exceptions import NotDvcRepoError
        from dvc.repo import Repo
        from scmrepo.exceptions import RevError, SCMError

        try:
            with Repo(Repo.find_root(str(root))) as repository:
                self.repository = Path(repository.root_dir)
                self.rev: str | None = repository.scm.resolve_rev(rev)
                # Remotes and their credentials are those of today, and of config.local, which no commit has.
                config = {name: dict(repository.config[name]) for name in ("core", "remote", "cache")}
        except NotDvcRepoError as error:
            raise UsageError(
                f"rev {rev} is given, but {root} is not in a DVC repository.",
                remedy="Leave rev out, or run `dvc init` there.",
            ) from error
        except (RevError, SCMError) as error:
            raise UsageError(
                f"rev {rev} is no revision of the Git repository at {root}.", remedy="Name a commit, tag or branch."
            ) from error
        self.root = root
        self._filesystem = DVCFileSystem(url=str(self.repository), rev=self.rev, config=config)

    def find(self, pattern: str) -> list[Found]:
        """See `Place`."""
        below = os.path.relpath(os.path.abspath(self.root / pattern), self.repository)
        if below.startswith(".."):
            raise UsageError(f"{pattern} lies outside the DVC repository {self.repository}.", remedy="Leave rev out.")
        if self._filesystem.isdir(below):
            raise UsageError(f"{pattern} is a folder.", remedy=f"Name its files with a glob, such as {pattern}/*.csv.")
        if self._filesystem.exists(below):
            names = [below]
        elif any(sign in below for sign in WILDCARDS):
            names = sorted(name for name in self._filesystem.glob(below) if not self._filesystem.isdir(name))
        else:
            names = []
        return [self._found(name) for name in names]

    def open(self, uri: str) -> BinaryIO:
        """See `Place`."""
        if not self._filesystem.exists(uri):
            raise FileNotFoundError(uri)
        try:
            return self._filesystem.open(uri, "rb")
        except FileNotFoundError as error:
            raise UsageError(
                f"{uri} at {self.rev} is neither in DVC's cache nor in a remote.",
                remedy="Run `dvc pull` here, or `dvc push` where the file was added.",
            ) from error

    def _found(self, name: str) -> Found:
        facts: dict[str, Any] = self._filesystem.info(name)
        entry = facts.get("dvc_info", {}).get("entry")
        told = getattr(entry, "hash_info", None)
        # Old repositories hash texts with their line ends changed (`md5-dos2unix`); that is no digest of the bytes.
        md5 = told.value if told is not None and told.name == "md5" else None
        size = facts["size"]
        if size is None:  # of a file in a tracked folder DVC keeps the digest only
            with self.open(name) as opened:
                size = opened.seek(0, os.SEEK_END)
        return Found(name, size, f"md5:{md5}", settled=md5 is not None, md5=md5)
