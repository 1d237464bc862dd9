"""Background saving: a thread writes, hashes, syncs, seals and uploads while training continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

# How long a rank waits for the slowest rank's part to be stored. torchrun notices a rank that died, not this code.
PATIENCE = timedelta(hours=2)


class BackgroundWork:
    """Runs one piece of work in the background at a time.

    Attributes:
        group: the ranks, for collectives of this work alone; None for a single rank.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def meet(self, world_size: int) -> None:
        """Make the group. Collective; call it once the ranks have found each other."""
        # gloo on a GPU too: the exchanged data is on the host, and must not interleave with training's collectives.
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE) if world_size > 1 else None

    @property
    def failed(self) -> bool:
        """Whether the work has failed; `wait` raises the cause."""
        return self._error is not None

    def start(self, work: Callable[[], None]) -> None:
        """Start work after the previous work is done; raises the cause if that failed."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the work is done; raises the cause if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def settle(self, most_s: float) -> None:
        """Wait at most `most_s` seconds for the work and ignore its outcome: the rank ends with another error."""
        if self._thread is not None:
            self._thread.join(most_s)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again in the training thread
            self._error = error
