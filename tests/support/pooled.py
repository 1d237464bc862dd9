"""Conducts trainings of fake ranks on a work pool; as a program, and as a flow that can be deployed and cancelled.

`waiting` is a flow that trains nothing.

`python -m tests.support.pooled STORE FAKE OPTIONS` prints each progress as a JSON line and exits as the CLI would.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.context import FlowRunContext
from prefect.states import State

from data_contracts.errors import TrainwrightError
from data_contracts.run_report import RunReport
from flows.flow_runs import as_state
from infra.gang.members import Progress
from infra.gang.membership import Placement
from infra.orchestrator.flow_runs import cancellable
from infra.orchestrator.gang import PoolLauncher, launch_secret
from infra.store import open_store
from tests.support.conducting import TRAINING, run
from tests.support.processes import foreground
from tests.support.runs import make_run


@flow
def pooled(store: str, fake: dict[str, Any], options: dict[str, Any]) -> None:
    """Train on the pool that `options` names; what became of it is the last line of `said` in their `folder`."""
    folder = Path(options.pop("folder"))

    def say(value: dict[str, Any]) -> None:
        line = json.dumps(value) + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        with (folder / "said").open("a") as said:
            said.write(line)

    def progress(now: Progress) -> None:
        say(asdict(now))

    opened = open_store(store, options.pop("storage_options"))
    fake = {"trace": str(folder / "trace"), **fake}
    placement = Placement(
        section="train", pool=options.pop("pool"), tags=("test",), labels={"team": "tests"}, timeout_s=3.0
    )
    gang = PoolLauncher(opened, TRAINING, placement)
    try:
        with cancellable():
            outcome = run(
                opened,
                fake,
                on_progress=progress,
                launcher=gang,
                secret=launch_secret(),
                **options,
            )
    except TrainwrightError as error:
        say(error.to_json())
        raise
    say({"step": outcome.checkpoint.step, "generations": outcome.generations})


@flow
def waiting(folder: str, failed: dict[str, Any], promoted: dict[str, Any]) -> State:
    """End as `failed` says once `folder` has `go`; executed again, end as `promoted` says."""
    run = make_run()
    context = FlowRunContext.get()
    if context.flow_run.run_count > 1:
        return as_state(run, RunReport.from_json(promoted))
    while not Path(folder, "go").exists():
        time.sleep(0.05)
    try:
        return as_state(run, RunReport.from_json(failed))
    finally:
        Path(folder, "gone").touch()


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
