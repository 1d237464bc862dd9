"""The events about a store: an objective's error budget burns, or its disk is nearly full. `watch.py` tells people."""

from __future__ import annotations

from collections.abc import Sequence

from infra.orchestrator.events import notices
from infra.orchestrator.events.events import send

# Followed by `page` or `ticket`.
BURNS = "trainwright.objective."
FULL = "trainwright.store.full"


def announce_burn(store: str, objective: str, severity: str, sentence: str, day: str, pipelines: Sequence[str]) -> None:
    """Emit the event of an objective's alert, once on each day while it lasts; a failure is one warning.

    Args:
        pipelines: those whose runs count.
    """
    resource = {"prefect.resource.id": f"{BURNS}{objective}", "prefect.resource.name": objective}
    payload = {"store": store, "severity": severity, **notices.of_burn(objective, store, severity, sentence)}
    send(f"{BURNS}{severity}", resource, payload, f"{store}/{objective}/{day}", *pipelines)


def announce_full(store: str, used: float, day: str, pipelines: Sequence[str]) -> None:
    """Emit the event of a store that is nearly full, once on each day while it lasts; a failure is one warning.

    Args:
        used: share of its disk.
    """
    resource = {"prefect.resource.id": f"trainwright.store.{store}", "prefect.resource.name": store}
    send(FULL, resource, {"used": used, **notices.of_full_store(store, used)}, f"{store}/{day}", *pipelines)
