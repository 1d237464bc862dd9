"""Hands over pieces of work to other machines, in a folder that all share; the parent of this process sends them.

The user's code runs in child processes only, which know no orchestrator. So this process writes a piece to the folder
and requests it by a report. `training.shard.piece_worker` does it in a child process on some machine, and writes the
result to the folder.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from data_contracts.errors import from_json
from data_contracts.messages.raw_data import PieceOrder, PieceOutcome

POLL_S = 0.02

A = TypeVar("A")
B = TypeVar("B")
Order = Callable[[PieceOrder], None]


class Cluster:
    """Machines that share a folder with this one.

    Args:
        folder: made by the caller for this work alone, so that we unpickle only our own files from it.
        at_once: how many pieces are handed over before the first result is waited for.
        order: called for each piece to do. Its receiver writes the piece's `outcome` file (a `PieceOutcome`) after the
            `result` file.
    """

    def __init__(self, folder: Path, at_once: int, order: Order) -> None:
        self.folder, self.at_once, self._order = folder, max(2, at_once), order
        self._pieces = 0

    def submit(self, work: Callable[[A], B], items: Sequence[A]) -> Piece:
        """Request one piece of work: `work` of each of some items; pickled."""
        piece, self._pieces = self._pieces, self._pieces + 1
        piece_file(self.folder, piece, "piece").write_bytes(pickle.dumps((work, items)))
        self._order(PieceOrder(piece=piece, work=getattr(work, "func", work).__name__.strip("_")))
        return Piece(self.folder, piece)


class Piece:
    """A piece of work that was requested."""

    def __init__(self, folder: Path, piece: int) -> None:
        self._folder, self._piece = folder, piece

    def cancel(self) -> None:
        """Do nothing: the process that sends the pieces ends them, together with the process that requested them."""

    def result(self) -> Any:
        """Wait for the result of the piece's work, which can be read once; raises the error that the work ended with.

        The process that sends the pieces enforces the time limit.
        """
        outcome = piece_file(self._folder, self._piece, "outcome")
        while not outcome.exists():
            time.sleep(POLL_S)
        error = PieceOutcome.from_json(json.loads(outcome.read_text())).error
        if error is not None:
            raise from_json(error)
        answer = piece_file(self._folder, self._piece, "result")
        found = pickle.loads(answer.read_bytes())
        for path in (answer, outcome, piece_file(self._folder, self._piece, "piece")):
            path.unlink()
        return found


def piece_file(folder: Path, piece: int, what: str) -> Path:
    """Path of a piece's work, result or outcome."""
    return folder / f"{piece}.{what}"
