"""Nodes without processes, for conductors: they join, and have trained as soon as a conductor asks for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, cast

from data_contracts.errors import StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.messages.gang import (
    CancelMarker,
    Heartbeat,
    Joined,
    Launch,
    NodeExit,
    Place,
    RankAnswer,
    RankEnd,
    RankReport,
)
from data_contracts.pipeline_spec import RetrySpec
from infra.gang import members
from infra.gang.conductor import GangOutcome, TrainingRequest, conduct
from infra.gang.hub import Ended, Hub, News
from infra.gang.membership import Membership, SlotReservation
from infra.store import Store, layout

TRAINING = "trainings/k-0"


class SilentNode:
    """A node that never joins; `status` is what its launcher says of it."""

    joined: Joined | None = None

    def __init__(self, status: str = "", printed: str = "") -> None:
        self.status, self.printed = status, printed

    def train(self, launch: Launch) -> list[Heartbeat | NodeExit]:
        """What it says from its start to its end."""
        return []

    def kill(self) -> None: ...


class ScriptedNodes(Membership):
    """The nodes of a generation, each of which `make` makes; a test may say more for them."""

    def __init__(
        self, make: Callable[[int, int], SilentNode], store: Store, launch: Launch, hub: Hub | None = None
    ) -> None:
        super().__init__(store, launch, cast(Hub, hub))
        self.make, self.nodes, self.here = make, dict[int, SilentNode](), set[int]()
        self.told: list[tuple[int, Place | CancelMarker]] = []
        self._said: list[News] = []

    def say(self, node: int, message: Any, at: float | None = None) -> None:
        """Let a node say something; or end, by an `Ended`."""
        self._said.append(News(node, members.time.monotonic() if at is None else at, message))

    def start(self, nodes: Collection[int]) -> None:
        for node in nodes:
            if node not in self.nodes:
                self.nodes[node] = made = self.make(self.launch.generation, node)
                if made.joined is not None:
                    self.say(node, made.joined)

    def news(self) -> list[News]:
        said, self._said = self._said, []
        return said

    def tell(self, node: int, message: Place | CancelMarker) -> None:
        self.told.append((node, message))
        if isinstance(message, Place):
            for said in self.nodes[node].train(self.launch):
                self.say(node, said)

    def ended(self) -> Mapping[int, Ended]:
        return {}

    def status(self, node: int) -> str:
        return self.nodes[node].status if node in self.nodes else ""

    def log(self, node: int) -> str:
        return self.nodes[node].printed if node in self.nodes else ""

    def end(self, nodes: Collection[int]) -> None:
        with contextlib.ExitStack() as stack:
            for node in reversed(nodes):
                if node in self.nodes:
                    stack.callback(self.nodes[node].kill)

    def may_be_silent(self, node: int) -> bool:
        return node in self.here


class Launching:
    """A launcher whose generations are what `make` returns."""

    address = "127.0.0.1"

    def __init__(self, make: Callable[[Store, Launch, Hub], Membership], slots: SlotReservation | None = None) -> None:
        self.make, self.slots = make, slots

    def __call__(self, store: Store, launch: Launch, hub: Hub) -> Membership:
        return self.make(store, launch, hub)


def scripted(make: Callable[[int, int], SilentNode], slots: SlotReservation | None = None) -> Launching:
    """A launcher of such nodes."""
    return Launching(partial(ScriptedNodes, make), slots)


class Slots:
    """Slots of a work pool: `full` times there is no room; or, `away`, the server does not answer."""

    def __init__(self, *, full: int = 0, away: bool = False) -> None:
        self.full, self.away, self.asked = full, away, list[Any]()

    def take(self, nodes: int) -> str | None:
        if self.away:
            raise StorageUnavailable("the server is away.")
        self.asked.append(nodes)
        return "1 of 2 nodes is free" if len(self.asked) <= self.full else None

    def give_back(self) -> None:
        self.asked.append("back")


class ScriptedNode(SilentNode):
    """Joins at once, trains as soon as it has its place, and ends well or with an error.

    Args:
        end: an error, whose detail `made` names the steps of checkpoints that were made before it; what rank 0 says of
            the weights that it began with; or None: it only stays.
        steps: those with checkpoints, if it ends well.
        wait: called before it trains.
    """

    def __init__(
        self,
        store: Store,
        generation: int,
        node: int = 0,
        *,
        end: TrainwrightError | str | None = "",
        steps: tuple[int, ...] = (5, 10),
        host: str = "h",
        wait: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self.store, self.place, self.end, self.steps, self.wait = store, (TRAINING, generation, node), end, steps, wait
        self.joined = Joined(node=node, address="127.0.0.1", port=1, host=host)

    def train(self, launch: Launch) -> list[Heartbeat | NodeExit]:
        if self.end is None:
            return []
        self.wait()
        steps = self.end.details.pop("made", ()) if isinstance(self.end, TrainwrightError) else self.steps
        begin = launch.resume.step if launch.resume else 0
        made = [seal(self.store, step, launch.generation) for step in steps if step > begin]
        report = RankReport(rank=0, step=10, micro_batch=4, checkpoints=made)
        if isinstance(self.end, TrainwrightError):
            return [NodeExit(status="failed", error=self.end.to_json(), ranks=[RankEnd(rank=0, report=report)])]
        plan = {"dropped_rows": 3, "wait_share": 0.25, "wait_cause": "decoding", "begun_with": self.end}
        answer = RankAnswer(checkpoint=made[-1] if made else launch.resume, plan=plan)
        return [NodeExit(status="done", ranks=[RankEnd(rank=0, report=report, done=answer)])]


def unstored(step: int, generation: int = 0, training: str = TRAINING) -> Checkpoint:
    """A checkpoint that no store holds."""
    ref = Ref(uri=layout.checkpoint(training, step, generation), id="1" * 64, seal="2" * 64)
    return Checkpoint(ref=ref, key="k", training=training, step=step, epoch=0, generation=generation, world_size=1)


def seal(store: Store, step: int, generation: int = 0, training: str = TRAINING, **metrics: float) -> Checkpoint:
    """Seal a checkpoint of one file; by default one of `TRAINING`."""
    writer = store.writer(layout.checkpoint(training, step, generation))
    writer.put("state.json", str(step).encode())
    ref = writer.seal("checkpoint", {"step": step}, {})
    fields = {"training": training, "step": step, "epoch": 0, "generation": generation, "world_size": 1}
    return Checkpoint(ref=ref, key="k", metrics=metrics, dropped_rows=3, **fields)


def conduct_scripted(
    store: Store,
    make: Callable[[int, int], SilentNode],
    *,
    launch: dict[str, Any] | None = None,
    retry: dict[str, int] | None = None,
    **options: Any,
) -> GangOutcome:
    """Conduct a training of one node, whose launches, retries and request are otherwise as named."""
    request = TrainingRequest(
        launch=Launch(**{"training": TRAINING, "nodes": 1, "devices": 1, "poll_s": 0.001, **(launch or {})}),
        holder="test",
        retry=RetrySpec(**(retry or {})),
        launcher=scripted(make, options.pop("slots", None)),
        **{"keep": 2, "select": None, "rollcall_timeout_s": 30, **options},
    )
    return conduct(store, request)
