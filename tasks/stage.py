"""What every stage has in common: its name, its clock, its record in the store and its line in the log."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from data_contracts.errors import Cancelled, ContractRejected, GateNotMet, TrainwrightError
from data_contracts.handoffs import Ref, StageResult, StageStatus
from infra import stopping
from infra.store import layout
from tasks.run import Run

log = logging.getLogger("trainwright")

STAGES = ("validate", "shard", "train", "verify", "evaluate", "promote")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Done(Generic[T]):
    """A stage's answer: its hand-off, whether it ran or what it reused, and one sentence about it."""

    handoff: T
    status: StageStatus
    sentence: str
    ref: Ref | None = None
    reused_from: str | None = None


def stage(
    name: str,
) -> Callable[[Callable[Concatenate[Run, P], Done[T]]], Callable[Concatenate[Run, P], T]]:
    """Make a function a stage: it is timed, logged and recorded in `run.results` and under `runs/<run_id>/stages/`."""

    def wrap(work: Callable[Concatenate[Run, P], Done[T]]) -> Callable[Concatenate[Run, P], T]:
        @functools.wraps(work)
        def run_stage(run: Run, *args: P.args, **kwargs: P.kwargs) -> T:
            started = time.monotonic()

            def ended(status: StageStatus, sentence: str, **more: Any) -> StageResult:
                seconds = round(time.monotonic() - started, 3)
                result = StageResult(name=name, status=status, seconds=seconds, sentence=sentence, **more)
                run.results[name] = result
                # What was raised is told once, by whoever ends because of it.
                told = "" if sys.exception() else f"  {sentence}"
                log.info("%-9s %-9s %6.1f s%s", name, status, seconds, told)
                return result

            try:
                stopping.check()
                done = work(run, *args, **kwargs)
            except ContractRejected as error:
                ended("rejected", error.message)
                raise
            except Cancelled as error:
                ended("cancelled", error.message)
                raise
            except GateNotMet as error:
                _record(run, ended("ran", error.message))
                raise
            except TrainwrightError as error:
                ended("failed", error.message)
                raise
            except Exception as error:
                ended("failed", f"{type(error).__name__}: {error}")
                raise
            except BaseException as signal:  # Ctrl-C, or Prefect's TerminationSignal in a worker's flow run
                ended("cancelled", "stopped; no process is left")
                raise Cancelled(f"The run was stopped during {name}.") from signal
            identity = done.ref.id if done.ref else None
            _record(run, ended(done.status, done.sentence, id=identity, reused_from=done.reused_from))
            return done.handoff

        return cast("Callable[Concatenate[Run, P], T]", run_stage)

    return wrap


def _record(run: Run, result: StageResult) -> None:
    """Keep how the stage ended; the first record of a run's stage stands, a resumed run's later one does not."""
    if not run.recorded:
        return
    with contextlib.suppress(FileExistsError):
        run.store.create_json(layout.stage(run.run_id, result.name), result.to_json())
