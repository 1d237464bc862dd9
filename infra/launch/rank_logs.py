"""What ranks print, kept in the store: piece by piece while they run, and its end as one text when their node ends."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from data_contracts.errors import TrainwrightError
from infra.launch import ranks
from infra.launch.child import log_tail
from infra.store import Store, layout

EVERY_S = 30.0
PIECE_BYTES = 2**14
END_BYTES = 2**20


class RankLogs:
    """Keeps the logs of one node's ranks.

    Args:
        place: training, generation and number of the node.
        scratch: folder in which the ranks' logs grow.
    """

    def __init__(self, store: Store, place: tuple[str, int, int], scratch: Path) -> None:
        self._store, self._place, self._scratch = store, place, scratch
        self._pieces: Counter[int] = Counter()
        self._read: Counter[int] = Counter()
        self._next = time.monotonic() + EVERY_S

    def add(self, numbers: Iterable[int]) -> None:
        """Store what was printed since, if it is time; of much, the newest PIECE_BYTES. Raises StorageUnavailable."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        for rank in numbers:
            log = ranks.log_file(self._scratch, rank)
            size = log.stat().st_size if log.exists() else 0
            if size == self._read[rank]:
                continue
            with log.open("rb") as stream:
                stream.seek(max(self._read[rank], size - PIECE_BYTES))
                piece = stream.read(PIECE_BYTES)
            # There already: ours, whose answer was lost.
            with contextlib.suppress(FileExistsError):
                self._store.create(layout.rank_log_piece(*self._place, rank, self._pieces[rank]), piece)
            self._pieces[rank] += 1
            self._read[rank] = size

    def end(self, numbers: Iterable[int]) -> None:
        """Store the end of each log; one that cannot be stored is left out."""
        for rank in numbers:
            log = ranks.log_file(self._scratch, rank)
            if log.exists():
                with contextlib.suppress(TrainwrightError, FileExistsError):
                    self._store.create(layout.rank_log(*self._place, rank), log_tail(log, END_BYTES).encode())


def kept_log(store: Store, training: str, generation: int, node: int, rank: int) -> str | None:
    """The end of a rank's log, or what was kept of it so far; None if nothing was."""
    place = (training, generation, node)
    try:
        return store.read(layout.rank_log(*place, rank)).decode(errors="replace")
    except FileNotFoundError:
        pass
    pieces: list[bytes] = []
    with contextlib.suppress(FileNotFoundError):
        while True:
            pieces.append(store.read(layout.rank_log_piece(*place, rank, len(pieces))))
    return b"".join(pieces).decode(errors="replace") if pieces else None
