"""What a training leaves in the store: its ledger of committed checkpoints, and who took part in each generation.

The ledger is the `latest` pointer, which only the conductor moves. It holds the fencing token of the conductor that may
move it, and the kept checkpoints, oldest first. A new conductor rewrites the pointer with its own token before it reads
it, so that an older conductor's next move fails. Some checkpoints stay in the pointer under a key of their own:

* `retiring`: until they are deleted, and `broken`: until they are marked. If a conductor stops halfway, the next one
  finishes the work.
* `aside`: set aside because someone went back to an earlier step. They are kept, with the reason, and never resumed
  from.
* `handed_over`: the checkpoint that training hands over. It is recorded here before `result.json` is written, because a
  conductor that lost the training cannot move the pointer.

Each value carries the code of the conductor that wrote it.

`skipped` holds the samples that training skips, and `retries` what failures have used up and changed so far. `settled`
is the last generation of an earlier conductor whose checkpoints were adopted (`adopt`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, Fenced, UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import (
    Aside,
    GangBeat,
    Heartbeat,
    Joined,
    Latest,
    Launch,
    Meeting,
    NodeBeat,
    NodeExit,
    RankSeen,
    Retries,
    seen_in,
)
from data_contracts.pipeline_spec.train import SelectSpec
from infra import audit
from infra.gang.rank_files import Codes, launch_keys, next_key, remember_key
from infra.records.handoffs import check_against_seal, read_trained_with, verify_checkpoint
from infra.store import Manifest, PointerMoved, Store, Versioned, layout
from infra.store.records import corrupt, parsed

log = logging.getLogger(__name__)
_NODE = re.compile(r"node-[0-9]+")
# A claim is valid for the day on which it was made and for as long after it.
IN_USE_S = 86_400.0
State = Literal["committed", "verified", "quarantined", "set aside", "uncommitted"]


class Ledger:
    """The committed checkpoints of one training, held by one conductor.

    CorruptError if this machine has launched the training, and `latest` does not carry the code of its conductor.

    Args:
        secret: of the machines that may conduct the training; None: of this machine alone.

    Attributes:
        is_launched_here: whether this machine had launched the training before.
        is_checked: whether `latest` carried a right code, or there was none.
        codes: of this training's conductors, as far as this machine has their keys.
    """

    def __init__(self, store: Store, training: str, token: int, secret: bytes | None = None) -> None:
        self.store, self.training, self.token = store, training, token
        keys, key = launch_keys(store.uri, training), next_key(store.uri, training, secret)
        self.is_launched_here, self.is_checked = bool(keys), True
        self.codes = Codes((*keys, key))
        self._pointer = store.pointer(layout.latest(training))
        self._retiring: list[str] = []
        self._verified: set[str] = set()
        self._broken: list[tuple[str, str]] = []
        self.aside: list[Aside] = []
        self.skipped: list[tuple[int, int]] = []
        self.retries = Retries()
        self.settled: int | None = None
        self.handed_over: Checkpoint | None = None
        self.checkpoints: list[Checkpoint] = []
        self._at = self._take_over()
        # Not before: until then, `latest` has the code of an earlier conductor, or none.
        remember_key(store.uri, training, key)

    @property
    def newest(self) -> Checkpoint | None:
        """The last committed checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    def commit(self, checkpoint: Checkpoint) -> bool:
        """Re-read a checkpoint's seal and move `latest` to it; False if it was committed before.

        Raises CorruptError if it is not what its rank sealed, Fenced if another conductor owns the training.
        """
        if any(known.ref.uri == checkpoint.ref.uri for known in reversed(self.checkpoints)):
            return False
        if self.newest is not None and checkpoint.step < self.newest.step:
            # An earlier step than the newest committed one: this checkpoint was retired and then reported again.
            return False
        try:
            check_against_seal(self.store.manifest(checkpoint.ref), checkpoint)
        except FileNotFoundError as error:
            raise CorruptError(f"{checkpoint.ref.uri} was reported as a checkpoint, but is not sealed.") from error
        self._move([*self.checkpoints, checkpoint])
        return True

    def resume_from(self, sealed: Mapping[str, object] | None = None) -> Checkpoint | None:
        """The newest checkpoint whose every byte is as sealed; None if none was ever committed.

        Broken checkpoints are quarantined and leave the ledger. CorruptError if no checkpoint is left.

        Args:
            sealed: the settings, code and data of this training; its checkpoints must record the same.
        """
        self._quarantine()
        good = list(self.checkpoints)
        broken: list[Checkpoint] = []
        reasons: list[str] = []
        while good:
            try:
                self._verify(good[-1], sealed)
                break
            except (CorruptError, FileNotFoundError) as error:
                log.warning("the checkpoint %s is not used: %s", good[-1].ref.uri, error)
                reasons.append(error.message if isinstance(error, CorruptError) else "it is missing.")
                broken.append(good.pop())
        if broken:
            # Move the pointer first: a conductor that lost the training marks nothing, and its successor marks the
            # rest.
            self._broken += zip([checkpoint.ref.uri for checkpoint in broken], reasons, strict=True)
            self._move(good or self.checkpoints)
        self._quarantine()
        if broken and not good:
            names = ", ".join(checkpoint.ref.uri for checkpoint in broken)
            raise CorruptError(
                f"No committed checkpoint of {self.training} is whole: {names}.",
                remedy="Restore one of them from a copy, or run with --new to train from the start.",
            )
        return good[-1] if good else None

    def refuse(self, uri: str, reason: str) -> bool:
        """Quarantine a committed checkpoint that cannot be resumed from; returns whether an older one is left."""
        good = [checkpoint for checkpoint in self.checkpoints if checkpoint.ref.uri != uri]
        if len(good) == len(self.checkpoints):
            return False
        self._broken.append((uri, reason))
        self._move(good or self.checkpoints)
        self._quarantine()
        return bool(good)

    def go_back(self, step: int, *, by: str) -> None:
        """Make the committed checkpoint of `step` the newest; later ones are set aside in the same move.

        UsageError naming the committed steps if `step` is not one of them; CorruptError if the checkpoint's bytes are
        not as sealed.
        """
        chosen = at_step(self.checkpoints, step, self.training)
        try:
            self.store.verify(chosen.ref)
        except FileNotFoundError as error:
            raise CorruptError(f"The checkpoint {chosen.ref.uri} is missing.") from error
        end = self.checkpoints.index(chosen) + 1
        reason = f"was set aside at {audit.now()}: {by} went back to step {step:,}"
        later = [Aside(checkpoint=checkpoint, reason=reason) for checkpoint in self.checkpoints[end:]]
        if later:
            self._move(self.checkpoints[:end], aside=later)

    def retire(self, keep: int, select: SelectSpec | None, *, by: str, also: Collection[int] = ()) -> None:
        """Delete all checkpoints except the `keep` newest, the one that `select` prefers so far, and those in use.

        The newest checkpoint always stays, and so do those of the steps in `also`.
        """
        best = self.best(select)
        newest = [*self.checkpoints[-max(keep, 1) :], *(one for one in self.checkpoints if one.step in also)]
        kept = {checkpoint.ref.uri for checkpoint in [*newest, *([] if best is None else [best])]}
        uris = [checkpoint.ref.uri for checkpoint in self.checkpoints]
        retired = [uri for uri in uris if uri not in kept and not self._in_use(uri)]
        if retired:
            # Remove them from the ledger first: every checkpoint that the ledger names exists at any moment.
            gone = set(retired)
            self._move([checkpoint for checkpoint in self.checkpoints if checkpoint.ref.uri not in gone], retired)
        self.delete_retired(by=by)

    def delete_retired(self, *, by: str) -> None:
        """Delete the retired checkpoints, including those of earlier conductors; a failed call may be repeated."""
        while self._retiring:
            uri = self._retiring[0]
            why = "older than the checkpoints that are kept"
            self.store.remove(uri, why=why, by=by, unless=partial(self._in_use, uri))
            # The pointer may still name this checkpoint until its next move; deleting it again does nothing.
            self._retiring.pop(0)

    def best(self, select: SelectSpec | None) -> Checkpoint | None:
        """The checkpoint with the best value of the selected metric, the earliest if equal; None if none has it."""
        if select is None:
            return None
        scored = [c for c in self.checkpoints if math.isfinite(c.metrics.get(select.metric, math.nan))]
        sign = 1 if select.mode == "min" else -1
        return min(scored, key=lambda c: sign * c.metrics[select.metric], default=None)

    def chosen(self, select: SelectSpec | None) -> Checkpoint:
        """The checkpoint to hand over: the last, or the best by `select`; UsageError if none has its metric."""
        assert self.newest is not None, "a training that is done has committed its last step"
        if select is None:
            return self.newest
        best = self.best(select)
        if best is None:
            known = ", ".join(sorted(self.newest.metrics)) or "none"
            raise UsageError(
                f"train.select.metric: {select.metric} was not logged before any checkpoint; logged were: {known}.",
                remedy="Log it in the module (validation_step), or name one that is logged.",
            )
        return best

    def adopt(self, generation: int, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Commit the checkpoints that an earlier conductor's last generation sealed and nobody committed; returns them.

        The same move records the generation in `settled`: checkpoints that it seals later are never read. `resume_from`
        reads every byte of an adopted checkpoint.

        Args:
            checkpoints: complete ones of `generation`, oldest first.
        """
        left_out = {*self._retiring, *(uri for uri, _ in self._broken), *(one.checkpoint.ref.uri for one in self.aside)}
        newest = -1 if self.newest is None else self.newest.step
        new = [
            checkpoint for checkpoint in checkpoints if checkpoint.step > newest and checkpoint.ref.uri not in left_out
        ]
        self.settled = generation
        self._move([*self.checkpoints, *new])
        return new

    def record_recovery(self, skipped: list[tuple[int, int]], retries: Retries) -> None:
        """Record which samples (from, to) are skipped from now on, and what failures have used up and changed."""
        self.skipped, self.retries = skipped, retries
        self._move(self.checkpoints)

    def hand_over(self, checkpoint: Checkpoint) -> None:
        """Record the checkpoint that training hands over; Fenced unless this conductor still owns the training."""
        self.handed_over = checkpoint
        self._move(self.checkpoints)

    def _verify(self, checkpoint: Checkpoint, sealed: Mapping[str, object] | None) -> None:
        manifest = verify_checkpoint(self.store, checkpoint)
        if sealed and canonical(read_trained_with(self.store, manifest)) != canonical(sealed):
            raise CorruptError(f"{checkpoint.ref.uri} was trained with other settings, code or data.")

    def _in_use(self, uri: str) -> bool:
        """Whether a checkpoint is verified, so that a model version may point to it, or was claimed recently."""
        if uri not in self._verified and self.store.exists(layout.verified(uri)):
            self._verified.add(uri)  # the mark is never removed, so it is looked up once
        if uri in self._verified:
            return True
        claimed_s = self.store.last_claim_s(uri)
        # By the store's clock, because this machine's clock may be days ahead.
        return bool(claimed_s) and claimed_s > self.store.now_s() - IN_USE_S

    def _take_over(self) -> Versioned:
        while True:
            at = self._pointer.read()
            if at is not None:
                parsed(self._pointer.path, self._take_in, at.value)
            value = self._value(self.checkpoints, self._retiring, self.aside)
            try:
                return self._pointer.create(value) if at is None else self._pointer.swap(at, value)
            except PointerMoved:
                continue

    def _take_in(self, value: dict[str, object]) -> None:
        """Load what the pointer holds; Fenced if a later conductor wrote it."""
        self.is_checked = self.codes.are_right(self._pointer.path, value)
        if self.is_launched_here:
            self.codes.checked(self._pointer.path, value)
        latest = Latest.from_json(value)
        if latest.token > self.token:
            raise Fenced(f"{self.training} was taken over by another conductor.")
        self.checkpoints, self._retiring, self.aside = latest.checkpoints, latest.retiring, latest.aside
        self._broken, self.skipped, self.handed_over = latest.broken, latest.skipped, latest.handed_over
        self.retries, self.settled = latest.retries, latest.settled

    def _move(self, checkpoints: list[Checkpoint], retired: Sequence[str] = (), *, aside: Sequence[Aside] = ()) -> None:
        retiring, aside = [*self._retiring, *retired], [*self.aside, *aside]
        value = self._value(checkpoints, retiring, aside)
        while True:
            try:
                self._at = self._pointer.swap(self._at, value)
                break
            except PointerMoved as moved:
                if moved.current is None or moved.current.value["token"] != self.token:
                    raise Fenced(f"{self.training} was taken over by another conductor.") from moved
                # An earlier move of this conductor that seemed to fail did arrive: continue from it.
                self._at = moved.current
        self.checkpoints, self._retiring, self.aside = checkpoints, retiring, aside

    def _value(self, checkpoints: list[Checkpoint], retiring: list[str], aside: list[Aside]) -> dict[str, object]:
        latest = Latest(
            token=self.token,
            checkpoints=checkpoints,
            retiring=retiring,
            aside=aside,
            skipped=self.skipped,
            broken=self._broken,
            handed_over=self.handed_over,
            retries=self.retries,
            settled=self.settled,
        )
        return self.codes.coded(self._pointer.path, latest.to_json())

    def _quarantine(self) -> None:
        """Mark the broken checkpoints, including those that earlier conductors found; a failed call may be repeated."""
        while self._broken:
            uri, reason = self._broken[0]
            self.store.create_once(layout.quarantined(uri), {"schema_version": 1, "reason": reason})
            self._broken.pop(0)


def refuse_forged_result(store: Store, training: str, result: Checkpoint) -> None:
    """CorruptError if this machine has launched the training, and its conductor did not hand over `result`."""
    keys, path = launch_keys(store.uri, training), layout.latest(training)
    if not keys:
        return
    pointer = store.pointer(path).read()
    value = Codes(tuple(keys)).checked(path, {} if pointer is None else pointer.value)
    if parsed(path, Latest.from_json, value).handed_over != result:
        raise corrupt(layout.result(training), f"names another checkpoint than the conductor handed over in {path}")


def at_step(checkpoints: Sequence[Checkpoint], step: int, training: str) -> Checkpoint:
    """The committed checkpoint of `step`, the newest if several; else UsageError naming the committed steps."""
    found = [checkpoint for checkpoint in checkpoints if checkpoint.step == step]
    if not found:
        steps = ", ".join(dict.fromkeys(f"{checkpoint.step:,}" for checkpoint in checkpoints)) or "none"
        raise UsageError(
            f"{training} has no committed checkpoint of step {step:,}; committed steps: {steps}.",
            remedy="Name one of these, or leave --from out. `trainwright checkpoints RUN` lists all.",
        )
    return found[-1]


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

    def to_json(self) -> dict[str, object]:
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


@dataclass(frozen=True)
class RankStatus:
    """One rank in one generation.

    Attributes:
        rank: None if the generation trained without the node.
        joined: when its node answered the roll-call, UTC, ISO 8601; "" if it did not.
        restarts: number of earlier generations in which a node of this number was launched.
        last_step: the last step that was reported.
        ended: how its node ended: `done`, a cause, or "" if it still runs or left no record.
    """

    generation: int
    rank: int | None
    node: int
    host: str
    address: str
    device: str
    joined: str
    restarts: int
    last_step: int
    ended: str
    sentence: str = ""


@dataclass(frozen=True)
class GenerationRecord:
    """What the store has of a generation.

    Attributes:
        places: of the nodes that train, which number their ranks; nodes: what each that left something left.
    """

    launch: Launch
    places: dict[int, int]
    nodes: dict[int, NodeRecord]


def generation_records(store: Store, training: str) -> list[GenerationRecord]:
    """The generations that were launched, oldest first."""
    found = []
    for generation in generations(store, training):
        launch = store.read_as(layout.launch(training, generation), Launch.from_json)
        meeting = store.find_as(layout.rollcall(training, generation), Meeting.from_json)
        order = list(range(launch.nodes)) if meeting is None else meeting.order
        places = {node: place for place, node in enumerate(order)}
        found.append(GenerationRecord(launch, places, node_records(store, training, generation)))
    return found


def roster(records: Sequence[GenerationRecord]) -> list[RankStatus]:
    """Every rank of every generation, the newest generation first."""
    statuses: list[list[RankStatus]] = []
    launches: Counter[int] = Counter()
    for record in records:
        devices, statuses = record.launch.devices, [*statuses, []]
        # If a host that is left out took a node's run, a replacement was started with a higher number.
        for node in range(max([record.launch.nodes, *(number + 1 for number in record.places)])):
            place = record.places.get(node)
            ranks = [None] if place is None else list(range(place * devices, (place + 1) * devices))
            left = record.nodes.get(node, NodeRecord())
            statuses[-1] += _of_node(left, record.launch.generation, node, ranks, launches[node])
            launches[node] += 1
    return [status for of_generation in reversed(statuses) for status in of_generation]


def generations(store: Store, training: str) -> list[int]:
    """Numbers of the generations that were launched, oldest first."""
    return [number for number in begun_generations(store, training) if store.exists(layout.launch(training, number))]


def begun_generations(store: Store, training: str) -> list[int]:
    """Numbers of the generations that have a folder, oldest first; a generation without a launch file never ran."""
    found = map(layout.split_generation, store.list(training))
    return sorted(number for number in found if number is not None)


class NodeRecord(NamedTuple):
    """What the store has of a node; of how far it was, only the newest."""

    joined: Joined | None = None
    beat: NodeBeat | None = None
    exit: NodeExit | None = None

    @property
    def seen(self) -> list[RankSeen]:
        """How far its ranks were."""
        if self.exit is not None:
            return seen_in(self.exit)
        return [] if self.beat is None else self.beat.ranks

    @property
    def seconds(self) -> float:
        """How long it was held; if it left no record, from its answer to its last heartbeat."""
        if self.exit is not None:
            return max(self.exit.released - self.exit.started, 0.0)
        return 0.0 if self.joined is None or self.beat is None else max(self.beat.time - self.joined.time, 0.0)


def node_records(store: Store, training: str, generation: int) -> dict[int, NodeRecord]:
    """What the store has of each node of a generation that left something; also a store of an earlier version."""
    place = (training, generation)
    names = store.list(layout.generation(*place))
    meeting = store.find_as(layout.rollcall(*place), Meeting.from_json)
    known = {one.node: NodeRecord(joined=one) for one in (meeting.nodes if meeting else [])}
    if count := sum(name.startswith("beat-") for name in names):
        for beat in store.read_as(layout.gang_beat(*place, count - 1), GangBeat.from_json).nodes:
            known[beat.node] = known.get(beat.node, NodeRecord())._replace(beat=beat)
    for number in (int(name.removeprefix("node-")) for name in names if _NODE.fullmatch(name)):
        record, files = known.get(number, NodeRecord()), store.list(layout.node(*place, number))
        if "joined.json" in files:
            record = record._replace(joined=store.read_as(layout.joined(*place, number), Joined.from_json))
        if "exit.json" in files:
            record = record._replace(exit=store.read_as(layout.node_exit(*place, number), NodeExit.from_json))
        elif count := sum(name.startswith("beat-") for name in files):
            last = store.read_as(layout.beat(*place, number, count - 1), Heartbeat.from_json)
            record = record._replace(beat=NodeBeat.of(number, last))
        known[number] = record
    return known


def _of_node(
    record: NodeRecord, generation: int, node: int, ranks: Sequence[int | None], restarts: int
) -> list[RankStatus]:
    joined, ended = record.joined, record.exit
    known: dict[int | None, RankSeen] = {seen.rank: seen for seen in record.seen}
    error = ended.error or {} if ended is not None else {}
    return [
        RankStatus(
            generation=generation,
            rank=rank,
            node=node,
            host="" if joined is None else joined.host,
            address="" if joined is None else joined.address,
            device=known[rank].device if rank in known else "",
            joined="" if joined is None else datetime.fromtimestamp(joined.time, UTC).isoformat(timespec="seconds"),
            restarts=restarts,
            last_step=known[rank].step if rank in known else 0,
            ended=error.get("cause", "" if ended is None else ended.status),
            sentence=error.get("message", ""),
        )
        for rank in ranks
    ]


@dataclass(frozen=True)
class GenerationSpan:
    """What one generation of a training did.

    Attributes:
        run_id: the run that launched it.
        nodes, ranks: how many took part.
        first_step, last_step: the step that it resumed from, and the last that it reported.
        node_seconds: from each node's launch to its release, as far as the nodes reported.
        lost_steps: steps that a later generation had to do again.
        ended: how it ended: `done`, a cause, or "" if it still runs or left no record.
    """

    number: int
    run_id: str
    nodes: int
    ranks: int
    first_step: int
    last_step: int
    node_seconds: float
    lost_steps: int
    ended: str
    sentence: str = ""

    @property
    def wasted_seconds(self) -> float:
        """The part of a generation's node-seconds that later generations had to spend again."""
        done = self.last_step - self.first_step
        if done <= 0:
            return 0.0 if self.ended in ("done", "") else self.node_seconds
        return self.node_seconds * min(self.lost_steps / done, 1.0)


def generation_spans(store: Store, training: str) -> list[GenerationSpan]:
    """What each generation of a training did, oldest first."""
    records = generation_records(store, training)
    statuses = roster(records)
    found: list[GenerationSpan] = []
    resumed: int | None = None
    for record in reversed(records):
        launch = record.launch
        mine = [status for status in statuses if status.generation == launch.generation]
        begin = launch.resume or launch.begin
        first = 0 if begin is None else begin.step
        last = max([first, *(status.last_step for status in mine)])
        causes = [(status.ended, status.sentence) for status in mine if status.ended not in ("", "done")]
        ended, sentence = causes[0] if causes else ("done" if any(status.ended for status in mine) else "", "")
        numbers = sorted({status.node for status in mine})
        span = GenerationSpan(
            number=launch.generation,
            run_id=str(launch.provenance.get("run_id", "")),
            nodes=len(numbers),
            ranks=len([status for status in mine if status.rank is not None]),
            first_step=first,
            last_step=last,
            node_seconds=sum(node.seconds for node in record.nodes.values()),
            lost_steps=0 if resumed is None else max(last - resumed, 0),
            ended=ended,
            sentence=sentence,
        )
        found.insert(0, span)
        resumed = first
    return found
