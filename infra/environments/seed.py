"""Puts packages of this installation into an environment instead of downloading them again.

A node has torch already, in the build for its devices. Files become hard links, so an environment takes little space
and a second to make. They become symbolic links where hard links are impossible: on another file system, such as the
scratch of a pod, or to files of another user, such as those of an image. What was compiled stays compiled.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import os
from collections.abc import Iterable, Iterator
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath

from infra.environments.installed import dist_infos, packages_folder

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


def seed(names: Iterable[str], target: Path) -> set[str]:
    """Link packages of this installation into the folder of packages `target`; returns the names of those linked.

    A package without a list of its files, and one that is run from its sources, is left out.
    """
    source = packages_folder()
    infos, linked, made = dist_infos(source), set[str](), set[Path]()
    for name in sorted(set(names) & infos.keys()):
        files = list(files_of(infos[name]))
        if not files or (infos[name] / "direct_url.json").exists():
            continue
        for file in files:
            _link(source / file, target / file, made)
        linked.add(name)
    return linked


def files_of(dist_info: Path) -> Iterator[PurePosixPath]:
    """The files of a package below the folder of packages; programs and data outside of it are left out."""
    with contextlib.suppress(FileNotFoundError), (dist_info / "RECORD").open(newline="") as record:
        for row in csv.reader(record):
            file = PurePosixPath(row[0]) if row else PurePosixPath("..")
            if not file.is_absolute() and ".." not in file.parts and file.suffix != ".pyc":
                yield file


def _link(source: Path, target: Path, made: set[Path]) -> None:
    if target.parent not in made:
        target.parent.mkdir(parents=True, exist_ok=True)
        made.add(target.parent)
    _link_file(source, target)
    if source.suffix == ".py":
        # Its time of change, which the compiled file records, is the same for every link of the source.
        compiled = Path(cache_from_source(str(source)))
        cached = target.parent / "__pycache__"
        if cached not in made:
            cached.mkdir(exist_ok=True)
            made.add(cached)
        with contextlib.suppress(FileNotFoundError):
            _link_file(compiled, cached / compiled.name)


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        pass  # two packages list one file, such as a package's root that they share
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.symlink(source, target)
