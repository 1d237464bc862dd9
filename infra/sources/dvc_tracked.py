"""Files that DVC tracks, at a Git revision: read through DVC's Python API from its cache, else from its remote."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.quoting import text_of
from infra.settings import library_folders
from infra.sources.places import SourceEntry, SourceMissing, fixed_folders, has_wildcards, one_star
from infra.store.s3 import translate


class DvcTracked:
    """The DVC repository that holds `root`, at the commit that `rev` names.

    Raises:
        UsageError: there is no such repository or revision, or the libraries cannot read the repository.
    """

    def __init__(self, root: Path, rev: str) -> None:
        os.environ.setdefault("DVC_NO_ANALYTICS", "1")
        os.environ.update(library_folders())
        # Files of AWS's that `.dvc/config` names may name programs; DVC takes none if these variables are set.
        os.environ.setdefault("AWS_CONFIG_FILE", os.path.expanduser("~/.aws/config"))
        os.environ.setdefault("AWS_SHARED_CREDENTIALS_FILE", os.path.expanduser("~/.aws/credentials"))
        from dvc.api import DVCFileSystem
        from dvc.exceptions import NotDvcRepoError
        from dvc.fs import GitFileSystem
        from dvc.repo import Repo
        from dvc.scm import SCM
        from scmrepo.exceptions import RevError

        try:
            with _readable(root, NotDvcRepoError, RevError), Repo(Repo.find_root(str(root))) as repository:
                self.repository = Path(repository.root_dir)
                self.rev: str | None = repository.scm.resolve_rev(rev)
                # pygit2 reads it again in a thread, and waits for that thread forever if it cannot.
                repository.scm.pygit2.repo.index.read()
                # Remotes and their credentials are today's, also from config.local, which is in no commit.
                config = {name: dict(repository.config[name]) for name in ("core", "remote", "cache")}
        except NotDvcRepoError as error:
            raise UsageError(
                f"rev {rev} is given, but {root} is not in a DVC repository.",
                remedy="Leave rev out, run `dvc init` there, or move the spec below the folder of `dvc init --subdir`.",
            ) from error
        except RevError as error:
            raise UsageError(
                f"rev {rev} is not a revision of the Git repository at {root}.", remedy="Name a commit, tag or branch."
            ) from error
        self.root = root
        with _readable(root):
            # Given an address, DVC looks for the repository at the root of Git's only, not in a folder of it.
            scm = SCM(str(self.repository))
            top = os.path.join("/", self.repository.relative_to(scm.root_dir))
            committed = GitFileSystem(scm=scm, rev=self.rev)
            self._filesystem = DVCFileSystem(repo=Repo(top, committed, scm=scm, config=config, uninitialized=True))

    def find(self, pattern: str) -> list[SourceEntry]:
        """See `Place`; UsageError also if the repository cannot be read."""
        with self._lists_of_folders(pattern):
            return self._find(pattern)

    def _find(self, pattern: str) -> list[SourceEntry]:
        below = self._below(pattern)
        if self._filesystem.exists(below):
            return [self._entry_of(below)]
        return [self._entry_of(name) for name in (self._matching(pattern) if has_wildcards(pattern) else ())]

    def open(self, uri: str) -> BinaryIO:
        """See `Place`."""
        with self._lists_of_folders(uri):
            there = self._filesystem.exists(uri)
        if not there:
            raise FileNotFoundError(uri)
        try:
            with translate(uri, "DVC's remote"):
                return self._filesystem.open(uri, "rb")
        except FileNotFoundError as error:
            if not getattr(self._tracked(uri), "hash_info", None):
                raise SourceMissing(
                    f"{uri} is an output of dvc.yaml that no dvc.lock has at {self.rev}.",
                    remedy="Run `dvc repro` and commit dvc.lock, or name a revision that has it.",
                ) from error
            raise self._missing(uri) from error

    @contextlib.contextmanager
    def _lists_of_folders(self, uri: str) -> Iterator[None]:
        """As `_readable`; SourceMissing if the list of a tracked folder's files, which DVC keeps as a file, is gone."""
        from dvc_data.index import DataIndexDirError

        try:
            with _readable(self.repository, DataIndexDirError):
                yield
        except DataIndexDirError as error:
            raise self._missing(f"The list of the files in the folder of {uri}") from error

    def _missing(self, what: str) -> SourceMissing:
        return SourceMissing(
            f"{what} at {self.rev} is neither in DVC's cache nor in a remote.",
            remedy="Run `dvc pull` here, or `dvc push` where it was added.",
        )

    def folder(self, path: str) -> str | None:
        """See `Place`."""
        below = self._below(path)
        with self._lists_of_folders(path):
            return below if self._filesystem.isdir(below) else None

    def names(self, folder: str) -> list[str]:
        """See `Place`."""
        below = self._below(folder)
        with self._lists_of_folders(folder):
            names = self._filesystem.find(below) if self._filesystem.isdir(below) else []
        return sorted(os.path.join(folder, os.path.relpath(name, below)) for name in map(os.path.normpath, names))

    def _below(self, path: str) -> str:
        """A path from the spec's folder as one from the repository's; UsageError if it lies outside."""
        below = os.path.relpath(os.path.abspath(self.root / path), self.repository)
        if below.startswith(".."):
            raise UsageError(f"{path} lies outside the DVC repository {self.repository}.", remedy="Leave rev out.")
        return below

    def _matching(self, pattern: str) -> list[str]:
        """Files that match a glob. The folders before the first wildcard are taken literally.

        DVC's own glob finds nothing if the first folder has a wildcard in its name, such as `run[1]`.
        """
        from fsspec.utils import glob_translate

        fixed = fixed_folders(pattern)
        rest = one_star(pattern.removeprefix(fixed).lstrip("/"))
        base = os.path.relpath(os.path.abspath(self.root / fixed), self.repository)
        if not self._filesystem.isdir(base):
            return []
        depth = None if "**" in rest else rest.count("/") + 1
        files = map(os.path.normpath, self._filesystem.find(base, maxdepth=depth))
        pattern_of_names = re.compile(glob_translate(rest))
        return sorted(name for name in files if pattern_of_names.match(os.path.relpath(name, base)))

    def _entry_of(self, name: str) -> SourceEntry:
        hash_info = getattr(self._tracked(name), "hash_info", None)
        # Old repositories hash texts with changed line ends (`md5-dos2unix`); that is not a digest of the bytes.
        md5 = hash_info.value if hash_info is not None and hash_info.name == "md5" else None
        size = self._filesystem.info(name)["size"]
        if size is None:  # for a file in a tracked folder, DVC keeps only the digest
            with self.open(name) as opened:
                size = opened.seek(0, os.SEEK_END)
        return SourceEntry(name, size, f"md5:{md5}", settled=md5 is not None, md5=md5)

    def _tracked(self, name: str) -> Any:
        """What DVC tracks of a file; None if only Git tracks it."""
        return self._filesystem.info(name).get("dvc_info", {}).get("entry")


@contextlib.contextmanager
def _readable(folder: Path, *told_apart: type[Exception]) -> Iterator[None]:
    """UsageError where DVC and its Git libraries cannot read a repository; others of ours and `told_apart` pass.

    They raise classes of four packages, and ValueError or OSError for some damage: no list of classes is complete.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (TrainwrightError, MemoryError, *told_apart)):
            raise
        raise UsageError(
            f"DVC cannot read the repository at {folder} ({type(error).__name__}: {text_of(error)}).",
            remedy="Check it with `git fsck` and `dvc status`; DVC knows few extensions of .git/config.",
        ) from error
