"""The child process that does one task handed over by `infra.cluster_tasks`, on any machine.

Run as `python -m infra.cluster_task_worker REQUEST ANSWER` by `infra.child`.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path

import pyarrow as pa

from data_contracts.errors import Interrupted, UsageError
from data_contracts.messages.raw_data import CLUSTER_TASK, ClusterTaskDone, ClusterTaskRequest
from infra.cluster_tasks import task_file
from infra.files import replace_bytes
from infra.processes.child_main import Report, child_main

POLL_S = 0.5


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
        time.sleep(POLL_S)
    os._exit(Interrupted.exit_code)


if __name__ == "__main__":
    child_main(CLUSTER_TASK, main)
