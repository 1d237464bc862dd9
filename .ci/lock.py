"""Adds hashes to a lock: `python .ci/lock.py < VERSIONS > LOCK`, for lines `name==version`.

The hashes are those that the package index states for a version's files (a local file is read), so nothing is
downloaded. pip is configured to say where to look. Only files that an image can install count: source, Linux wheels.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from pip._internal.models.link import Link
from piptools.repositories import PyPIRepository

_ELSEWHERE = re.compile(r"-(macosx|win32|win_|ios|android|emscripten|pyodide|wasm|musllinux)[^-]*\.whl$")


def locked(lines: Iterable[str], repository: PyPIRepository) -> list[str]:
    """The lines with hashes, sorted; ValueError names a version of which the index has no file."""
    found = []
    for line in sorted(one.partition("#")[0].strip() for one in lines):
        if line:
            name, _, version = line.partition("==")
            candidates = repository.find_all_candidates(name)
            hashes = {
                _digest(one.link)
                for one in candidates
                if str(one.version) == version and not _ELSEWHERE.search(one.link.filename)
            }
            if not hashes:
                raise ValueError(f"{line}: the package index has no file of it")
            found.append(" \\\n".join([line, *(f"    --hash=sha256:{one}" for one in sorted(hashes))]))
    return found


def _digest(link: Link) -> str:
    if link.hash_name == "sha256":
        return str(link.hash)
    if not link.is_file:
        raise ValueError(f"{link.filename}: the package index states no SHA-256")
    return hashlib.sha256(Path(link.file_path).read_bytes()).hexdigest()


if __name__ == "__main__":
    with (index := PyPIRepository([], cache_dir=str(Path(sys.prefix) / "cache"))).allow_all_wheels():
        print("\n".join(locked(sys.stdin, index)))
