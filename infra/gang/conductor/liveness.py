"""Detect hung ranks, stragglers and cut links of a generation from its nodes' heartbeats.

A live process may still make no progress. Each rank reports how much it has done and where it is. A rank that
stops in its own work keeps all others waiting inside a collective, so a waiting rank is never blamed. See
docs/adr/0012.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field

from data_contracts.errors import Hung, Interrupted, NodeLost
from data_contracts.messages.ranks import RankReport

# Where a rank waits for others, and where it may take long however short its steps are.
WAITING = frozenset(("collective", "backward"))
PATIENT = frozenset(("starting", "checkpoint", "hooks"))
# A rank is hung after this many times the longest step seen.
SLOWEST_TIMES = 10
# A straggler's own work takes this many times longer than the others', and at least this long, over this many
# micro-batches.
STRAGGLES_TIMES = 10
STRAGGLES_S = 0.02
WINDOW_STEPS = 5
# While there is no progress, a link that one end cannot use counts as cut after this time.
CUT_AFTER_S = 8.0


@dataclass
class Rank:
    """The known state of one rank.

    Attributes:
        node: name of its node.
        done: its last reported progress.
        moved: when `done` last changed.
        slowest_s: the longest time between two changes.
        state: state of its process; `T` if the process is stopped.
    """

    node: str
    done: tuple[int, ...] = ()
    moved: float = 0.0
    slowest_s: float = 0.0
    step: int = 0
    place: str = "starting"
    state: str = ""
    steps: int = 0
    own_s: float = 0.0
    since: tuple[int, float] = (0, 0.0)
    pace_s: float | None = None

    def stands(self) -> str:
        """The rank's node, place and step, as the end of a sentence."""
        what = "is stopped (SIGSTOP)" if self.state == "T" else f"stands still ({self.place})"
        return f"on {self.node} {what} at step {self.step}"


@dataclass
class Liveness:
    """Which of a generation's ranks make progress.

    Args:
        hang_s: seconds without progress after which a rank is hung.
        stall_s: the same limit before its first step, while a checkpoint is saved and in hooks between epochs.
        stopped_s: the same limit while its process is stopped.
    """

    hang_s: float
    stall_s: float
    stopped_s: float
    ranks: dict[int, Rank] = field(default_factory=dict)
    began: float = field(default_factory=lambda: time.monotonic())
    warned: set[int] = field(default_factory=set)

    def hear(self, report: RankReport, node: str) -> None:
        """Record a rank's report, as its node sent it."""
        now, known = time.monotonic(), self.ranks.setdefault(report.rank, Rank(node, moved=time.monotonic()))
        if report.phase == "done":
            self.ranks.pop(report.rank)
            return
        known.step, known.state = report.step, report.state
        # A report by an earlier version names checkpoints and does not count them.
        done = (report.step, report.num_checkpoints or len(report.checkpoints), report.moves)
        if done != known.done:
            if known.steps and report.place not in PATIENT and known.place not in PATIENT:
                known.slowest_s = max(known.slowest_s, now - known.moved)
            known.done, known.moved = done, now
        known.place, known.steps, known.own_s = report.place, report.steps, report.own_s
        steps, own_s = known.steps - known.since[0], known.own_s - known.since[1]
        if steps >= WINDOW_STEPS:
            known.pace_s, known.since = own_s / steps, (known.steps, known.own_s)

    def paused(self) -> None:
        """Restart all limits because the store was unreachable: silence counts only while the store answers."""
        self.began = time.monotonic()
        for rank in self.ranks.values():
            rank.moved = self.began

    @property
    def still_s(self) -> float:
        """Seconds since any rank last made progress."""
        return time.monotonic() - max([self.began, *(rank.moved for rank in self.ranks.values())])

    def stuck(self, cut: list[str], nodes: int) -> Interrupted | None:
        """Why the ranks make no progress; None while they make progress.

        Args:
            cut: the links that carry no data, as phrases for a sentence; the heartbeats of their ends still
                arrive.
            nodes: number of nodes.
        """
        if cut and self.still_s > CUT_AFTER_S:
            return link_cut(cut)
        now, slowest_s = time.monotonic(), self._slowest_s()
        behind = {
            number: rank
            for number, rank in self.ranks.items()
            if (rank.state == "T" or rank.place not in WAITING) and now - rank.moved > self._limit(rank, slowest_s)
        }
        if behind:
            # The other ranks wait for this rank, or soon will.
            number = min(behind, key=lambda r: (behind[r].state != "T", behind[r].step, behind[r].moved, r))
            rank = behind[number]
            return Hung(
                f"Rank {number} {rank.stands()} and has made no progress for {now - rank.moved:.0f} s.",
                remedy="Resume; if it stands there again, look at its stack in its log and at the batch that it reads.",
                details={"rank": number, "step": rank.step},
            )
        if self.ranks and all(rank.place in WAITING for rank in self.ranks.values()):
            return self._deadlock(nodes, slowest_s)
        if not self.ranks and self.still_s > self.stall_s:
            return Hung(
                f"No rank has made progress for {self.still_s:.0f} s.", remedy="Resume; look at the nodes' logs."
            )
        return None

    def straggler(self) -> str:
        """A sentence about a newly found rank whose own work takes far longer than the others'; "" if there is none."""
        paces = {number: rank.pace_s for number, rank in self.ranks.items() if rank.pace_s is not None}
        if len(paces) < max(2, len(self.ranks)):
            return ""
        in_order = sorted(paces.values())
        for number, pace_s in paces.items():
            if number in self.warned or pace_s < STRAGGLES_S:
                continue
            usual = _median_without(in_order, pace_s)
            if pace_s > STRAGGLES_TIMES * usual:
                self.warned.add(number)
                return (
                    f"rank {number} on {self.ranks[number].node} is a straggler: its own work takes {pace_s:.3g} s per "
                    f"micro-batch, that of the others {usual:.3g} s; all wait for it"
                )
        return ""

    def _slowest_s(self) -> float:
        """The longest step of any rank; computed once for all ranks, because there may be thousands."""
        return max((rank.slowest_s for rank in self.ranks.values()), default=0.0)

    def _limit(self, rank: Rank, slowest_s: float) -> float:
        if rank.state == "T":
            return self.stopped_s
        if rank.place in PATIENT or not rank.steps:
            return self.stall_s
        return min(self.stall_s, max(self.hang_s, SLOWEST_TIMES * slowest_s))

    def _deadlock(self, nodes: int, slowest_s: float) -> Interrupted | None:
        if self.still_s <= max(self._limit(rank, slowest_s) for rank in self.ranks.values()):
            return None
        where = ", ".join(f"{number} at step {rank.step}" for number, rank in sorted(self.ranks.items())[:16])
        between = "a link between their nodes carries nothing, or " if nodes > 1 else ""
        return Hung(
            f"All ranks wait for each other inside a collective for {self.still_s:.0f} s (rank {where}).",
            remedy=f"Resume; if it comes again, {between}the module calls collectives on some ranks alone.",
            # The error names no rank: the faulty one is unknown, and a node that is named has its failures counted.
            details={"step": min(rank.step for rank in self.ranks.values())},
        )


def _median_without(in_order: list[float], value: float) -> float:
    """The median of sorted values without one of them, `value`."""
    place, count = bisect.bisect_left(in_order, value), len(in_order) - 1
    middle = [(count - 1) // 2, count // 2]
    low, high = (in_order[at + (at >= place)] for at in middle)
    return (low + high) / 2


def link_cut(cut: list[str]) -> NodeLost:
    """The error for links that carry no data while the heartbeats of both ends arrive."""
    return NodeLost(
        f"The link {'; the link '.join(cut)} is cut, while the heartbeats of both ends arrive.",
        remedy="Resume; look at the network between these nodes, and at firewalls.",
        details={"links": cut},
    )
