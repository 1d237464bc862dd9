"""The logs of a run's ranks, as their nodes kept them; they are read, never moved."""

from __future__ import annotations

from dataclasses import dataclass

from data_contracts.errors import UsageError
from infra.gang.ledger import Seat, roster
from infra.gang.ranks import kept_log
from infra.store import Store
from tasks.run.run import Run
from tasks.stages.trainings import begun_training, not_begun


@dataclass(frozen=True)
class RankLog:
    """A rank of a generation and the end of its log, or the part kept so far; None where no log was kept."""

    seat: Seat
    text: str | None


def logs_of(run: Run, rank: int | None) -> tuple[str, list[RankLog]]:
    """The run's training and the logs of its newest generation that has any: of one rank, or of all.

    UsageError if the run has not begun to train, or has no such rank.
    """
    training = begun_training(run)
    seats = roster(run.store, training)
    if not seats:
        raise not_begun(run)
    wanted = [seat for seat in seats if rank in (None, seat.rank)]
    if not wanted:
        raise UsageError(f"{training} has no rank {rank}; it has 0 to {max(seat.rank or 0 for seat in seats)}.")
    newest_first = dict.fromkeys(seat.generation for seat in wanted)
    generations_logs = [
        [RankLog(seat, _kept(run.store, training, seat)) for seat in wanted if seat.generation == generation]
        for generation in newest_first
    ]
    return training, next(
        (one for one in generations_logs if any(rank_log.text is not None for rank_log in one)), generations_logs[0]
    )


def _kept(store: Store, training: str, seat: Seat) -> str | None:
    return None if seat.rank is None else kept_log(store, training, seat.generation, seat.node, seat.rank)
