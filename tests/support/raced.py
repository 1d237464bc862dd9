"""A store's backend in memory, and a backend on which another writer comes first or an answer is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from data_contracts.errors import StorageUnavailable
from infra.store.backend import Stale, Stored


class Memory:
    """The backend of a store in memory: what a registry needs of it (see `infra.store.backend.Backend`)."""

    uri, is_local = "memory", False

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self.count = 0

    def _put(self, path: str, data: bytes) -> str:
        self.count += 1
        self.files[path] = data, str(self.count)
        return str(self.count)

    def create(self, path: str, data: bytes) -> str:
        if path in self.files:
            raise FileExistsError(path)
        return self._put(path, data)

    def replace(self, path: str, data: bytes, tag: str) -> str:
        if self.files.get(path, (b"", ""))[1] != tag:
            raise Stale(path)
        return self._put(path, data)

    def read(self, path: str) -> tuple[bytes, str]:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def digest(self, path: str, copy: Any = None, most: float = 0) -> tuple[int, str]:
        data = self.read(path)[0]
        return len(data), blake3(data).hexdigest()

    def delete(self, path: str) -> None:
        self.files.pop(path, None)

    def exists(self, path: str) -> bool:
        return path in self.files

    def names(self, folder: str, starting: str = "") -> list[str]:
        return sorted({path.partition("/")[0] for path in self.walk(folder) if path.startswith(starting)})

    def walk(self, folder: str, *, links: bool = False) -> list[str]:
        return sorted(path.removeprefix(f"{folder}/") for path in self.files if path.startswith(f"{folder}/"))

    def stored(self, folder: str) -> list[Stored]:
        return [Stored(f"{folder}/{name}", len(self.files[f"{folder}/{name}"][0]), 0.0) for name in self.walk(folder)]

    def now_s(self) -> float:
        return time.time()


class Raced:
    """A backend on which something may happen before one pointer is moved, or after; `race` is armed for one move."""

    def __init__(self, inner: Any, path: str) -> None:
        self._inner, self._path = inner, path
        self.race: tuple[str, Callable[[], None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes) -> str:
        return self._moved(path, lambda: self._inner.create(path, data), FileExistsError(path))

    def replace(self, path: str, data: bytes, tag: str) -> str:
        return self._moved(path, lambda: self._inner.replace(path, data, tag), Stale(path))

    def _moved(self, path: str, move: Callable[[], str], lost: Exception) -> str:
        if path != self._path or self.race is None:
            return move()
        (when, other), self.race = self.race, None
        if when == "before":
            other()
            return move()
        if when == "never":
            raise StorageUnavailable("The request was lost.")
        tag = move()
        if when == "overtaken":  # what S3 says where another's write hides the nonce of ours
            other()
            raise lost
        if when == "unheard":
            raise StorageUnavailable("The answer was lost.")
        return tag
