"""Store what ranks print: piece by piece while they run, and the end of each log as one text when their node ends.

For a withheld log, the store keeps a sentence that says where the log is.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from data_contracts.errors import TrainwrightError
from infra.child import log_tail
from infra.gang.rank_files import RankFiles
from infra.store import Store, layout

EVERY_S = 30.0
PIECE_BYTES = 2**14
END_BYTES = 2**20


class RankLogs:
    """Stores the logs of one node's ranks.

    Args:
        place: training, generation and number of the node.
    """

    def __init__(self, store: Store, place: tuple[str, int, int]) -> None:
        self._store, self._place = store, place
        self._pieces: Counter[int] = Counter()
        self._read: Counter[int] = Counter()
        self._next = time.monotonic() + EVERY_S

    def add(self, ranks: Iterable[RankFiles]) -> None:
        """If it is time, store what was printed since; at most the newest PIECE_BYTES. Raises StorageUnavailable."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        for files in ranks:
            rank, log = files.rank, files.log
            size = log.stat().st_size if log.exists() else 0
            if size == self._read[rank] or (log.is_symlink() and self._pieces[rank]):
                continue
            piece = _piece(log, max(self._read[rank], size - PIECE_BYTES))
            self._store.create_once(layout.rank_log(*self._place, rank, self._pieces[rank]), piece)
            self._pieces[rank] += 1
            self._read[rank] = size

    def end(self, ranks: Iterable[RankFiles]) -> None:
        """Store the end of each log; a log that cannot be stored is left out."""
        for files in ranks:
            if files.log.exists():
                path = layout.rank_log(*self._place, files.rank)
                with contextlib.suppress(TrainwrightError):
                    self._store.create_once(path, log_tail(files.log, END_BYTES).encode())


def _piece(log: Path, start: int) -> bytes:
    if log.is_symlink():
        return log_tail(log).encode()
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read(PIECE_BYTES)


def kept_log(store: Store, training: str, generation: int, node: int, rank: int) -> str | None:
    """The end of a rank's log, or the pieces stored so far; None if nothing was stored."""
    place = (training, generation, node)
    try:
        return store.read(layout.rank_log(*place, rank)).decode(errors="replace")
    except FileNotFoundError:
        pass
    pieces: list[bytes] = []
    with contextlib.suppress(FileNotFoundError):
        while True:
            pieces.append(store.read(layout.rank_log(*place, rank, len(pieces))))
    return b"".join(pieces).decode(errors="replace") if pieces else None
