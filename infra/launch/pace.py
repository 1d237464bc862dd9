"""Whether the ranks of a generation get on, from what their nodes' heartbeats say: hung, stragglers, cut links.

A process that lives is no progress. Each rank tells how much it has done and where it is; one that stands still in its
own work keeps all others waiting inside a collective, so those are never blamed. See docs/adr/0012.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from data_contracts.errors import Hung, Interrupted, NodeLost

# Where a rank waits for others, and where it may take long whatever its steps take.
WAITING = frozenset(("collective", "backward"))
PATIENT = frozenset(("starting", "checkpoint", "hooks"))
# A rank is hung after so many times the slowest step seen.
SLOWEST_TIMES = 10
# A straggler's own work takes so many times that of the others, and at least so long, over so many micro-batches.
STRAGGLES_TIMES = 10
STRAGGLES_S = 0.02
WINDOW_STEPS = 5
# Without progress, a link that its ends cannot use is believed to be cut after this.
CUT_AFTER_S = 8.0


@dataclass
class Rank:
    """What is known of one rank.

    Attributes:
        node: its node, named.
        done: what it has done so far; moved: when that last changed; slowest_s: the longest that took.
        state: of its process: `T` where it is stopped.
    """

    node: str
    done: tuple[Any, ...] = ()
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
        """Where it stands, as the end of a sentence."""
        what = "is stopped (SIGSTOP)" if self.state == "T" else f"stands still ({self.place})"
        return f"on {self.node} {what} at step {self.step}"


@dataclass
class Pace:
    """The ranks of a generation.

    Args:
        hang_s: without progress in its steps a rank is hung; stall_s: the same before its first step, while a
            checkpoint is saved and in hooks between epochs; stopped_s: the same where its process is stopped.
    """

    hang_s: float
    stall_s: float
    stopped_s: float
    ranks: dict[int, Rank] = field(default_factory=dict)
    began: float = field(default_factory=lambda: time.monotonic())
    warned: set[int] = field(default_factory=set)

    def hear(self, report: dict[str, Any], node: str) -> None:
        """Take in what a rank's node says of it."""
        now, known = time.monotonic(), self.ranks.setdefault(report["rank"], Rank(node, moved=time.monotonic()))
        if report.get("phase") == "done":
            self.ranks.pop(report["rank"])
            return
        known.step, known.state = report.get("step", 0), report.get("state", "")
        done = (known.step, len(report.get("checkpoints", [])), report.get("moves", 0))
        place = report.get("place", "between")
        if done != known.done:
            if known.steps and place not in PATIENT and known.place not in PATIENT:
                known.slowest_s = max(known.slowest_s, now - known.moved)
            known.done, known.moved = done, now
        known.place, known.steps, known.own_s = place, report.get("steps", known.step), report.get("own_s", 0.0)
        steps, own_s = known.steps - known.since[0], known.own_s - known.since[1]
        if steps >= WINDOW_STEPS:
            known.pace_s, known.since = own_s / steps, (known.steps, known.own_s)

    def paused(self) -> None:
        """Nothing could be heard until now: silence counts only while the store answers."""
        self.began = time.monotonic()
        for rank in self.ranks.values():
            rank.moved = self.began

    @property
    def still_s(self) -> float:
        """For how long nobody has done anything."""
        return time.monotonic() - max([self.began, *(rank.moved for rank in self.ranks.values())])

    def stuck(self, cut: list[str], nodes: int) -> Interrupted | None:
        """Why the ranks do not get on; None while they do.

        Args:
            cut: links that do not carry, as sentences' subjects; their ends' heartbeats go on.
            nodes: how many there are.
        """
        if cut and self.still_s > CUT_AFTER_S:
            return link_cut(cut)
        now = time.monotonic()
        behind = {
            number: rank
            for number, rank in self.ranks.items()
            if (rank.state == "T" or rank.place not in WAITING) and now - rank.moved > self._limit(rank)
        }
        if behind:
            # The others wait for it, or are about to.
            number = min(behind, key=lambda r: (behind[r].state != "T", behind[r].step, behind[r].moved, r))
            rank = behind[number]
            return Hung(
                f"Rank {number} {rank.stands()} and did nothing for {now - rank.moved:.0f} s.",
                remedy="Resume; if it stands there again, look at its stack in its log and at the batch that it reads.",
                details={"rank": number, "step": rank.step},
            )
        if self.ranks and all(rank.place in WAITING for rank in self.ranks.values()):
            return self._deadlock(nodes)
        if not self.ranks and self.still_s > self.stall_s:
            return Hung(
                f"No rank has done anything for {self.still_s:.0f} s.", remedy="Resume; look at the nodes' logs."
            )
        return None

    def straggler(self) -> str:
        """A sentence about a rank whose own work takes far longer than the others'; "" if there is none that is new."""
        paces = {number: rank.pace_s for number, rank in self.ranks.items() if rank.pace_s is not None}
        for number, pace_s in paces.items():
            others = [other for rank, other in paces.items() if rank != number]
            if number in self.warned or len(others) < max(1, len(self.ranks) - 1) or pace_s < STRAGGLES_S:
                continue
            usual = statistics.median(others)
            if pace_s > STRAGGLES_TIMES * usual:
                self.warned.add(number)
                return (
                    f"rank {number} on {self.ranks[number].node} is a straggler: its own work takes {pace_s:.3g} s per "
                    f"micro-batch, that of the others {usual:.3g} s; all wait for it"
                )
        return ""

    def _limit(self, rank: Rank) -> float:
        if rank.state == "T":
            return self.stopped_s
        if rank.place in PATIENT or not rank.steps:
            return self.stall_s
        slowest = max(each.slowest_s for each in self.ranks.values())
        return min(self.stall_s, max(self.hang_s, SLOWEST_TIMES * slowest))

    def _deadlock(self, nodes: int) -> Interrupted | None:
        if self.still_s <= max(self._limit(rank) for rank in self.ranks.values()):
            return None
        where = ", ".join(f"{number} at step {rank.step}" for number, rank in sorted(self.ranks.items())[:16])
        between = "a link between their nodes carries nothing, or " if nodes > 1 else ""
        return Hung(
            f"All ranks wait for each other inside a collective for {self.still_s:.0f} s (rank {where}).",
            remedy=f"Resume; if it comes again, {between}the module calls collectives on some ranks alone.",
            # No rank: nobody knows whose fault it is, and a node that is named is counted.
            details={"step": min(rank.step for rank in self.ranks.values())},
        )


def link_cut(cut: list[str]) -> NodeLost:
    """The error for links that do not carry while the heartbeats of both ends arrive."""
    return NodeLost(
        f"The link {'; the link '.join(cut)} is cut, while the heartbeats of both ends arrive.",
        remedy="Resume; look at the network between these nodes, and at firewalls.",
        details={"links": cut},
    )
