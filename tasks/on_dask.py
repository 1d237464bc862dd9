"""The work of the shard stage on a Dask cluster: each piece is a Prefect task there, done in a child process.

Imported only when `shards.runner` names a cluster. The stage's own child process cuts the work and merges it as ever
(`training.cluster` is its side of this); here the pieces that it asks for are sent, and their outcomes handed back.
"""

from __future__ import annotations

import contextlib
import contextvars
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
from prefect import task
from prefect.context import FlowRunContext, TaskRunContext
from prefect.states import Failed, State
from prefect_dask import DaskTaskRunner

from data_contracts.errors import NodeLost, StorageUnavailable, UsageError
from data_contracts.spec import DaskRunner
from infra import code
from infra.installed import installed
from infra.launch.child import Progress, run_child, write_atomically
from tasks.policies import piece_policy
from tasks.run import Run

CONNECT_S = 10.0
# A cluster without workers may be starting some, but not for ever.
NO_WORKERS_S = 30.0
LOOK_S = 2.0
# So that whoever takes a piece finds another one waiting when it is done.
PIECES_PER_THREAD = 2
SAME = "Start the workers from the same checkout and lock."


def shard_on_dask(run: Run, runner: DaskRunner, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """What `training.shard_worker` answers to a request, with its work done by a cluster.

    Raises:
        UsageError: outside of a flow; the scratch folder or a worker's installation will not do.
        StorageUnavailable: the scheduler does not answer, or was lost.
        NodeLost: there are no workers, or a piece ended several of them.
    """
    if FlowRunContext.get() is None:
        raise UsageError(
            "shards.runner: a Dask cluster is used through Prefect, which this command does without.",
            remedy="Use `trainwright run`, or add `--set shards.runner=local`: the dataset is the same.",
        )
    with _shared_folder(runner.scratch) as folder, _connected(runner.dask) as dask:
        pieces = _Pieces(runner.dask, dask, folder)
        at_once = PIECES_PER_THREAD * pieces.ready()
        if request["project"] is not None:
            request = {**request, "project": str(code.unpack(run.store, run.resolved.code, folder / "project"))}

        def told(record: dict[str, Any]) -> None:
            if "piece" in record:
                pieces.send(record["work"], record["piece"])
            else:
                progress(record)

        request = {**request, "cluster": {"folder": str(folder), "at_once": at_once}}
        return run_child("training.shard_worker", request, on_progress=told, on_poll=pieces.poll)


@task(**piece_policy())
def do_piece(work: str, piece: int, folder: str, wanted: dict[str, str]) -> State | None:
    """Do one piece of work on a worker's machine.

    It travels by value, and imports what is ours when it runs: only so can it say that a worker has another
    version of us.
    """
    from data_contracts.errors import TrainwrightError, UsageError
    from infra.installed import differences
    from infra.launch.child import run_child

    try:
        if unlike := differences(wanted):
            raise UsageError(f"shards.runner.dask: a worker has {', '.join(unlike)}.", remedy=SAME)
        run_child("training.piece_worker", {"folder": folder, "piece": piece})
    except TrainwrightError as error:
        return Failed(message=error.message, data=error.to_json())
    return None


class _Pieces:
    """The pieces that are with the cluster."""

    def __init__(self, address: str, dask: DaskTaskRunner, folder: Path) -> None:
        self._address, self._dask, self._folder = address, dask, folder
        self._sent: dict[int, distributed.Future] = {}
        self._looked = self._alive = time.monotonic()
        self._context = contextvars.copy_context()
        # Prefect would send the stage's own task along with each piece, and with it all that the run holds.
        self._context.run(TaskRunContext.__var__.set, None)  # type: ignore[arg-type]

    def ready(self) -> int:
        """How many threads the cluster has; UsageError if a worker could not do our work."""
        client = self._dask.client
        try:
            client.wait_for_workers(1, timeout=NO_WORKERS_S)
        except TimeoutError:
            raise self._no_workers() from None
        for worker, problem in client.run(_checker(installed(), str(self._folder)), on_error="return").items():
            if problem:
                raise UsageError(
                    f"shards.runner.dask: the worker {worker} {problem}.",
                    remedy=f"{SAME} They and this machine must share the scratch folder.",
                )
        return sum(client.nthreads().values())

    def send(self, work: str, piece: int) -> None:
        """Have a piece done."""
        arguments = {"work": work, "piece": piece, "folder": str(self._folder), "wanted": installed()}
        self._sent[piece] = self._context.run(self._dask.submit, do_piece, arguments).wrapped_future

    def poll(self) -> None:
        """Hand back the outcomes that are there, and look whether there are workers for the rest."""
        for piece, future in list(self._sent.items()):
            if future.status != "pending":
                write_atomically(self._folder / f"{piece}.outcome", self._outcome(piece, future))
                del self._sent[piece]
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        client = self._dask.client
        if client.scheduler is None:
            raise self._lost()
        try:
            threads = client.sync(client.scheduler.ncores, callback_timeout=CONNECT_S)
        except (OSError, TimeoutError) as error:
            raise self._lost() from error
        if threads or not self._sent:
            self._alive = now
        elif now - self._alive > NO_WORKERS_S:
            raise self._no_workers()

    def _outcome(self, piece: int, future: distributed.Future) -> dict[str, Any]:
        if future.status in ("cancelled", "lost"):
            raise self._lost()
        error = future.exception()
        if isinstance(error, distributed.scheduler.KilledWorker):
            raise NodeLost(
                f"Piece {piece} of the shard stage ended {error.allowed_failures + 1} workers of the Dask cluster at "
                f"{self._address}, one after another.",
                remedy="Look at their logs; if memory ran out, set shards.memory_bytes lower or give them fewer "
                "threads. Then resume.",
            )
        if error is not None:
            raise UsageError(
                f"A worker of the Dask cluster at {self._address} could not begin piece {piece} of the shard stage "
                f"({type(error).__name__}: {error}).",
                remedy=SAME,
            )
        state: State = future.result()
        if state.is_completed():
            return {}
        told = state.result(raise_on_failure=False)
        if isinstance(told, dict):
            return {"error": told}
        raise NodeLost(f"Piece {piece} of the shard stage ended {state.name} on the Dask cluster: {state.message}.")

    def _lost(self) -> StorageUnavailable:
        return StorageUnavailable(f"shards.runner.dask: the Dask scheduler at {self._address} was lost.")

    def _no_workers(self) -> NodeLost:
        return NodeLost(
            f"shards.runner.dask: the Dask cluster at {self._address} had no worker for {NO_WORKERS_S:g} s.",
            remedy=f"Start some (`dask worker {self._address}`), then resume.",
        )


def _checker(wanted: dict[str, str], folder: str) -> Callable[[], str]:
    """What a worker says of itself: "" or why it could not do our work. Nested, so that it travels by value."""

    def check() -> str:
        try:
            from infra.installed import differences

            unlike = differences(wanted)
        except ImportError as error:
            return f"does not have Trainwright or what it needs ({error})"
        if unlike:
            return f"has {', '.join(unlike)}"
        probe = f"{folder}/{uuid.uuid4().hex}"
        try:
            with open(probe, "x"):
                pass
        except OSError as error:
            return f"cannot write in the folder of shards.runner.scratch ({error})"
        Path(probe).unlink()
        return ""

    return check


@contextlib.contextmanager
def _shared_folder(scratch: str) -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="trainwright-shards-", dir=scratch))
    except OSError as error:
        raise UsageError(
            f"shards.runner.scratch: no folder can be made in {scratch} ({error.strerror}).",
            remedy="Name one that exists, that this user may write in, and that every worker of the cluster shares.",
        ) from error
    try:
        yield folder
    finally:
        # Under another name nothing is added to it any more, and pieces that are still being done end themselves.
        gone = folder.rename(folder.with_name(f"{folder.name}.gone"))
        shutil.rmtree(gone, ignore_errors=True)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[DaskTaskRunner]:
    with DaskTaskRunner(address=address, client_kwargs={"timeout": CONNECT_S}) as dask:
        try:
            assert dask.client
        except (OSError, TimeoutError) as error:
            raise StorageUnavailable(
                f"shards.runner.dask: no Dask scheduler answers at {address} within {CONNECT_S:g} s.",
                remedy="Start it, or correct the address; then resume.",
            ) from error
        yield dask
