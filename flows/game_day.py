"""Carries out a game day: one training after another in a store of its own, first without a fault, then with each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from data_contracts.errors import Cancelled, TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import GameTraining
from data_contracts.pipeline_spec import PipelineSpec
from flows import game_training
from flows.commands.guard import log
from infra.store import Store
from infra.weights import first_difference
from tasks.gameday import (
    ConductedTraining,
    Fault,
    Outcome,
    TimeUsed,
    judged,
    keeps_weights,
    not_injected,
    read_timeline,
)


@dataclass(frozen=True)
class GameDay:
    """What a game day is asked for.

    Attributes:
        spec_path: of the YAML file; overrides: with those of the game day itself.
        until: when it ends, on the monotonic clock.
    """

    spec_path: str
    overrides: Sequence[str]
    window: str | None
    spec: PipelineSpec
    until: float


def carry_out(day: GameDay, store: Store, faults: Sequence[Fault]) -> list[Outcome]:
    """Train without a fault, then once with each; TrainwrightError if the training without one fails."""
    log.info("game day: a training without a fault")
    try:
        baseline = _training(day, store, None).run()
    except TimeUsed:
        return [not_injected(fault, "the time was used up") for fault in faults]
    outcomes = []
    for fault in faults:
        if time.monotonic() > day.until:
            outcomes.append(not_injected(fault, "the time was used up"))
            continue
        log.info("game day: %s (%s)", fault.name, fault.what)
        outcomes.append(_struck(day, store, fault, baseline))
        log.info("game day: %s: %s", fault.name, outcomes[-1].verdict)
    return outcomes


def _struck(day: GameDay, store: Store, fault: Fault, baseline: Checkpoint) -> Outcome:
    """The outcome of a training with a fault."""
    training, failure, checkpoint = _training(day, store, fault), "", None
    try:
        checkpoint = training.run()
    except TimeUsed:
        failure = "the time was used up before the training ended"
    except Cancelled:
        raise
    except TrainwrightError as error:
        failure = f"{error.cause}: {error.message}"
    same = None
    if checkpoint is not None and keeps_weights(day.spec):
        same = first_difference((store, store), (baseline.ref, checkpoint.ref)) is None
    times = read_timeline(store, training.uri, fault.causes) if training.uri else None
    if times is None:
        return not_injected(fault, failure)
    train = day.spec.train
    limit_s = fault.limit_s(train.hang_timeout_s)
    return judged(fault, times, failure=failure, limit_s=limit_s, nodes=train.nodes, same_weights=same)


def _training(day: GameDay, store: Store, fault: Fault | None) -> ConductedTraining:
    train = day.spec.train
    wanted = GameTraining(
        spec=day.spec_path,
        overrides=list(day.overrides),
        window=day.window,
        store=store.uri,
        fault=None if fault is None else fault.planned(train.hang_timeout_s),
        fresh=True,
    )
    return ConductedTraining(game_training.__name__, wanted, store, train.pool, day.until)
