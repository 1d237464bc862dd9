"""The flow that looks whether data has arrived, and starts one run for it; its deployment is `sensor/NAME`."""

from __future__ import annotations

import functools
from pathlib import Path

from prefect import flow
from prefect.states import Completed, Failed, State

from data_contracts.errors import TrainwrightError
from data_contracts.load import load_spec
from flows.flow_runs import nothing_found, overrides
from infra.orchestrator.deployments import start_once
from infra.orchestrator.flow_runs import begin_flow_run_logs
from tasks.run.run import open_spec_store
from tasks.schedules import sensor_of


@flow(name="sensor", flow_run_name="sensor", retries=0)
def sensor(spec: str, deployment: str, set: str = "", store: str | None = None) -> State:
    """Look once whether files of `data.source` are new or changed; if they are complete, start one run.

    Args:
        spec: path of the spec, from the working directory.
        deployment: `retrain/NAME`, which is started.
        set: overrides of the spec, separated by spaces.
        store: store to use instead of the spec's; the cursor is there.
    """
    begin_flow_run_logs()
    path = Path(spec).resolve()
    try:
        loaded = load_spec(path, overrides(set))
        watched = sensor_of(loaded, path.parent, open_spec_store(loaded, path.parent, store))
        look = watched.look(functools.partial(start_once, deployment))
    except TrainwrightError as error:
        return Failed(message=str(error))
    if look.what == "nothing":
        return nothing_found(look.sentence)
    return Completed(name=look.what.title(), message=look.sentence)
