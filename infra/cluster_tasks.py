"""Tasks of a stage's work that other machines do: handed over in a shared folder, done there by a child process.

The user's code runs in child processes only, which know no orchestrator. So this process writes a task to the folder
and requests it by a report; its parent sends it (`tasks.stages.dask_cluster`). There, `infra.child` runs
`python -m infra.cluster_tasks REQUEST ANSWER`, which does the task and writes the result to the folder.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from data_contracts.errors import Interrupted, UsageError, from_json
from data_contracts.messages.raw_data import (
    CLUSTER_TASK,
    ClusterTaskDone,
    ClusterTaskOrder,
    ClusterTaskOutcome,
    ClusterTaskRequest,
)
from infra.files import replace_bytes
from infra.processes.child_main import Report, child_main

POLL_S = 0.02
# Far below the time after which a process without progress is taken for hung.
STILL_WAITING_S = 10.0

A = TypeVar("A")
B = TypeVar("B")
Order = Callable[[ClusterTaskOrder], None]


class Pending(Protocol):
    """Work that was requested, here or on another machine."""

    def result(self) -> Any:
        """Wait for the result of the work; raises what the work raised."""

    def cancel(self) -> object:
        """Cancel the work, if it has not begun."""


class Cluster:
    """Machines that share a folder with this one.

    Args:
        folder: made by the caller for this work alone, so that we unpickle only our own files from it.
        at_once: how many tasks are handed over before the first result is waited for.
        order: called for each task to do. Its receiver writes the task's `outcome` file (a `ClusterTaskOutcome`) after
            the `result` file.
        on_wait: called about every STILL_WAITING_S seconds while a result is waited for.
    """

    def __init__(self, folder: Path, at_once: int, order: Order, on_wait: Callable[[], None] = lambda: None) -> None:
        self.folder, self.at_once, self._order, self._on_wait = folder, max(2, at_once), order, on_wait
        self._tasks = 0

    def submit(self, work: Callable[[A], B], items: Sequence[A]) -> ClusterTask:
        """Request one task: `work` of each of some items; pickled."""
        number, self._tasks = self._tasks, self._tasks + 1
        task_file(self.folder, number, "piece").write_bytes(pickle.dumps((work, items)))
        self._order(ClusterTaskOrder(number=number, work=getattr(work, "func", work).__name__.strip("_")))
        return ClusterTask(self.folder, number, self._on_wait)

    def map(self, work: Callable[[A], B], tasks: Iterable[Sequence[A]], most: int | None = None) -> Iterator[B]:
        """`work` of each item of each task, in order, with `most` tasks pending (default `at_once`).

        Raises the first item's error first.
        """
        for results in in_order(self.submit, work, tasks, most or self.at_once):
            yield from results


class ClusterTask:
    """A task that was requested."""

    def __init__(self, folder: Path, number: int, on_wait: Callable[[], None]) -> None:
        self._folder, self._number, self._on_wait = folder, number, on_wait

    def cancel(self) -> None:
        """Do nothing: the process that sends the tasks ends them, together with the process that requested them."""

    def result(self) -> Any:
        """Wait for the result of the task's work, which can be read once; raises the error that the work ended with.

        The process that sends the tasks enforces the time limit.
        """
        outcome = task_file(self._folder, self._number, "outcome")
        noted = time.monotonic()
        while not outcome.exists():
            time.sleep(POLL_S)
            if time.monotonic() - noted > STILL_WAITING_S:
                self._on_wait()
                noted = time.monotonic()
        error = ClusterTaskOutcome.from_json(json.loads(outcome.read_text())).error
        if error is not None:
            raise from_json(error)
        answer = task_file(self._folder, self._number, "result")
        found = pickle.loads(answer.read_bytes())
        for path in (answer, outcome, task_file(self._folder, self._number, "piece")):
            path.unlink()
        return found


def in_order(
    submit: Callable[..., Pending], work: Callable[..., Any], items: Iterable[Any], most: int
) -> Iterator[Any]:
    """The results of `submit(work, item)` for each item in order, with at most `most` pending."""
    waiting: deque[Pending] = deque()
    try:
        for item in items:
            if len(waiting) == most:
                yield waiting.popleft().result()
            waiting.append(submit(work, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def task_file(folder: Path, number: int, what: str) -> Path:
    """Path of a task's work, result or outcome."""
    return folder / f"{number}.{what}"


LOOK_S = 0.5


def main(request: ClusterTaskRequest, report: Report) -> ClusterTaskDone:
    """Do the task that a request names; writes its result beside it, whole or not at all."""
    folder = Path(request.folder)
    threading.Thread(target=_end_with, args=(folder,), daemon=True).start()
    # One thread per process: the cluster already starts as many processes as should run at once.
    pa.set_cpu_count(1)
    do_cluster_task(folder, request.number, request.field)
    return ClusterTaskDone()


def do_cluster_task(folder: Path, number: int, field: str) -> None:
    """Do a task; UsageError if it does not exist, naming the spec's field that names the folder."""
    task = task_file(folder, number, "piece")
    if not task.exists():
        raise UsageError(
            f"{field}.scratch: this worker does not see {task}.",
            remedy="Name a folder that every worker of the cluster shares with the machine that runs the pipeline.",
        )
    work, items = pickle.loads(task.read_bytes())
    # A task may be done twice at once, if its worker was wrongly taken for lost: either result is valid.
    replace_bytes(task_file(folder, number, "result"), pickle.dumps([work(item) for item in items]))


def _end_with(folder: Path) -> None:
    """End this process when the folder is gone: the requester was stopped, and nothing else reports that."""
    while folder.exists():
        time.sleep(LOOK_S)
    os._exit(Interrupted.exit_code)


if __name__ == "__main__":
    child_main(CLUSTER_TASK, main)
