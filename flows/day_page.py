"""The flow that makes the page of the day; its deployment is `day-page/POOL`, each hour."""

from __future__ import annotations

from prefect import flow
from prefect.states import Completed, Failed, State

from flows.commands.report import write_page
from infra.orchestrator.artifacts import as_code, as_text, stage_artifact
from tasks.pages.day_page import day_page as page_of
from tasks.pages.day_page import day_rows
from tasks.queries.day import day_of
from tasks.run.run import known_store_list
from tasks.slo.results import read_objectives


@flow(name="day-page", flow_run_name="day-page", retries=0)
def day_page(store: str | None = None, objectives: str | None = None) -> State:
    """Write the page of the last 24 hours, and keep what needs a person as an artifact.

    Args:
        store: store to look at; default: those that were used from this machine.
        objectives: file of objectives on this machine; default: those that Trainwright ships.
    """
    day = day_of(known_store_list(store), read_objectives(objectives))
    path = write_page(page_of(day).encode(), None, "day")
    title, counted, rows = day_rows(day)
    lines = [f"| {as_text(kind)} | {as_text(what)} | {as_code(command)} |" for kind, what, command in rows]
    table = ["", "| kind | what | command |", "| --- | --- | --- |", *lines] if rows else []
    # Without pictures: Prefect keeps each hour's artifact.
    stage_artifact("day", "\n".join([f"# {title}", "", counted, *table, ""]), title)
    sentence = f"{path} shows the day: {title}."
    away = [one.uri for one in day.stores if one.is_away]
    return Failed(message=f"{sentence} Not read: {', '.join(away)}.") if away else Completed(message=sentence)
