"""Nodes without processes, for conductors: they join, and have trained as soon as a conductor asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from data_contracts.errors import StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.messages.gang import Joined, Launch, NodeExit, RankAnswer, RankEnd, RankReport
from data_contracts.pipeline_spec import RetrySpec
from infra.gang.conductor import GangOutcome, TrainingRequest, conduct
from infra.gang.node import Start
from infra.store import Store, layout
from tests.support.coded import publish

TRAINING = "trainings/k-0"


class SilentNode:
    """A node that never joins; `status` is what its launcher says of it."""

    def __init__(self, status: str = "", printed: str = "") -> None:
        self._status, self._printed = status, printed

    def ended(self) -> str | None:
        return None

    def runs_here(self) -> bool:
        return False

    def log(self) -> str:
        return self._printed

    def status(self) -> str:
        return self._status

    def kill(self) -> None: ...


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
    """Joins at once, trains as soon as the roll-call is there, and ends well or with an error.

    Args:
        end: an error, whose detail `made` names the steps of checkpoints that were made before it; or what rank 0
            says of the weights that it began with.
        steps: those with checkpoints, if it ends well.
        wait: called before it trains.
    """

    def __init__(
        self,
        store: Store,
        generation: int,
        node: int = 0,
        *,
        end: TrainwrightError | str = "",
        steps: tuple[int, ...] = (5, 10),
        host: str = "h",
        wait: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self.store, self.place, self.end, self.steps, self.wait = store, (TRAINING, generation, node), end, steps, wait
        self.trained = False
        joined = Joined(node=node, address="127.0.0.1", port=1, host=host)
        publish(store, layout.joined(*self.place), joined)

    def ended(self) -> str | None:
        _, generation, _ = self.place
        if not self.trained and self.store.exists(layout.rollcall(TRAINING, generation)):
            self.trained = True
            self.wait()
            self.train(self.store.read_as(layout.launch(TRAINING, generation), Launch.from_json))
        return None

    def train(self, launch: Launch) -> None:
        steps = self.end.details.pop("made", ()) if isinstance(self.end, TrainwrightError) else self.steps
        begin = launch.resume.step if launch.resume else 0
        made = [seal(self.store, step, launch.generation) for step in steps if step > begin]
        report = RankReport(rank=0, step=10, micro_batch=4, checkpoints=made)
        if isinstance(self.end, TrainwrightError):
            record = NodeExit(status="failed", error=self.end.to_json(), ranks=[RankEnd(rank=0, report=report)])
        else:
            plan = {"dropped_rows": 3, "wait_share": 0.25, "wait_cause": "decoding", "begun_with": self.end}
            answer = RankAnswer(checkpoint=made[-1] if made else launch.resume, plan=plan)
            record = NodeExit(status="done", ranks=[RankEnd(rank=0, report=report, done=answer)])
        publish(self.store, layout.node_exit(*self.place), record)


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
    store: Store, start: Start, *, launch: dict[str, Any] | None = None, retry: dict[str, int] | None = None,
    **options: Any,
) -> GangOutcome:  # fmt: skip
    """Conduct a training of one node, whose launches, retries and request are otherwise as named."""
    request = TrainingRequest(
        launch=Launch(**{"training": TRAINING, "nodes": 1, "devices": 1, "poll_s": 0.001, **(launch or {})}),
        holder="test",
        retry=RetrySpec(**(retry or {})),
        start=start,
        **{"keep": 2, "select": None, "rollcall_timeout_s": 30, **options},
    )
    return conduct(store, request)
