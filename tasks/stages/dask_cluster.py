"""A stage's work on a Dask cluster: a worker does each task of it in a child process.

Imported only when `shards.runner` or `contract.runner` names a cluster. The stage's own child process cuts and merges
the work as usual (`infra.cluster_tasks` is its side of this); this module sends the tasks that it requests, and
returns their outcomes.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import distributed

from data_contracts.errors import ErrorJson, NodeLost, StorageUnavailable, TrainwrightError, UsageError
from data_contracts.messages.children import A, Child
from data_contracts.messages.raw_data import (
    CLUSTER_TASK,
    OWN_CONTRACT,
    ClusterTaskOrder,
    ClusterTaskOutcome,
    ClusterTaskRequest,
    ContractRequest,
    ShardRequest,
    SharedFolder,
)
from data_contracts.pipeline_spec import DaskRunner
from infra import code_bundle
from infra import scratch as scratches
from infra.child import Handlers, run_child
from infra.code_bundle import differences, installed
from infra.files import replace_json
from infra.processes.environment import IdleLimit
from infra.records.nodes import keep_lists, note_lists
from infra.settings import CLUSTER, check_approved, is_private_place
from tasks.run.run import Run
from tasks.stages.stage import ClusterStage

# A scheduler on a busy machine may take this long to answer.
CONNECT_S = 30.0
# A cluster without workers may be starting some; the wait is limited.
NO_WORKERS_S = 30.0
LOOK_S = 2.0
# More tasks than threads, so that a worker finds the next one when a task is done.
TASKS_PER_THREAD = 2
SAME = "Start the workers from the same checkout and lock."

R = TypeVar("R", ShardRequest, ContractRequest)


def run_on_dask(
    run: Run,
    stage: ClusterStage,
    runner: DaskRunner,
    child: Child[R, A],
    request: R,
    *,
    limit: IdleLimit | None = None,
    on_report: Handlers | None = None,
) -> A:
    """A stage's child's answer to a request, with the tasks that the child orders done by a cluster.

    Args:
        limit, on_report: as for `run_child`.

    Raises:
        UsageError: the scratch folder or a worker's installation cannot be used.
        StorageUnavailable: the scheduler does not answer, or was lost.
        NodeLost: there are no workers, or a task ended several of them.
    """
    with _shared_folder(stage, runner.scratch) as folder, _connected(stage, runner.dask) as client:
        tasks = _ClusterTasks(stage, runner.dask, client, folder, run.withholds)
        shared = SharedFolder(folder=str(folder), at_once=TASKS_PER_THREAD * tasks.ready())
        project = None if request.project is None else _unpacked(run, folder)
        request = request.model_copy(update={"cluster": shared, "project": None if project is None else str(project)})

        def send(order: ClusterTaskOrder) -> None:
            tasks.send(order.work, _task_request(stage, request, folder, order.number, run.memory_share))

        try:
            run.note_environments(*filter(None, [project]))
            return run_child(
                child,
                request,
                project=project if child is OWN_CONTRACT else None,
                withhold=run.withholds,
                limit=limit,
                memory_share=run.memory_share,
                on_report={ClusterTaskOrder: send, **(on_report or {})},
                on_poll=tasks.poll,
            )
        finally:
            note_lists(run.store, run.run_id, folder)


def _unpacked(run: Run, folder: Path) -> Path:
    """The user's code, unpacked where every machine finds it."""
    resolved = run.resolved
    return code_bundle.unpack(run.store, resolved.code, folder / "project", code_digest=resolved.code_digest)


def _task_request(
    stage: ClusterStage, request: ShardRequest | ContractRequest, folder: Path, number: int, memory_share: float
) -> ClusterTaskRequest:
    # The store and the sources decide which credentials the environment of the task's child keeps.
    return ClusterTaskRequest(
        folder=str(folder),
        number=number,
        store=request.store if isinstance(request, ShardRequest) else None,
        sources=request.sources,
        project=request.project,
        field=stage.field,
        memory_share=memory_share,
    )


def do_cluster_task(request: dict[str, object], versions: dict[str, str], withhold: bool) -> ErrorJson | None:
    """Do one task, a `ClusterTaskRequest` as JSON, on a worker's machine; returns its error as JSON."""
    try:
        if unlike := differences(versions):
            raise UsageError(f"{request['field']}.dask: a worker has {', '.join(unlike)}.", remedy=SAME)
        task_request = ClusterTaskRequest.from_json(request)
        keep_lists(task_request.folder, task_request.project)
        run_child(CLUSTER_TASK, task_request, withhold=withhold, memory_share=task_request.memory_share)
    except TrainwrightError as error:
        return error.to_json()
    return None


class _ClusterTasks:
    """The tasks that the cluster is working on."""

    def __init__(
        self, stage: ClusterStage, address: str, client: distributed.Client, folder: Path, withhold: bool = False
    ) -> None:
        self._stage, self._address, self._client = stage, address, client
        self._folder, self._withhold = folder, withhold
        self._sent: dict[int, distributed.Future] = {}
        self._looked = self._alive = time.monotonic()

    def ready(self) -> int:
        """The number of threads in the cluster; UsageError if a worker cannot do our work."""
        client = self._client
        try:
            client.wait_for_workers(1, timeout=NO_WORKERS_S)
        except TimeoutError:
            raise self._no_workers() from None
        for worker, problem in client.run(_checker(installed(), str(self._folder)), on_error="return").items():
            if problem:
                raise UsageError(
                    f"{self._stage.field}.dask: the worker {worker} {problem}.",
                    remedy=f"{SAME} They and this machine must share the scratch folder.",
                )
        return sum(client.nthreads().values())

    def send(self, work: str, request: ClusterTaskRequest) -> None:
        """Send a task of this kind."""
        self._sent[request.number] = self._client.submit(
            do_cluster_task,
            request.to_json(),
            installed(),
            self._withhold,
            # Dask's dashboard groups tasks by what stands before the number.
            key=f"{work}-{uuid.uuid4()}",
            pure=False,
        )

    def poll(self) -> None:
        """Return the finished outcomes, and check that there are workers for the rest."""
        for number, future in list(self._sent.items()):
            if future.status != "pending":
                replace_json(self._folder / f"{number}.outcome", self._outcome(number, future).to_json())
                del self._sent[number]
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        client = self._client
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

    def _outcome(self, number: int, future: distributed.Future) -> ClusterTaskOutcome:
        if future.status in ("cancelled", "lost"):
            raise self._lost()
        which, cluster = f"{number} of the {self._stage.name} stage", f"the Dask cluster at {self._address}"
        error = future.exception()
        if isinstance(error, distributed.scheduler.KilledWorker):
            raise NodeLost(
                f"Piece {which} ended {error.allowed_failures + 1} workers of {cluster}, one after another.",
                remedy=f"Look at their logs; if memory ran out, {self._stage.if_memory_ran_out}. Then resume.",
            )
        if error is not None:
            raise UsageError(
                f"A worker of {cluster} could not begin piece {which} ({type(error).__name__}: {error}).", remedy=SAME
            )
        return ClusterTaskOutcome(error=future.result())

    def _lost(self) -> StorageUnavailable:
        return StorageUnavailable(f"{self._stage.field}.dask: the Dask scheduler at {self._address} was lost.")

    def _no_workers(self) -> NodeLost:
        return NodeLost(
            f"{self._stage.field}.dask: the Dask cluster at {self._address} had no worker for {NO_WORKERS_S:g} s.",
            remedy=f"Start some (`dask worker {self._address}`), then resume.",
        )


def _checker(versions: dict[str, str], folder: str) -> Callable[[], str]:
    """A check that runs on a worker: "" or why the worker cannot do our work. Nested, so that it travels by value."""

    def check() -> str:
        try:
            from infra.code_bundle import differences

            unlike = differences(versions)
        except ImportError as error:
            return f"does not have Trainwright or what it needs ({error})"
        if unlike:
            return f"has {', '.join(unlike)}"
        probe = f"{folder}/{uuid.uuid4().hex}"
        try:
            with open(probe, "x"):
                pass
        except OSError as error:
            return f"cannot write in its scratch folder ({error})"
        Path(probe).unlink()
        return ""

    return check


@contextlib.contextmanager
def _shared_folder(stage: ClusterStage, scratch: str) -> Iterator[Path]:
    """A folder of this run's in `scratch`; what it holds is unpickled, so nobody else may put another in its place."""
    if Path(scratch).is_dir() and not is_private_place(Path(scratch)):
        raise UsageError(
            f"{stage.field}.scratch: other users may rename folders in {scratch}, or in a folder above it.",
            remedy="Let root or this user own each of these folders, and set the sticky bit (chmod +t) where others "
            "may write.",
        )
    try:
        made = scratches.make(stage.name, root=Path(scratch))
    except OSError as error:
        raise UsageError(
            f"{stage.field}.scratch: no folder can be made in {scratch} ({error.strerror}).",
            remedy="Name an existing folder that this user may write to and every worker of the cluster shares.",
        ) from error
    with made:
        try:
            yield made.path
        finally:
            # Tasks that are still running end themselves. Nobody who sees the folder can take this name first.
            made.rename(f"{made.path.name}.{uuid.uuid4().hex}")


@contextlib.contextmanager
def _connected(stage: ClusterStage, address: str) -> Iterator[distributed.Client]:
    # What a scheduler sends is unpickled here, so it can run any code in the process of the run.
    check_approved({CLUSTER: f"{stage.field}.dask"}, address)
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise StorageUnavailable(
            f"{stage.field}.dask: no Dask scheduler answers at {address} within {CONNECT_S:g} s.",
            remedy="Start it, or correct the address; then resume.",
        ) from error
    with client:
        yield client
