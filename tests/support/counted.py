"""A store's backend in a folder that is not on this machine, as far as the store can tell, and counts requests."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from infra.store import Store
from infra.store.backend import Backend


class Away:
    """Passes all on to a folder's backend.

    Attributes:
        alone: requests that no other was made beside; together: those of threads that make several at once.
    """

    is_local = False

    def __init__(self, inner: Backend) -> None:
        self._inner, self._counting = inner, threading.Lock()
        self.alone = self.together = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def ask(*arguments: Any, **more: Any) -> Any:
            with self._counting:
                if threading.current_thread() is threading.main_thread():
                    self.alone += 1
                else:
                    self.together += 1
            return found(*arguments, **more)

        return ask

    def local(self, uri: str) -> Path | None:
        return None


def away(store: Store) -> tuple[Store, Away]:
    """A folder's store as one that is not on this machine, and its backend."""
    backend = Away(store._backend)
    return Store(backend, {}, schema=3), backend
