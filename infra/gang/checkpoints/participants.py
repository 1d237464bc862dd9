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
    return [number for number in begun(store, training) if store.exists(layout.launch(training, number))]


def begun(store: Store, training: str) -> list[int]:
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
