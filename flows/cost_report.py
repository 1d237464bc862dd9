"""The flow that reports what the last calendar month cost; its deployment is `cost-report/POOL`, once a month."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from prefect import flow
from prefect.states import Completed, Failed, State

from data_contracts.errors import TrainwrightError
from flows.commands.reports import write_page
from infra.orchestrator.artifacts import as_text, stage_artifact
from infra.orchestrator.flow_runs import begin_flow_run_logs
from tasks.costs.months import keep_months, month_before, month_costs, month_named
from tasks.pages.cost_page import cost_page, cost_rows
from tasks.run.run import known_store_list

log = logging.getLogger("trainwright")


@flow(name="cost-report", flow_run_name="cost-report", retries=0)
def cost_report(store: str | None = None, month: str | None = None) -> State:
    """Keep the figures of past months in the stores, and write the page of one.

    Args:
        store: store to count; default: those that were used from this machine.
        month: such as 2026-10; default: the last that is over.
    """
    begin_flow_run_logs()
    now = datetime.now(UTC)
    asked = month_before(now) if month is None else month_named(month)
    found, away = [], []
    for one in known_store_list(store):
        try:
            keep_months(one, now)
            found.append(month_costs(one, asked, now))
        except TrainwrightError as error:
            away.append(f"{one.uri}: {error.message}")
    path = write_page(cost_page(found).encode(), None, f"cost-{asked.name}")
    rows = [" | ".join(map(as_text, row)) for row in cost_rows(found)]
    lines = ["pipeline | runs | node-hours | cost", "--- | ---: | ---: | ---:", *rows]
    table = "\n".join(f"| {line} |" for line in lines)
    stage_artifact(f"cost-{asked.name}", f"# Cost of {asked.name}\n\n{table}\n", f"What {asked.name} cost")
    sentence = f"{path} shows what {asked.name} cost."
    return Failed(message=" ".join([sentence, *away])) if away else Completed(message=sentence)
