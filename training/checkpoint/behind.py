"""Saving behind the steps: writing, hashing, syncing, sealing and uploading run in a thread while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

# A rank may wait this long for the slowest one's part to be stored; one that died is noticed by torchrun, not here.
PATIENCE = timedelta(hours=2)


class Behind:
    """One piece of work behind the steps at a time.

    Attributes:
        group: the ranks, for collectives of this work alone; None for a single rank.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def meet(self, world_size: int) -> None:
        """Collective, once the ranks have found each other: make the group."""
        # Of gloo on a GPU too: what is exchanged lies on the host, and may not come between training's collectives.
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE) if world_size > 1 else None

    @property
    def failed(self) -> bool:
        """Whether the work has failed; `wait` raises why."""
        return self._error is not None

    def start(self, work: Callable[[], None]) -> None:
        """Begin with work, once the one before it is done; raises why that failed."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the work is done; raises why it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def settle(self, most_s: float) -> None:
        """Wait for the work, but not for ever and whatever becomes of it: for who ends because of another error."""
        if self._thread is not None:
            self._thread.join(most_s)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again in the thread that trains
            self._error = error
