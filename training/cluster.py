"""Pieces of work for other machines, handed over in a folder that all share; whoever started this process sends them.

The user's code runs in child processes only, and those know no orchestrator. So a piece is written to the folder,
asked for by a report, done by `training.piece_worker` in a child process somewhere, and answered in the folder.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from data_contracts.errors import from_json

POLL_S = 0.02

A = TypeVar("A")
B = TypeVar("B")
Report = Callable[[dict[str, Any]], None]


class Cluster:
    """Machines that share a folder with this one.

    Args:
        folder: made by the caller for this work alone, so that what is unpickled from it is our own.
        at_once: how many pieces are handed over before the first one's result is waited for.
        report: told `{"piece", "work"}`, number and kind of a piece that is to be done. Its `outcome` file, `{}` or
            `{"error"}`, is written by whoever had it done, after its `result` file.
    """

    def __init__(self, folder: Path, at_once: int, report: Report) -> None:
        self.folder, self.at_once, self._report = folder, max(2, at_once), report
        self._pieces = 0

    def submit(self, work: Callable[[A], B], items: Sequence[A]) -> Future[list[B]]:
        """Ask for one piece of work: `work` of each of some items; pickled."""
        piece, self._pieces = self._pieces, self._pieces + 1
        piece_file(self.folder, piece, "piece").write_bytes(pickle.dumps((work, items)))
        self._report({"piece": piece, "work": getattr(work, "func", work).__name__.strip("_")})
        return _Asked(self.folder, piece)


class _Asked(Future[Any]):
    """The answer to a piece, once."""

    def __init__(self, folder: Path, piece: int) -> None:
        super().__init__()
        self._folder, self._piece = folder, piece

    def result(self, timeout: float | None = None) -> Any:
        """What the piece's work returned; the error that it ended with. Whoever had it done watches over the time."""
        outcome = piece_file(self._folder, self._piece, "outcome")
        while not outcome.exists():
            time.sleep(POLL_S)
        told = json.loads(outcome.read_text())
        if "error" in told:
            raise from_json(told["error"])
        answer = piece_file(self._folder, self._piece, "result")
        found = pickle.loads(answer.read_bytes())
        for path in (answer, outcome, piece_file(self._folder, self._piece, "piece")):
            path.unlink()
        return found


def piece_file(folder: Path, piece: int, what: str) -> Path:
    """Where a piece of work, its result and its outcome lie."""
    return folder / f"{piece}.{what}"
