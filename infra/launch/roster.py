"""Who took part in a training, as its nodes reported to the store: each rank of each generation, and the kept logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from infra.store import Store, layout


@dataclass(frozen=True)
class Seat:
    """One rank in one generation.

    Attributes:
        rank: None where the generation went on without the node.
        joined: when its node answered the roll-call, UTC, ISO 8601; "" if it did not.
        restarts: generations before this one in which a node of this number was launched.
        last_step: the last that was reported.
        ended: how its node ended: `done`, a cause, or "" while it runs or where it left no word.
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
        launch = _read(store, layout.launch(training, generation))
        nodes, devices = int(launch["nodes"]), int(launch["devices"])
        seats.append([])
        met = _read(store, layout.rollcall(training, generation)).get("nodes")
        order = list(range(nodes)) if met is None else [one["node"] for one in met]
        # Where a host that is left out took the run of one, another was started with a higher number.
        for node in range(max([nodes, *(number + 1 for number in order)])):
            place = order.index(node) if node in order else None
            ranks = [None] if place is None else list(range(place * devices, (place + 1) * devices))
            seats[-1] += _of_node(store, (training, generation, node), ranks, launches.get(node, 0))
            launches[node] = launches.get(node, 0) + 1
    return [seat for generation_seats in reversed(seats) for seat in generation_seats]


def generations(store: Store, training: str) -> list[int]:
    """Numbers of the generations that were launched, oldest first."""
    numbers = [int(name[1:]) for name in store.list(training) if name[:1] == "g" and name[1:].isdigit()]
    return sorted(number for number in numbers if store.exists(layout.launch(training, number)))


def _of_node(store: Store, place: tuple[str, int, int], ranks: Sequence[int | None], restarts: int) -> list[Seat]:
    _, generation, node = place
    joined, ended = _read(store, layout.joined(*place)), _read(store, layout.node_exit(*place))
    if ended:
        reports = [entry["report"] for entry in ended["ranks"] if entry["report"]]
    else:
        reports = _last_beat(store, place).get("ranks", [])
    known: dict[int | None, dict[str, Any]] = {report["rank"]: report for report in reports}
    error = ended.get("error") or {}
    return [
        Seat(
            generation=generation,
            rank=rank,
            node=node,
            host=joined.get("host", ""),
            address=joined.get("address", ""),
            device=str(known.get(rank, {}).get("device", "")),
            joined=datetime.fromtimestamp(joined["time"], UTC).isoformat(timespec="seconds") if joined else "",
            restarts=restarts,
            last_step=int(known.get(rank, {}).get("step", 0)),
            ended=error.get("cause", ended.get("status", "")),
            sentence=error.get("message", ""),
        )
        for rank in ranks
    ]


def _last_beat(store: Store, place: tuple[str, int, int]) -> dict[str, Any]:
    beats = [name for name in store.list(layout.node(*place)) if name.startswith("beat-")]
    return _read(store, layout.beat(*place, len(beats) - 1)) if beats else {}


def _read(store: Store, path: str) -> dict[str, Any]:
    try:
        return store.read_json(path)
    except FileNotFoundError:
        return {}
