"""Who took part in a training, as its nodes reported to the store: each rank of each generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from data_contracts.messages.gang import Heartbeat, Joined, Launch, Meeting, NodeExit
from data_contracts.messages.ranks import RankReport
from infra.store import Store, layout

T = TypeVar("T")


@dataclass(frozen=True)
class Seat:
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


def roster(store: Store, training: str) -> list[Seat]:
    """Every rank of every generation, the newest generation first."""
    seats: list[list[Seat]] = []
    launches: dict[int, int] = {}
    for generation in generations(store, training):
        launch = store.read_as(layout.launch(training, generation), Launch.from_json)
        meeting = store.find_as(layout.rollcall(training, generation), Meeting.from_json)
        order = list(range(launch.nodes)) if meeting is None else meeting.order
        seats.append([])
        # If a host that is left out took a node's run, a replacement was started with a higher number.
        for node in range(max([launch.nodes, *(number + 1 for number in order)])):
            place = order.index(node) if node in order else None
            ranks = [None] if place is None else list(range(place * launch.devices, (place + 1) * launch.devices))
            seats[-1] += _of_node(store, (training, generation, node), ranks, launches.get(node, 0))
            launches[node] = launches.get(node, 0) + 1
    return [seat for generation_seats in reversed(seats) for seat in generation_seats]


def generations(store: Store, training: str) -> list[int]:
    """Numbers of the generations that were launched, oldest first."""
    return [number for number in begun_generations(store, training) if store.exists(layout.launch(training, number))]


def begun_generations(store: Store, training: str) -> list[int]:
    """Numbers of the generations that have a folder, oldest first; a generation without a launch file never ran."""
    found = map(layout.split_generation, store.list(training))
    return sorted(number for number in found if number is not None)


def _of_node(store: Store, place: tuple[str, int, int], ranks: Sequence[int | None], restarts: int) -> list[Seat]:
    _, generation, node = place
    joined = store.find_as(layout.joined(*place), Joined.from_json)
    ended = store.find_as(layout.node_exit(*place), NodeExit.from_json)
    if ended is None:
        beat = _last_beat(store, place)
        reports = [] if beat is None else beat.ranks
    else:
        reports = [end.report for end in ended.ranks if end.report is not None]
    known: dict[int | None, RankReport] = {report.rank: report for report in reports}
    error = ended.error or {} if ended is not None else {}
    return [
        Seat(
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


def _last_beat(store: Store, place: tuple[str, int, int]) -> Heartbeat | None:
    beats = [name for name in store.list(layout.node(*place)) if name.startswith("beat-")]
    return store.find_as(layout.beat(*place, len(beats) - 1), Heartbeat.from_json) if beats else None


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
    launches = [store.read_as(layout.launch(training, g), Launch.from_json) for g in generations(store, training)]
    seats = roster(store, training)
    found: list[GenerationSpan] = []
    resumed: int | None = None
    for launch in reversed(launches):
        mine = [seat for seat in seats if seat.generation == launch.generation]
        begin = launch.resume or launch.begin
        first = 0 if begin is None else begin.step
        last = max([first, *(seat.last_step for seat in mine)])
        causes = [(seat.ended, seat.sentence) for seat in mine if seat.ended not in ("", "done")]
        ended, sentence = causes[0] if causes else ("done" if any(seat.ended for seat in mine) else "", "")
        numbers = sorted({seat.node for seat in mine})
        span = GenerationSpan(
            number=launch.generation,
            run_id=str(launch.provenance.get("run_id", "")),
            nodes=len(numbers),
            ranks=len([seat for seat in mine if seat.rank is not None]),
            first_step=first,
            last_step=last,
            node_seconds=sum(_node_seconds(store, (training, launch.generation, node)) for node in numbers),
            lost_steps=0 if resumed is None else max(last - resumed, 0),
            ended=ended,
            sentence=sentence,
        )
        found.insert(0, span)
        resumed = first
    return found


def _node_seconds(store: Store, place: tuple[str, int, int]) -> float:
    """How long a node was held; if it left no record, from its answer to its last heartbeat."""
    ended = store.find_as(layout.node_exit(*place), NodeExit.from_json)
    if ended is not None:
        return max(ended.released - ended.started, 0.0)
    joined, beat = store.find_as(layout.joined(*place), Joined.from_json), _last_beat(store, place)
    return 0.0 if joined is None or beat is None else max(beat.time - joined.time, 0.0)
