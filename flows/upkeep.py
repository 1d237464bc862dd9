"""The flow that cleans a store and verifies a part of it; its deployment is `upkeep/NAME`, each day.

`trainwright deploy` makes one for each store that a spec names. What goes is what goes with `trainwright gc`; which
part is verified, the day says for which Prefect scheduled the flow run, so one that is late makes up for its day.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC

from prefect import flow
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed, State

from data_contracts.errors import TrainwrightError
from flows.commands.operations import cleaned, what_went
from flows.flow_runs import nothing_found
from infra.garbage import Limits
from infra.orchestrator.artifacts import as_code, as_text, stage_artifact
from infra.orchestrator.events import announce_damage
from infra.orchestrator.flow_runs import begin_flow_run_logs
from infra.quantities import size
from infra.scrub import Checked, check_each, due_on, sealed_directories
from infra.settings import known_stores
from infra.store import is_store, open_store

log = logging.getLogger("trainwright")
# A state's message names so many; the log and the page name all.
_MOST_NAMED = 10
_LOG_EVERY_S = 60.0
_REMEDY = (
    "Restore each of these files from a copy of the store; docs/runbooks.md#trainwrightupkeepfailed says what to do "
    "without a copy."
)


@flow(name="upkeep", flow_run_name="upkeep", retries=0)
def upkeep(store: str, storage_options: dict[str, object] | None = None, pointers: str | None = None) -> State:
    """Delete what nothing in a store refers to any more, and verify what is sealed there and due today.

    Args:
        store: address of the store.
        storage_options: how to reach it; credentials are named.
        pointers: its database of pointers.
    """
    begin_flow_run_logs()
    options = storage_options or {}
    try:
        if not is_store(store, options) and store not in {entry["uri"] for entry in known_stores()}:
            return nothing_found(f"There is no store at {store} yet: no run has made one.")
        opened = open_store(store, options, create=False, tested=True, pointers=pointers)
    except TrainwrightError as error:
        return Failed(message=str(error))
    sentences: list[str] = []
    failures: list[str] = []
    due: list[str] = []
    checked: list[Checked] = []
    day = flow_run.scheduled_start_time.astimezone(UTC).date()
    with _noting(failures):
        sentences.append(f"Cleaned: {what_went(opened, cleaned(opened, Limits()))}")
    with _noting(failures):
        due = due_on(day, sealed_directories(opened))
        checked.extend(_logged(check_each(opened, due), len(due)))
    sentences.append(verified_in_words(len(due), checked))
    failures.extend(one.unread for one in checked if one.unread)
    damaged = [one for one in checked if one.damage]
    page = upkeep_page(opened.uri, [*sentences, *failures], damaged)
    stage_artifact(f"upkeep-{deployment.name}" if deployment.name else "upkeep", page, f"Upkeep of {opened.uri}")
    if damaged:
        announce_damage(opened.uri, [one.uri for one in damaged], str(day))
        failures.append(damage_in_words(opened.uri, damaged))
    return (Failed if failures else Completed)(message=" ".join([*failures, *sentences]))


@contextlib.contextmanager
def _noting(failures: list[str]) -> Iterator[None]:
    """End the block at an error and note it, once for each sentence, because the flow run goes on."""
    try:
        yield
    except TrainwrightError as error:
        log.error("%s", error)
        if str(error) not in failures:
            failures.append(str(error))


def _logged(checked: Iterable[Checked], due: int) -> Iterator[Checked]:
    """The same, with a line in the log now and then."""
    log.info("%d sealed directories are due today.", due)
    next_s = time.monotonic() + _LOG_EVERY_S
    for n, one in enumerate(checked, 1):
        if time.monotonic() > next_s:
            log.info("%d of %d are read; the last is %s.", n, due, one.uri)
            next_s = time.monotonic() + _LOG_EVERY_S
        yield one


def verified_in_words(due: int, checked: Sequence[Checked]) -> str:
    """How much was verified, as one sentence."""
    if not due:
        return "Verified: nothing, because no sealed directory is due today."
    whole = [one for one in checked if not (one.damage or one.unread)]
    gone = due - sum(not one.unread for one in checked)
    rest = f"; {gone} were deleted meanwhile, or were not reached" if gone else ""
    num_bytes = size(sum(one.bytes for one in whole))
    return f"Verified: {len(whole)} of the {due} sealed directories that are due today are whole ({num_bytes}){rest}."


def damage_in_words(store: str, damaged: Sequence[Checked]) -> str:
    """What is damaged, as a sentence that names each file, and what to do."""
    named = "; ".join(one.damage.rstrip(".") for one in damaged[:_MOST_NAMED])
    more = f"; and {len(damaged) - _MOST_NAMED} more" if len(damaged) > _MOST_NAMED else ""
    return f"The store {store} is damaged in {len(damaged)} of its sealed directories: {named}{more}. {_REMEDY}"


def upkeep_page(store: str, sentences: Sequence[str], damaged: Sequence[Checked]) -> str:
    """The page in Prefect, as Markdown."""
    rows = [f"| {as_code(one.uri)} | {as_text(one.damage)} |" for one in damaged]
    table = ["", "| sealed directory | what is wrong |", "| --- | --- |", *rows, "", as_text(_REMEDY)] if rows else []
    lines = [f"- {as_text(sentence)}" for sentence in sentences]
    return "\n".join([f"# Upkeep of {as_code(store)}", "", *lines, *table, ""])
