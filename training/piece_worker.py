"""The child process that does one piece of work which `training.cluster` handed over, on whatever machine it is.

Run as `python -m training.piece_worker REQUEST ANSWER` by `infra.launch.child`.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.errors import Interrupted, UsageError
from infra.launch.child import child_main
from training.cluster import piece_file

POLL_S = 0.5


def main(request: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Do the piece that a request names by `folder` and `piece`; its result lies beside it, whole or not at all."""
    folder = Path(request["folder"])
    threading.Thread(target=_end_with, args=(folder,), daemon=True).start()
    # One thread each: what the cluster starts at once is what runs at once.
    pa.set_cpu_count(1)
    do_piece(folder, request["piece"])
    return {}


def do_piece(folder: Path, number: int) -> None:
    """Do a piece; UsageError if it is not there."""
    piece = piece_file(folder, number, "piece")
    if not piece.exists():
        raise UsageError(
            f"shards.runner.scratch: this worker does not see {piece}.",
            remedy="Name a folder that every worker of the cluster shares with the machine that runs the pipeline.",
        )
    work, items = pickle.loads(piece.read_bytes())
    # A piece may be done twice at once, when a worker was taken for lost: either result will do.
    draft = folder / f"{uuid.uuid4().hex}.draft"
    draft.write_bytes(pickle.dumps([work(item) for item in items]))
    draft.replace(piece_file(folder, number, "result"))


def _end_with(folder: Path) -> None:
    """End this process when the folder is gone: whoever asked for the piece was stopped, and nobody else tells."""
    while folder.exists():
        time.sleep(POLL_S)
    os._exit(Interrupted.exit_code)


if __name__ == "__main__":
    child_main(main)
