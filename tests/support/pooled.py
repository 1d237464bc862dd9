"""Conducts trainings of fake ranks on a work pool; as a program, and as a flow that can be deployed and cancelled.

`python -m tests.support.pooled STORE FAKE OPTIONS` prints each progress as a JSON line and exits as the CLI would.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import flow

from data_contracts.errors import TrainwrightError
from infra.gang.conductor.rank_reports import Progress
from infra.orchestrator.cancelling import cancellable
from infra.orchestrator.gang import PoolGang, WorkPool
from infra.store import open_store
from tests.support.conducting import TRAINING, run
from tests.support.foreground import foreground


@flow
def pooled(store: str, fake: dict[str, Any], options: dict[str, Any]) -> None:
    """Train on the pool that `options` names; what became of it is the last line of `said` beside the store."""

    def say(value: dict[str, Any]) -> None:
        line = json.dumps(value) + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        with Path(store).with_name("said").open("a") as said:
            said.write(line)

    def progress(now: Progress) -> None:
        say(asdict(now))

    opened = open_store(store)
    gang = PoolGang(opened, TRAINING, WorkPool(options.pop("pool"), "train", ("test",), {"team": "tests"}, 3.0))
    try:
        with cancellable():
            outcome = run(opened, fake, on_progress=progress, start=gang.start, room=gang.room, **options)
    except TrainwrightError as error:
        say(error.to_json())
        raise
    say({"step": outcome.checkpoint.step, "generations": outcome.generations})


def main() -> None:
    foreground()
    logging.disable(logging.ERROR)
    store, fake, options = sys.argv[1:]
    try:
        pooled(store, json.loads(fake), json.loads(options))
    except TrainwrightError as error:
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
