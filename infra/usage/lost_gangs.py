"""A generation whose conductor was killed before it recorded it, as the records of its nodes tell it."""

from __future__ import annotations

from data_contracts.costs.usage import GangUsage, NodeUsage
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Heartbeat, Joined, Latest, Launch, NodeExit, reports_of, used_by_node
from infra.store import Store, layout
from infra.store.records import parsed


def gang_by_its_nodes(store: Store, where: str, number: int, run_id: str) -> GangUsage | None:
    """Generation `number` of a training or job, by its nodes' own clocks; None if another run launched it.

    A node that was killed, too, is counted up to its last heartbeat.
    """
    launch = store.read_as(layout.launch(where, number), Launch.from_json)
    if launch.provenance.get("run_id", run_id) != run_id:
        return None
    begin = launch.resume or launch.begin
    first = 0 if begin is None else begin.step
    names = [name for name in store.list(layout.generation(where, number)) if name.startswith("node-")]
    found = [_node(store, (where, number, place), first) for place in _numbers(names)]
    nodes = [one for one in found if one is not None]
    if not nodes:
        return None
    last = max(step for _, step, _ in nodes)
    ended = next((end for _, _, end in nodes if end != "done"), "done")
    kept = last if ended == "done" else max([first, *(one.step for one in _kept(store, where) if one.step <= last)])
    return GangUsage(
        stage="",
        where=where,
        generation=number,
        local=False,
        nodes=[node for node, _, _ in nodes],
        met=max((node.joined for node, _, _ in nodes if node.joined is not None), default=None),
        ended=ended,
        first_step=first,
        last_step=last,
        kept_step=kept,
    )


def _node(store: Store, place: tuple[str, int, int], first: int) -> tuple[NodeUsage, int, str] | None:
    """A node, its last step and how it ended; None if it left no record."""
    joined = store.find_as(layout.joined(*place), Joined.from_json)
    ended = store.find_as(layout.node_exit(*place), NodeExit.from_json)
    if joined is None and ended is None:
        return None
    beat = Heartbeat() if ended is not None else _last_beat(store, place)
    message = beat if ended is None else ended
    step = max([first, *(report.step for report in reports_of(message))])
    answered = None if joined is None else joined.time
    started = (answered or 0.0) if ended is None else ended.started
    released = max(started, beat.time if ended is None else ended.released)
    words = {
        "number": place[2],
        "started": started,
        "released": released,
        "joined": answered,
        # When its steps began and ended is not known.
        "working": answered if step > first else None,
        "stopped": released if step > first else None,
        "used": used_by_node(message),
        "gpus": None if ended is None else ended.gpus,
    }
    node = parsed(layout.node(*place), NodeUsage.model_validate, words)
    how = "killed" if ended is None else "done" if ended.error is None else str(ended.error["cause"])
    return node, step, how


def _last_beat(store: Store, place: tuple[str, int, int]) -> Heartbeat:
    beats = [name for name in store.list(layout.node(*place)) if name.startswith("beat-")]
    last = None if not beats else store.find_as(layout.beat(*place, len(beats) - 1), Heartbeat.from_json)
    return last or Heartbeat()


def _kept(store: Store, where: str) -> list[Checkpoint]:
    pointer = store.pointer(layout.latest(where)).read()
    return [] if pointer is None else Latest.from_json(pointer.value).checkpoints


def _numbers(names: list[str]) -> list[int]:
    numbers = [name.removeprefix("node-") for name in names]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())
