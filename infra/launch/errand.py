"""One piece of work on a node elsewhere: what `run_child` does here, as a gang of one rank that minds the child.

`run_errand` conducts it: lease, room, generations and budgets are those of a training; the answer is the rank's. As a
program this is that rank, started by torchrun like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.errors import Interrupted, Preempted, TrainwrightError
from data_contracts.handoffs import Dataset, Ref
from data_contracts.spec import RetrySpec
from infra import stopping
from infra.code import unpack
from infra.datasets import local_dataset
from infra.launch import ranks
from infra.launch.child import run_child, write_atomically
from infra.launch.conductor import DEFAULTS, WAIT_S
from infra.launch.generation import Generation, Progress
from infra.launch.keeper import Keeper
from infra.launch.local import Room, Start
from infra.launch.node import STORE_OPTIONS
from infra.launch.patience import patiently
from infra.launch.processes import terminable, uninterrupted
from infra.launch.roster import generations
from infra.store import Store, layout, open_store
from infra.store.lease import RENEW_EVERY_S

# What a request names by its place: where it stands in the request, and the code (Ref) or dataset that it is.
Place = tuple[Sequence[str], Ref | Dataset]


def laid_out(store: Store, request: dict[str, Any], places: Sequence[Place], code: Callable[[Ref], Path]) -> Path:
    """Fill a request's places in with paths on this machine; the first is the project, which is returned.

    Args:
        code: unpacks a bundle of code.
    """
    paths = [code(thing) if isinstance(thing, Ref) else local_dataset(store, thing) for _, thing in places]
    for (keys, _), path in zip(places, paths, strict=True):
        section = request
        for key in keys[:-1]:
            section = section[key]
        section[keys[-1]] = str(path)
    return paths[0]


def run_errand(
    store: Store,
    uri: str,
    module: str,
    request: dict[str, Any],
    places: Sequence[Place],
    *,
    holder: str,
    retry: RetrySpec,
    rollcall_timeout_s: float,
    start: Start,
    room: Room,
    on_progress: Callable[[Progress], None],
    on_spent: Callable[[float], None],
) -> dict[str, Any]:
    """What `module` answers to a request, on one node that `start` launches; everything about it lies under `uri`.

    Raises the class of error that the module answered with, or the cause whose budget is spent.

    Args:
        on_spent: told of each node that was used, once it is released: its seconds since its launch.
    """
    told = [{"keys": list(keys), _kind(thing): thing.to_json()} for keys, thing in places]
    errand = {"module": module, "request": request, "places": told}
    launch = {**DEFAULTS, "nodes": 1, "min_nodes": 1, "devices": 1, "entry": __name__, "train": {}, "errand": errand}
    renew_s = min(RENEW_EVERY_S, float(launch["lease_silence_s"]) / 4)
    keeper = Keeper(store, layout.lease(uri), holder, renew_s=renew_s)
    used: Counter[str] = Counter()
    try:
        with terminable():
            keeper.start()
            while (token := keeper.token(WAIT_S)) is None:
                stopping.check()
                on_progress(Progress(-1, "waiting", sentence="another process has this done; waiting for it"))
            while True:
                number = 1 + max(patiently(lambda: generations(store, uri)), default=-1)
                while (waits := room.take(1)) is not None:
                    stopping.check()
                    keeper.check()
                    on_progress(Progress(number, "waiting", sentence=waits))
                    time.sleep(WAIT_S)
                this = {**launch, "training": uri, "generation": number, "token": token, "resume": None}
                patiently(partial(_create, store, layout.launch(uri, number), this))
                generation = Generation(
                    store, this, start, commit=lambda _: None, check=keeper.check, on_progress=on_progress
                )
                try:
                    return generation.run(rollcall_timeout_s)["plan"]
                except TrainwrightError as error:
                    key = error.retry_key or ""
                    used[key] += 1
                    # What is not of the outside, such as memory that ran out, would be the same again.
                    if not isinstance(error, Interrupted) or used[key] > getattr(retry, key, 0):
                        raise
                    on_progress(Progress(number, "ended", sentence=f"tried again ({error.cause}): {error.message}"))
                finally:
                    on_spent(generation.node_seconds)
    finally:
        with uninterrupted():
            room.give_back()
            keeper.stop()


def _kind(thing: Ref | Dataset) -> str:
    return "code" if isinstance(thing, Ref) else "dataset"


def _create(store: Store, path: str, value: dict[str, Any]) -> None:
    # There already: written by this very call, whose answer was lost; the lease keeps others away.
    with contextlib.suppress(FileExistsError):
        store.create_json(path, value)


def main() -> int:
    """Be the rank: lay out what the request names, have the child do it, and answer."""
    scratch, rank = Path(os.environ[ranks.SCRATCH]), int(os.environ["RANK"])
    errand = json.loads(Path(os.environ["TRAINWRIGHT_LAUNCH"]).read_text())["errand"]
    polls = 0

    def report(phase: str) -> None:
        value = {"rank": rank, "phase": phase, "step": polls, "checkpoints": []}
        write_atomically(ranks.report_file(scratch, rank), value)

    def mind() -> None:
        nonlocal polls
        polls += 1
        if ranks.stop_file(scratch).exists():
            raise Preempted("The node was asked to leave.")
        report("training")

    try:
        report("starting")
        options = json.loads(os.environ.get(STORE_OPTIONS, "{}"))
        store = open_store(os.environ["TRAINWRIGHT_STORE"], options, create=False)
        places = [
            (one["keys"], Ref.model_validate(one["code"]) if "code" in one else Dataset.from_json(one["dataset"]))
            for one in errand["places"]
        ]
        request = errand["request"]
        project = laid_out(store, request, places, lambda ref: unpack(store, ref, scratch / f"code-{ref.id[:16]}"))
        value = run_child(errand["module"], request, project=project, on_poll=mind)
        report("done")
        write_atomically(ranks.done_file(scratch, rank), {"checkpoint": None, "plan": value})
        return 0
    except TrainwrightError as error:
        write_atomically(ranks.error_file(scratch, rank), error.to_json())
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
