"""The flow that makes the page of the day; its deployment is `day-page/POOL`, each hour."""

from __future__ import annotations

from prefect import flow
from prefect.states import Completed, Failed, State

from flows.commands.reports import write_page
from infra.orchestrator.artifacts import as_code, as_text, stage_artifact
from infra.orchestrator.events import announce_burn, announce_full
from infra.orchestrator.flow_runs import begin_flow_run_logs
from tasks.pages.day_page import day_page as page_of
from tasks.pages.day_page import day_rows
from tasks.queries.day import Day, day_of
from tasks.run.run import known_store_list
from tasks.slo import read_objectives


@flow(name="day-page", flow_run_name="day-page", retries=0)
def day_page(store: str | None = None, objectives: str | None = None) -> State:
    """Write the page of the last 24 hours, and keep what needs a person as an artifact.

    Args:
        store: store to look at; default: those that were used from this machine.
        objectives: file of objectives on this machine; default: those that Trainwright ships.
    """
    begin_flow_run_logs()
    day = day_of(known_store_list(store), read_objectives(objectives))
    _announce(day)
    path = write_page(page_of(day).encode(), None, "day")
    title, counted, rows = day_rows(day)
    lines = [f"| {as_text(kind)} | {as_text(what)} | {as_code(command)} |" for kind, what, command in rows]
    table = ["", "| kind | what | command |", "| --- | --- | --- |", *lines] if rows else []
    # Without pictures: Prefect keeps each hour's artifact.
    stage_artifact("day", "\n".join([f"# {title}", "", counted, *table, ""]), title)
    sentence = f"{path} shows the day: {title}."
    away = [one.uri for one in day.stores if one.is_away]
    return Failed(message=f"{sentence} Not read: {', '.join(away)}.") if away else Completed(message=sentence)


def _announce(day: Day) -> None:
    """Tell Prefect what `notify` may tell people of the stores: each alert, and each disk that is nearly full."""
    date = f"{day.now:%Y-%m-%d}"
    for store in day.stores:
        pipelines = sorted({run.pipeline for run in store.runs})
        if store.is_nearly_full and store.used is not None:
            announce_full(store.uri, store.used, date, pipelines)
        for result in store.results:
            counted = {
                run.pipeline for run in store.runs if result.objective.is_for(run.pipeline, run.tags, run.trigger)
            }
            for alert in result.alerts[:1]:  # the gravest
                announce_burn(store.uri, result.name, alert.severity, alert.sentence, date, sorted(counted))
