"""Run one job on a node elsewhere: the remote counterpart of `run_child`, as a gang with a single rank.

`run_remote_job` conducts the job with the lease, the slots, the generations and the budgets of a training. Run as a
program, this module is the rank: it supervises the child and answers; torchrun starts it like any other rank.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from data_contracts.errors import Interrupted, Preempted, StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Dataset, Ref
from data_contracts.messages.children import RemoteJob
from data_contracts.messages.gang import Launch, RankAnswer, RankLayout, RankReport, Retries
from infra import stopping
from infra.child import run_module
from infra.code_bundle import unpack
from infra.gang.conductor import WAIT_S, GangRequest, Generation, admit, keeping_lease, without_drained, write_launch
from infra.gang.hub import Hub
from infra.gang.ledger import Ledger, generations
from infra.gang.members import Progress
from infra.gang.rank_files import SCRATCH, STORE, RankFiles, read_launch, stop_file, store_options
from infra.gang.recovery import raise_why_over, restore_budgets
from infra.gang.supervisor import note_environments
from infra.processes.environment import IdleLimit
from infra.processes.processes import terminable
from infra.processes.this_process import COUNTERS
from infra.records.handoffs import local_dataset
from infra.records.nodes import import_places
from infra.store import Store, layout, open_store
from infra.store.lease import LeaseKeeper, patiently
from infra.store.records import parsed


def lay_out(store: Store, needs: Iterable[Ref | Dataset], code: Callable[[Ref], Path]) -> dict[str, str]:
    """Lay out bundles of code and datasets on this machine; returns their folders by id, for `LaidOut.at`.

    Args:
        code: unpacks a bundle of code.
    """
    paths: dict[str, str] = {}
    for thing in needs:
        ref = thing if isinstance(thing, Ref) else thing.ref
        if ref.id not in paths:
            paths[ref.id] = str(code(thing) if isinstance(thing, Ref) else local_dataset(store, thing))
    return paths


@dataclass(frozen=True, kw_only=True)
class RemoteJobRequest(GangRequest):
    """A job for one node.

    Attributes:
        uri: the job's directory in the store.
        job: the module that does it, and its request.
        on_progress: called with each progress report.
        on_spent: called when a node is released, with the seconds since its launch.
        withhold: see `infra.child.run_module`.
        hang_s: how long the job may make no progress; see `infra.processes.environment`.
        nodes, devices: of the gang; `entry`: the module of its ranks; `layout`: its `train`, for an entry that reads
            how the ranks share the work.
    """

    uri: str
    job: RemoteJob
    on_progress: Callable[[Progress], None]
    on_spent: Callable[[float], None]
    withhold: bool = False
    hang_s: float = 45.0
    nodes: int = 1
    devices: int = 1
    entry: str = __name__
    layout: RankLayout = field(default_factory=RankLayout)

    def launch(self) -> Launch:
        """The launch of each generation, without its number and token."""
        size = {"nodes": self.nodes, "min_nodes": self.nodes, "devices": self.devices}
        return Launch(
            training=self.uri,
            entry=self.entry,
            # A rank of another entry imports the user's code itself, so it is started with the packages of that code.
            code=None if self.entry == __name__ else self.job.code[0],
            train=dict(self.layout),
            **size,
            hang_s=self.hang_s,
            remote_job=self.job.to_json(),
            withhold=self.withhold,
        )


def run_remote_job(store: Store, request: RemoteJobRequest) -> dict[str, object]:
    """Run the job on one node and return the module's answer as JSON.

    Raises the class of error that the module answered with, or the cause whose retry budget is spent.
    """
    launch = request.launch()
    path = layout.lease(request.uri)
    with terminable(), keeping_lease(store, path, request.holder, request, launch) as keeper:
        while (token := keeper.token(WAIT_S)) is None:
            stopping.check()
            if keeper.is_waiting:
                sentence = "another process does this already; waiting for its result"
                request.on_progress(Progress(-1, "waiting", sentence=sentence))
        ledger = patiently(lambda: Ledger(store, request.uri, token, request.secret))
        return _generations(store, request, ledger, keeper)


def _generations(store: Store, request: RemoteJobRequest, ledger: Ledger, keeper: LeaseKeeper) -> dict[str, object]:
    """Launch generations until one has answered. Raises an error that a retry would repeat or cannot afford.

    The ledger has no checkpoints here. It keeps what earlier processes have used of the retry budgets.
    """
    used = Counter(ledger.retries.used)
    while True:
        number = 1 + max(patiently(lambda: generations(store, request.uri)), default=-1)
        admit(request, request.nodes, keeper, partial(_say_waiting, request, number))
        request.budget_guard.admit(request.nodes)
        with contextlib.closing(Hub(request.launcher.address)) as hub:
            base = without_drained(store, request.launch(), here=False)
            while (launch := write_launch(store, base.for_generation(number, ledger.token), hub)) is None:
                number += 1
            generation = Generation(
                request.launcher(store, launch, hub),
                commit=lambda _: None,
                check=keeper.check,
                on_progress=request.on_progress,
                over=request.budget_guard.over,
            )
            request.budget_guard.launched(partial(generation.activity.usage, request.is_local))
            try:
                answer = generation.run(request.rollcall_timeout_s).plan
            except TrainwrightError as error:
                keeper.confirm()
                raise_why_over(request.budget_guard, error)
                key = error.retry_key or ""
                used[key] += 1
                # Only interruptions come from outside. Other failures, such as running out of memory, would happen
                # again.
                if not isinstance(error, Interrupted) or used[key] > getattr(request.retry, key, 0):
                    restore_budgets(ledger, error)
                    raise spent(error, getattr(request.retry, key, 0)) from error
                patiently(lambda: ledger.record_recovery([], Retries(used=dict(used))))
                sentence = f"tried again ({error.cause}): {error.message}"
                request.on_progress(Progress(number, "ended", sentence=sentence))
            else:
                restore_budgets(ledger)
                return answer
            finally:
                request.on_spent(generation.node_seconds)
                request.on_usage(generation.activity.usage(request.is_local))
                request.budget_guard.released()


def spent(error: TrainwrightError, budget: int) -> TrainwrightError:
    """The error that ends a remote job; of a cause with a retry budget, it says that the budget is spent."""
    if isinstance(error, Interrupted) and error.retry_key and budget:
        error.message = f"{error.message.rstrip('.')}, and retry.{error.retry_key} = {budget} is spent."
    return error


def _say_waiting(request: RemoteJobRequest, generation: int, sentence: str) -> None:
    request.on_progress(Progress(generation, "waiting", sentence=sentence))


def idle_limit(store: Store, hang_s: float) -> IdleLimit:
    """How long a job may make no progress, while the store can be reached."""

    def is_away() -> bool:
        try:
            store.exists(layout.STORE)
        except StorageUnavailable:
            return True
        return False

    return IdleLimit(hang_s, excused=is_away)


def report_of(rank: int, phase: Literal["starting", "training", "done"], polls: int) -> RankReport:
    """A job's report: each poll of its child is a step, so a rank that no longer polls is found like any other.

    A child without progress is found by the rank itself; see `idle_limit`.
    """
    return RankReport(rank=rank, phase=phase, step=polls, steps=polls, used=COUNTERS.total())


def main() -> int:
    """Run as the rank: prepare the code and datasets that the request names, run the child, and write its answer."""
    scratch, rank = Path(os.environ[SCRATCH]), int(os.environ["RANK"])
    files, polls = RankFiles(scratch, rank), 0

    def report(phase: Literal["starting", "training", "done"]) -> None:
        files.write_report(report_of(rank, phase, polls))

    def mind() -> None:
        nonlocal polls
        polls += 1
        if stop_file(scratch).exists():
            raise Preempted("The node was asked to stop.")
        report("training")

    try:
        report("starting")
        launch = read_launch()
        job = parsed("remote job of the launch", RemoteJob.from_json, launch.remote_job)
        store = open_store(os.environ[STORE], store_options(), create=False)
        paths = lay_out(store, job.needs, lambda ref: unpack(store, ref, scratch / f"code-{ref.id[:16]}"))
        project = Path(paths[job.code[0].id])
        note_environments(store, launch, *import_places(project))
        value = run_module(
            job.module, job.request_at(paths), project=project, limit=idle_limit(store, launch.hang_s), on_poll=mind
        )
        report("done")
        files.write_answer(RankAnswer(plan=value))
        return 0
    except TrainwrightError as error:
        files.write_error(error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
