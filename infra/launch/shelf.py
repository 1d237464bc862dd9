"""A training's checkpoints as they lie in the store, for people: read, never moved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from infra.store import Store, layout

_CHECKPOINT = re.compile(r"(\d+)-g(\d+)(\.quarantined|\.verified)?")
State = Literal["committed", "verified", "quarantined", "set aside", "uncommitted"]


@dataclass(frozen=True)
class Aside:
    """A checkpoint that left the trail because someone went back behind it, and why."""

    checkpoint: Checkpoint
    reason: str

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Aside:
        """Read what `to_json` wrote."""
        return cls(Checkpoint.from_json(value["checkpoint"]), value["reason"])

    def to_json(self) -> dict[str, Any]:
        """As `latest` holds it."""
        return {"checkpoint": self.checkpoint.to_json(), "reason": self.reason}


@dataclass(frozen=True)
class Found:
    """One checkpoint of a training.

    Attributes:
        state: `committed`, `verified`, `quarantined`, `set aside`, or `uncommitted`: sealed by a generation that ended
            before its conductor knew of it, and never read.
        reason: why it is quarantined or set aside; else "".
        bytes: size of its files; None where its manifest is gone or changed.
        written: when it was sealed, UTC, ISO 8601.
        handed_over: whether it is the one that train handed over.
    """

    uri: str
    step: int
    generation: int
    state: State
    reason: str = ""
    bytes: int | None = None
    written: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    handed_over: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON-able objects."""
        return asdict(self)


def committed(store: Store, training: str) -> tuple[list[Checkpoint], list[Aside]]:
    """What `latest` holds now: the committed checkpoints, oldest first, and those that were set aside."""
    held = store.pointer(layout.latest(training)).read()
    value = {} if held is None else held.value
    kept = [Checkpoint.from_json(one) for one in value.get("checkpoints", [])]
    return kept, [Aside.from_json(one) for one in value.get("aside", [])]


def list_checkpoints(store: Store, training: str) -> list[Found]:
    """Every sealed or marked checkpoint of a training, by step and generation."""
    kept, aside = committed(store, training)
    in_trail = {checkpoint.ref.uri for checkpoint in kept}
    reasons = {one.checkpoint.ref.uri: one.reason for one in aside}
    result = layout.result(training)
    handed_over = Checkpoint.from_json(store.read_json(result)).ref.uri if store.exists(result) else None
    found = []
    names = store.list(layout.checkpoints(training))
    for step, generation in sorted({(int(m[1]), int(m[2])) for m in map(_CHECKPOINT.fullmatch, names) if m}):
        uri = layout.checkpoint(training, step, generation)
        facts, fault = _facts(store, uri)
        reason = _quarantine(store, uri) or reasons.get(uri) or fault
        state: State = "uncommitted"
        if uri in in_trail:
            state = "verified" if store.exists(layout.verified(uri)) else "committed"
        if reason:
            state = "set aside" if uri in reasons else "quarantined"
        if facts or reason:
            told = {**facts, "state": state, "reason": reason, "handed_over": uri == handed_over}
            found.append(Found(uri, step, generation, **told))
    return found


def why_from(store: Store, training: str, step: int, aside: Sequence[Aside]) -> str:
    """Why a training goes on from `step`: nothing newer is committed, or what became of the later ones."""
    later = []
    for name in store.list(layout.checkpoints(training)):
        match = _CHECKPOINT.fullmatch(name)
        if match and match[3] == ".quarantined" and int(match[1]) > step:
            uri = layout.checkpoint(training, int(match[1]), int(match[2]))
            later.append((int(match[1]), f"is quarantined: {_quarantine(store, uri)}"))
    later += [(one.checkpoint.step, one.reason) for one in aside if one.checkpoint.step > step]
    return "; ".join(f"step {at:,} {what}" for at, what in sorted(later)) or "the newest committed checkpoint"


def _facts(store: Store, uri: str) -> tuple[dict[str, Any], str]:
    """What a sealed checkpoint's manifest says, and what is wrong with it; ({}, "") for one that is not sealed."""
    try:
        manifest = store.manifest(uri)
    except FileNotFoundError:
        return {}, ""
    except CorruptError as error:
        return {}, error.message.rstrip(".")
    size = sum(file.bytes for file in manifest.files)
    written = str(manifest.provenance.get("finished", ""))
    return {"bytes": size, "written": written, "metrics": manifest.settings.get("metrics", {})}, ""


def _quarantine(store: Store, uri: str) -> str:
    try:
        return str(store.read_json(layout.quarantined(uri))["reason"]).rstrip(".")
    except FileNotFoundError:
        return ""
