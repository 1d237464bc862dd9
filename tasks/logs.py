"""What the ranks of a run's training printed, as their nodes kept it; read, never moved."""

from __future__ import annotations

from dataclasses import dataclass

from data_contracts.errors import UsageError
from infra.launch.rank_logs import kept_log
from infra.launch.roster import Seat, roster
from infra.store import Store
from tasks.checkpoints import training_of
from tasks.run import Run


@dataclass(frozen=True)
class RankLog:
    """A rank of a generation and the end of its log, or what was kept of it so far; None where nothing was."""

    seat: Seat
    text: str | None


def logs_of(run: Run, rank: int | None) -> tuple[str, list[RankLog]]:
    """The run's training and the logs of its newest generation that has any: of one rank, or of all.

    UsageError if the run has not begun to train, or has no such rank.
    """
    training = training_of(run)
    seats = [] if training is None else roster(run.store, training)
    if training is None or not seats:
        raise UsageError(
            f"The run {run.run_id} has not begun to train.", remedy=f"Go on with `trainwright resume {run.run_id}`."
        )
    wanted = [seat for seat in seats if rank in (None, seat.rank)]
    if not wanted:
        raise UsageError(f"{training} has no rank {rank}; it has 0 to {max(seat.rank or 0 for seat in seats)}.")
    newest_first = dict.fromkeys(seat.generation for seat in wanted)
    told = [
        [RankLog(seat, _kept(run.store, training, seat)) for seat in wanted if seat.generation == generation]
        for generation in newest_first
    ]
    return training, next((one for one in told if any(rank_log.text is not None for rank_log in one)), told[0])


def _kept(store: Store, training: str, seat: Seat) -> str | None:
    return None if seat.rank is None else kept_log(store, training, seat.generation, seat.node, seat.rank)
