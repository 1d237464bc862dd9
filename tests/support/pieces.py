"""Other machines that do pieces of work at once, in this process."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import PieceOrder, PieceOutcome
from infra.piece_worker import do_piece
from infra.pieces import Cluster


class Elsewhere:
    """Does what is ordered at once, in this process; counts the pieces by their kind of work."""

    def __init__(self, folder: Path, at_once: int = 4, field: str = "shards.runner") -> None:
        folder.mkdir()
        self.field = field
        self.cluster, self.ordered = Cluster(folder, at_once, self.done), Counter[str]()

    def done(self, order: PieceOrder) -> None:
        """Do a piece; its outcome lies in the folder."""
        self.ordered[order.work] += 1
        outcome = PieceOutcome()
        try:
            do_piece(self.cluster.folder, order.piece, self.field)
        except UsageError as error:
            outcome = PieceOutcome(error=error.to_json())
        (self.cluster.folder / f"{order.piece}.outcome").write_text(json.dumps(outcome.to_json()))
