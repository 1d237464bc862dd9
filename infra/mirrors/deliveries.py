"""The records of what a mirror was told of a run, or of the move of an alias; one record for each attempt.

mirrored/<run>/<mirror>/<what>-<attempt>.json        what: `final`, the number of an attempt at the run, or `alias`
"""

from __future__ import annotations

from data_contracts.operations.deliveries import Delivery
from infra.store import Store, layout

FINAL, ALIAS = "final", "alias"


def newest_end(store: Store, run_id: str) -> str | None:
    """What the mirrors are told of a run: its final report, else its newest attempt; None if none has ended."""
    if store.exists(layout.report(run_id)):
        return FINAL
    attempts = len(store.list(layout.run_attempts(run_id)))
    return str(attempts - 1) if attempts else None


def newest_delivery(store: Store, run_id: str, mirror: str, what: str) -> tuple[int, Delivery | None]:
    """How often a mirror was told, and the newest attempt; None if there was none."""
    names = [name for name in store.list(layout.mirrored(run_id, mirror)) if name.startswith(f"{what}-")]
    if not names:
        return 0, None
    path = layout.delivery(run_id, mirror, what, len(names) - 1)
    return len(names), store.find_as(path, Delivery.from_json)
