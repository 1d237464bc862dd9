"""A person's decision to take a canary back."""

from __future__ import annotations

import logging
from typing import Any

from data_contracts.alias_moves import ALIAS, Standing
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Receipt
from infra.models import canaries, registry
from infra.models.canaries import Canary
from infra.records.receipts import has_ended
from infra.store import PointerMoved, Store
from tasks.stages.canary.canary_moves import Mover, end_by_withdrawal, free
from tasks.stages.canary.canary_tally import stored_standing
from tasks.stages.decisions.rollback import checked_reason

log = logging.getLogger("trainwright")


def withdraw(store: Store, model: str, reason: str, provenance: dict[str, Any]) -> Receipt:
    """Take a model's canary back, or remove from the alias `canary` what a promotion put there.

    Returns:
        The receipt of the alias's end, which says how the canary ended: perhaps another process was first.

    Raises:
        UsageError: there is no canary, or no reason is given.
    """
    why, mover = checked_reason(reason), Mover(provenance)
    while True:
        found = registry.read_alias(store, model, ALIAS)
        if found is None or has_ended(found[0]):
            raise UsageError(f"{model} has no canary.", remedy="`trainwright status` lists the aliases.")
        try:
            if not canaries.is_of_canaries(store, found[0]):
                return free(store, model, found[0], why, mover)
            canary = canaries.standing_canary(store, model)
            if canary is not None:
                champion = registry.read_alias(store, model, canary.terms.alias)
                against = canary.terms.against if champion is None else champion[1]
                by = str(provenance.get("actor") or "someone")
                end_by_withdrawal(store, canary, by, why, _known_standing(store, canary, against), mover)
                return registry.history(store, model, ALIAS)[-1]
        except PointerMoved:
            continue


def _known_standing(store: Store, canary: Canary, champion: int) -> Standing | None:
    """What the tallies say; None if one is damaged or missing, which must not keep a canary from being taken back."""
    try:
        return stored_standing(store, canary, champion)
    except CorruptError as error:
        log.warning("what the rows said is not kept: %s", error.message)
        return None
