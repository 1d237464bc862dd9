"""What the nodes of one generation did with their time, as their conductor saw it; costs follow from its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_contracts.costs.resources import Resources
from data_contracts.costs.usage import LONGEST_S, GangUsage, NodeUsage
from data_contracts.messages.gang import Heartbeat, Launch, NodeExit, reports_of, used_by_node
from data_contracts.messages.ranks import RankAnswer
from infra.gang.conductor.members import Node
from infra.gang.conductor.rank_reports import RankReports
from infra.processes.clock import PROCESS

# Called with a node's number and its newest message.
OnMessage = Callable[[int, Heartbeat | NodeExit], None]


@dataclass
class _Seen:
    """One node's steps so far; times are `time.monotonic`."""

    heard: float
    step: int
    working: float | None = None
    stopped: float | None = None
    waited_s: float = 0.0
    stalled_s: float = 0.0
    saved_s: float = 0.0


class Activity:
    """Follows the heartbeats of a generation's nodes.

    Args:
        nodes: all that were launched, as the generation keeps them.
        reports: know the newest committed checkpoint.

    Attributes:
        on_message: called with each message that was taken in.
        met: when the roll-call was complete (`time.monotonic`); None before.
        ended: `done`, or the cause of the generation's end; "" before.
    """

    def __init__(self, launch: Launch, nodes: Sequence[Node], reports: RankReports) -> None:
        self._launch, self._nodes, self._reports = launch, nodes, reports
        self.on_message: OnMessage = lambda node, message: None
        self._seen: dict[int, _Seen] = {}
        self._used: dict[int, Resources | None] = {}
        self.met: float | None = None
        self.ended = ""
        self._samples = self._steps_per_epoch = self._saves = 0
        self._stepping_s = 0.0
        begin = launch.resume or launch.begin
        self._first = 0 if begin is None else begin.step

    def note_done(self, answer: RankAnswer) -> RankAnswer:
        """Record that all nodes are done, and return rank 0's answer."""
        per_epoch, stepping_s = (answer.plan.get(name, 0) for name in ("steps_per_epoch", "stepping_s"))
        self.ended, self._steps_per_epoch = "done", per_epoch if isinstance(per_epoch, int) else 0
        if isinstance(stepping_s, int | float) and 0 <= stepping_s <= LONGEST_S:
            self._stepping_s = float(stepping_s)
        return answer

    def take_in(self, number: int, message: Heartbeat | NodeExit) -> None:
        """Take in a heartbeat, or the end, of node `number`."""
        self._used[number] = used_by_node(message)
        self._follow(number, message)
        self.on_message(number, message)

    def _follow(self, number: int, message: Heartbeat | NodeExit) -> None:
        now, reports = time.monotonic(), reports_of(message)
        if not reports:
            return
        seen = self._seen.setdefault(number, _Seen(now, self._first))
        step = max(report.step for report in reports)
        self._samples = max(self._samples, *(report.samples for report in reports))
        self._saves = max(self._saves, *(report.stalls for report in reports))
        since, seen.heard = now - seen.heard, now
        stalled_s = max(report.stalled_s for report in reports)
        saved_s, seen.stalled_s = max(stalled_s - seen.stalled_s, 0.0), max(stalled_s, seen.stalled_s)
        if seen.working is not None:
            seen.saved_s += saved_s
            seen.waited_s += since * min(max(sum(one.wait_share for one in reports) / len(reports), 0.0), 1.0)
        if step > seen.step:
            seen.step, seen.stopped = step, now
            seen.working = now if seen.working is None else seen.working

    def usage(self, local: bool) -> GangUsage:
        """The generation's record, once its nodes are released; `local`: they are processes on this machine."""
        last = max([self._first, *(seen.step for seen in self._seen.values())])
        return GangUsage(
            stage="",
            where=self._launch.training,
            generation=self._launch.generation,
            local=local,
            nodes=[self._node(number, node) for number, node in enumerate(self._nodes)],
            met=self._at(self.met),
            ended=self.ended,
            first_step=self._first,
            last_step=last,
            kept_step=last if self.ended == "done" else max(self._first, self._reports.checkpoint_step),
            samples=self._samples,
            steps_per_epoch=self._steps_per_epoch,
            stepping_s=self._stepping_s,
            saves=self._saves,
        )

    def _node(self, number: int, node: Node) -> NodeUsage:
        seen = self._seen.get(number)
        released = time.monotonic() if node.released is None else node.released
        return NodeUsage(
            number=number,
            started=PROCESS.at(node.started),
            released=PROCESS.at(released),
            joined=self._at(node.joined_at),
            working=None if seen is None else self._at(seen.working),
            stopped=None if seen is None else self._at(seen.stopped),
            waited_s=0.0 if seen is None else seen.waited_s,
            saved_s=0.0 if seen is None else seen.saved_s,
            used=self._used.get(number),
            gpus=None if node.exit is None else node.exit.gpus,
        )

    def _at(self, moment: float | None) -> float | None:
        return None if moment is None else PROCESS.at(moment)
