"""Compares what was made again with what is sealed: every id on the way, and the weights where an id differs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from data_contracts.handoffs import Ref
from infra.gang.ledger import list_checkpoints
from infra.store import Manifest, Store
from infra.weights import TensorDifference, first_difference
from tasks.reproduction.recorded import Recorded
from tasks.reproduction.remake import Made


@dataclass(frozen=True)
class Compared:
    """One id: as sealed, and as made again; "" if there is none."""

    what: str
    recorded: str
    made: str

    @property
    def equal(self) -> bool:
        """Whether both are the same."""
        return self.recorded == self.made


@dataclass(frozen=True)
class Comparison:
    """What was made again, beside what is sealed.

    Attributes:
        weights_equal: whether the weights of the model are equal to the bit.
        step, weights: the first kept checkpoint whose weights differ, and how; None if none differ.
        parts: of the first kept checkpoint with another id: the files and settings that differ.
    """

    rows: list[Compared]
    weights_equal: bool
    step: int | None = None
    weights: TensorDifference | None = None
    parts: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether every id is the same."""
        return self.weights_equal and all(row.equal for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The comparison as objects that JSON can hold."""
        rows = [{**asdict(row), "equal": row.equal} for row in self.rows]
        return {
            "equal": self.equal,
            "weights_equal": self.weights_equal,
            "rows": rows,
            "first_difference": None if self.weights is None else {"step": self.step, **self.weights.to_json()},
            "parts": self.parts,
        }


def compare(store: Store, recorded: Recorded, made_in: Store, made: Made) -> Comparison:
    """Compare every id, and the weights of each kept checkpoint whose id differs until one is found that differs."""
    checkpoint, evaluation = recorded.version.checkpoint, recorded.version.evaluation
    listed = list_checkpoints(made_in, made.checkpoint.training)
    there = {one.step: made_in.manifest(one.uri).ref for one in listed if one.state in ("committed", "verified")}
    rows = [
        *_row("contract report", recorded.contract, made.contract),
        *_row("dataset", recorded.dataset, made.dataset),
        *(_of_step(step, identity, there.get(step)) for step, identity in recorded.steps.items()),
        Compared(f"model, step {checkpoint.step:,}", checkpoint.ref.id, made.checkpoint.ref.id),
        Compared("evaluation", evaluation.id, made.evaluation.ref.id),
    ]
    stores = store, made_in
    pairs = [(step, (ref, there[step])) for step, ref in recorded.kept.items() if step in there]
    different = [(step, refs) for step, refs in pairs if refs[0].id != refs[1].id]
    parts = _parts(*(one.manifest(ref) for one, ref in zip(stores, different[0][1], strict=True))) if different else []
    last = checkpoint.ref, made.checkpoint.ref
    same = last[0].id == last[1].id or first_difference(stores, last) is None
    for step, refs in different:
        if (found := first_difference(stores, refs)) is not None:
            return Comparison(rows, same, step, found, parts)
    return Comparison(rows, same, parts=parts)


def _row(what: str, recorded: Ref | None, made: Ref | None) -> list[Compared]:
    if recorded is None:
        return []
    return [Compared(what, recorded.id, "" if made is None else made.id)]


def _of_step(step: int, identity: str, made: Ref | None) -> Compared:
    return Compared(f"checkpoint, step {step:,}", identity, "" if made is None else made.id)


def _parts(before: Manifest, after: Manifest) -> list[str]:
    """The files and the settings of two checkpoints that differ."""
    files = [{file.path: file.blake3 for file in one.files} for one in (before, after)]
    settings = before.settings, after.settings
    return [
        *(name for name in sorted({*files[0], *files[1]}) if files[0].get(name) != files[1].get(name)),
        *(name for name in sorted({*settings[0], *settings[1]}) if settings[0].get(name) != settings[1].get(name)),
    ]
