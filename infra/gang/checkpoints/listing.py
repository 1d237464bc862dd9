"""A training's checkpoints in the store, for people and for `adopt`; this module never moves the pointer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Aside, Latest
from infra.records.checkpoints import check_against_seal
from infra.store import Manifest, Store, layout
from infra.store.records import parsed

State = Literal["committed", "verified", "quarantined", "set aside", "uncommitted"]


@dataclass(frozen=True)
class Found:
    """One checkpoint of a training.

    Attributes:
        state: `committed`, `verified`, `quarantined`, `set aside`, or `uncommitted`. An uncommitted checkpoint was
            sealed by a generation whose conductor did not commit it; the next conductor commits it if it is of the
            last generation, else it is never read.
        reason: why it is quarantined or set aside; else "".
        bytes: size of its files; None if its manifest is missing or changed.
        written: when it was sealed, UTC, ISO 8601.
        handed_over: whether training handed this checkpoint over.
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
        """The checkpoint as JSON-able objects."""
        return asdict(self)


def committed(store: Store, training: str) -> tuple[list[Checkpoint], list[Aside]]:
    """What `latest` holds now: the committed checkpoints, oldest first, and those that were set aside."""

    path = layout.latest(training)
    pointer = store.pointer(path).read()
    if pointer is None:
        return [], []
    latest = parsed(path, Latest.from_json, pointer.value)
    return latest.checkpoints, latest.aside


def list_checkpoints(store: Store, training: str) -> list[Found]:
    """Every sealed or marked checkpoint of a training, by step and generation."""
    kept, aside = committed(store, training)
    in_ledger = {checkpoint.ref.uri for checkpoint in kept}
    reasons = {entry.checkpoint.ref.uri: entry.reason for entry in aside}
    result = store.find_as(layout.result(training), Checkpoint.from_json)
    handed_over = None if result is None else result.ref.uri
    found = []
    places = {(step, generation) for step, generation, _ in _sealed_or_marked(store, training)}
    for step, generation in sorted(places.union((one.step, one.generation) for one in kept)):
        uri = layout.checkpoint(training, step, generation)
        facts, fault = _facts(store, uri)
        if uri in in_ledger and not facts:
            fault = fault or f"{layout.manifest(uri)} is missing"
        reason = _quarantine(store, uri) or reasons.get(uri) or fault
        state: State = "uncommitted"
        if uri in in_ledger:
            state = "verified" if store.exists(layout.verified(uri)) else "committed"
        if reason:
            state = "set aside" if uri in reasons else "quarantined"
        if facts or reason:
            is_chosen = uri == handed_over
            found.append(Found(uri, step, generation, state, reason, handed_over=is_chosen, **facts))
    return found


def why_from(store: Store, training: str, step: int, aside: Sequence[Aside]) -> str:
    """Why a training resumes from `step`: no newer checkpoint is committed, or what became of the later ones."""
    later = []
    for at, generation, mark in _sealed_or_marked(store, training):
        if mark == "quarantined" and at > step:
            uri = layout.checkpoint(training, at, generation)
            later.append((at, f"is quarantined: {_quarantine(store, uri)}"))
    later += [(entry.checkpoint.step, entry.reason) for entry in aside if entry.checkpoint.step > step]
    return "; ".join(f"step {at:,} {what}" for at, what in sorted(later)) or "the newest committed checkpoint"


def adoptable(store: Store, training: str, generation: int, after: int) -> list[Checkpoint]:
    """Sealed checkpoints of a generation after step `after`, described as their ranks reported them; oldest first.

    Those that are damaged, or marked as quarantined, are left out.
    """
    found = _sealed_or_marked(store, training)
    marked = {(step, number) for step, number, mark in found if mark == "quarantined"}
    steps = sorted({step for step, number, mark in found if number == generation and step > after and not mark})
    checkpoints = []
    for step in steps:
        uri = layout.checkpoint(training, step, generation)
        # A folder without a manifest was never sealed.
        with contextlib.suppress(FileNotFoundError, CorruptError):
            if (step, generation) not in marked:
                checkpoints.append(_described(store.manifest(uri), training, step, generation))
    return checkpoints


def _described(manifest: Manifest, training: str, step: int, generation: int) -> Checkpoint:
    """A sealed checkpoint as its rank reported it; CorruptError if it is not the one that belongs there."""
    parts = layout.split_attempt(training.rpartition("/")[2])
    place = {"ref": manifest.ref, "key": parts[0] if parts else "", "training": training, "generation": generation}
    names = ("epoch", "world_size", "metrics", "dropped_rows", "skipped")
    facts = {name: manifest.settings[name] for name in names if name in manifest.settings}
    checkpoint = parsed(layout.manifest(manifest.uri), Checkpoint.model_validate, {**place, "step": step, **facts})
    check_against_seal(manifest, checkpoint)
    return checkpoint


def _sealed_or_marked(store: Store, training: str) -> list[tuple[int, int, str]]:
    """(step, generation, mark) of each path among a training's checkpoints; mark "" is the checkpoint itself."""
    found = map(layout.split_checkpoint, store.list(layout.checkpoints(training)))
    return [parts for parts in found if parts is not None and parts[2] in ("", "quarantined", "verified")]


def _facts(store: Store, uri: str) -> tuple[dict[str, Any], str]:
    """A sealed checkpoint's facts from its manifest, and what is wrong with it; ({}, "") if it is not sealed."""
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
        return store.read_as(layout.quarantined(uri), lambda mark: str(mark["reason"])).rstrip(".")
    except FileNotFoundError:
        return ""
