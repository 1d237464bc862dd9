"""Who moved an alias, when, why, and from which version to which."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from data_contracts.alias_moves import Approval, CanaryNote, Force, Incident
from data_contracts.canonical import is_name
from data_contracts.errors import UsageError
from data_contracts.handoffs import Receipt
from infra.models import registry
from infra.records.receipts import is_rollback
from infra.store import Store, layout

Kind = Literal["promoted", "rolled back", "kept", "canary", "ended"]


@dataclass(frozen=True)
class Move:
    """One receipt of an alias.

    Attributes:
        kind: `kept` if the alias stayed where it was, such as when a hold was lifted; `canary` and `ended` for the
            beginning and the end of a canary.
        before, after: the versions, `before` None for the first move.
        at: UTC, ISO 8601; by, trigger: the actor, and what started the run, as recorded.
        seal: of the receipt.
        incident: the note of a rollback; None for other moves, and for rollbacks of earlier versions.
        approval: of a promotion; None if none was asked for.
        force: why a checkpoint was promoted that was on hold; None if it was not.
        canary: of a canary's promotion and its end: its terms, and what the fresh rows said; None for other moves.
    """

    kind: Kind
    before: int | None
    after: int | None
    at: str
    by: str
    trigger: str
    run_id: str
    sentence: str
    seal: str
    incident: Incident | None
    approval: Approval | None
    force: Force | None
    canary: CanaryNote | None

    def to_json(self) -> dict[str, Any]:
        """The move as objects that JSON can hold."""
        notes = {name: getattr(self, name) for name in ("incident", "approval", "force", "canary")}
        return {**asdict(self), **{name: note and note.to_json() for name, note in notes.items()}}


def moves_of(store: Store, model: str, alias: str = "") -> dict[str, list[Move]]:
    """The moves of an alias, or of each alias of a model: alias → moves, oldest first.

    Raises:
        UsageError: the model has no such alias, or none at all.
        CorruptError: a receipt is changed or gone.
    """
    names = (
        [alias] if alias else [one for one in store.list(layout.aliases(model)) if is_name(one) and one != "history"]
    )
    found = {name: [_move(*one) for one in registry.moves(store, model, name)] for name in names}
    found = {name: made for name, made in found.items() if made}
    if not found:
        what = f"no alias {alias}" if alias else "no alias"
        raise UsageError(f"The model {model} has {what}.", remedy="`trainwright status` lists models and aliases.")
    return found


def _move(receipt: Receipt, about: dict[str, Any]) -> Move:
    kind: Kind = "kept" if receipt.version == receipt.previous else "promoted"
    if is_rollback(receipt):
        kind = "rolled back"
    if receipt.decision in ("canary", "ended"):
        kind = receipt.decision
    return Move(
        kind=kind,
        before=receipt.previous,
        after=receipt.version,
        at=str(about.get("finished") or about.get("started") or ""),
        by=str(about.get("actor") or ""),
        trigger=str(about.get("trigger") or ""),
        run_id=str(about.get("run_id") or ""),
        sentence=receipt.sentence,
        seal=receipt.ref.seal if receipt.ref else "",
        incident=receipt.incident,
        approval=receipt.approval,
        force=receipt.force,
        canary=receipt.canary,
    )
