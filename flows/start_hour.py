"""A flow run that a schedule or an event starts waits for the best hour, in Prefect: no process and no worker waits."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from prefect.exceptions import Abort
from prefect.states import Scheduled

from data_contracts.errors import TrainwrightError
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.contract import length_of
from data_contracts.price_book import best_start, cost_at
from flows.flow_runs import overrides, started_by
from flows.turns import BY_ITSELF
from infra import prices
from infra.orchestrator.api import asking
from infra.orchestrator.flow_runs import deployed_flow_run
from infra.store import layout
from tasks.run.run import open_spec_store

log = logging.getLogger("trainwright")


def wait_for_hour(spec: str, set: str, store: str | None, key: str | None) -> None:
    """Schedule this flow run again if `schedule.within` has a better hour; returns if it is to start now.

    What is wrong with the spec or the price book is left to the flow itself, which reports it. A server that does not
    answer lets the run start now.

    Raises:
        Abort: Prefect executes the flow run again, at that hour.
    """
    started, flow_run = started_by(key), deployed_flow_run()
    if started["trigger"] not in BY_ITSELF or flow_run is None:
        return
    try:
        path = Path(spec).resolve()
        loaded = load_spec(path, overrides(set))
        if loaded.schedule.within is None:
            return
        # A run that has begun, and whose flow run is executed again, waits for nothing.
        if open_spec_store(loaded, path.parent, store).exists(layout.trigger(started["key"])):
            return
        start, why = chosen_start(loaded, started["scheduled"], datetime.now(UTC))
    except TrainwrightError:
        return
    log.info("schedule.within: %s", why)
    if start is None:
        return
    try:
        with asking(retries=2) as client:
            client.set_flow_run_state(flow_run.id, Scheduled(scheduled_time=start, message=why))
    except Exception as error:
        log.warning("Prefect could not schedule this run for %s, so it starts now: %s", start, error)
        return
    raise Abort(why)


def chosen_start(spec: PipelineSpec, scheduled: datetime | None, now: datetime) -> tuple[datetime | None, str]:
    """When a run is to start, by the price book, and why; None: now."""
    within = spec.schedule.within
    assert within is not None, "only such specs have a choice"
    book = prices.prices()
    pool = book.pools.get(spec.train.pool or "")
    region = "" if pool is None else pool.region
    start = best_start(book.hours, region, now, (scheduled or now) + length_of(within))
    price, carbon = cost_at(book.hours, region, start)
    intensity = "" if carbon == float("inf") else f" and {carbon:g} g of CO2 per kWh"
    figures = f"{price:.0%} of the usual price{intensity}"
    if start == now:
        return None, f"the run starts now: within {within} of its time, the price book has no better hour ({figures})"
    return (
        start,
        f"the run waits until {start:%Y-%m-%d %H:%M} UTC, the best hour within {within} of its time ({figures})",
    )
