"""`canary`: shows the version that stands beside the champion, and takes it back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from data_contracts.alias_moves import ALIAS
from data_contracts.errors import UsageError
from data_contracts.handoffs import Receipt
from data_contracts.times import readable
from flows.commands.aliases import provenance_of
from flows.commands.guard import Answer, log
from flows.commands.queries import store_with

if TYPE_CHECKING:
    from tasks.queries.day import CanaryView


def canary(arguments: argparse.Namespace) -> Answer:
    """The `canary` command."""
    # Imported here, because the import is slow and the other decisions do not need it.
    from tasks.queries.day import canary_of
    from tasks.stages.canary import withdraw

    model, _, alias = arguments.name.partition("@")
    if alias not in ("", ALIAS):
        raise UsageError(f"{arguments.name} is not a canary.", remedy=f"Name the model alone: {model}.")
    if arguments.withdraw != (arguments.reason is not None):
        raise UsageError("canary: --withdraw and --reason go together.", remedy="Give both, or neither.")
    store = store_with(arguments)
    if arguments.withdraw:
        about = provenance_of("canary")
        receipt = withdraw(store, model, arguments.reason, about)
        _announce(receipt, about["actor"])
        return Answer(receipt.sentence, receipt.to_json())
    view = canary_of(store, model)
    if view is None:
        return Answer(f"{model} has no canary.", {"model": model, "canary": None})
    return Answer("\n".join(_lines(view)), {"model": model, "canary": view.to_json()}, line=view.sentence)


def _lines(view: CanaryView) -> list[str]:
    rows: list[tuple[str, Any]] = [
        ("since", readable(view.terms.since)),
        ("until", readable(view.terms.until)),
        ("against", f"{view.name}, version {view.champion}"),
        ("asked", view.requirement),
        ("rows", view.rows),
        ("gain", view.gain),
        ("decides", view.decides),
    ]
    return [view.sentence, *(f"  {name:<9} {value}" for name, value in rows if value)]


def _announce(receipt: Receipt, by: str) -> None:
    """Tell a Prefect server that runs; none is started, and the canary has ended whatever happens."""
    from infra.orchestrator.server import connect_if_running

    try:
        if not connect_if_running():
            return
        from infra.orchestrator.events import announce_canary_end

        announce_canary_end(receipt, by)
    except Exception as error:
        log.warning("The Prefect server was not told that the canary has ended: %s", error)
