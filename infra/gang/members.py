"""The nodes of one generation as its conductor knows them: who may take part, and whose error is the cause.

Hung ranks, stragglers and cut links show in the nodes' heartbeats. A live process may still make no progress. Each rank
reports how much it has done and where it is. A rank that stops in its own work keeps all others waiting inside a
collective, so a waiting rank is never blamed. See docs/adr/0012.
"""

from __future__ import annotations

import bisect
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from data_contracts.costs import Resources
from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Diverged,
    Fenced,
    GangIncomplete,
    Hung,
    Interrupted,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
    from_json,
)
from data_contracts.executions import LONGEST_S, GangUsage, NodeUsage
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import (
    Heartbeat,
    Joined,
    Launch,
    NodeExit,
    RankAnswer,
    RankEnd,
    RankReport,
    reports_of,
    used_by_node,
)
from infra.gang.membership import Membership
from infra.processes.this_process import wall_s

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
# Which of several nodes' errors is the cause. When user code fails on one node, its peers lose their connections; the
# reverse does not happen.
_PRECEDENCE = (
    Fenced,
    Cancelled,
    UserCodeError,
    UsageError,
    CorruptError,
    Preempted,
    StorageUnavailable,
    Hung,
    NodeLost,
)
# Between nodes, what comes later by this has come later.
LATER_S = 0.2
# The end of a node that was asked to stop is noticed within this time of its last word.
ASKED_S = 5.0
# A store that takes this long to answer was unreachable meanwhile; the layer below retried the request.
SLOW_S = 2.0
# Called with a node's number and its newest message.
OnMessage = Callable[[int, Heartbeat | NodeExit], None]


@dataclass
class Node:
    """A node that was launched.

    Attributes:
        joined: its answer to the roll-call; joined_at: when it came.
        exit: what the node said when it ended.
        lost: why the node is known to be gone.
        beat: its newest heartbeat.
        heard: when it was last heard of.
        clock_ahead_s: seconds by which its clock is ahead of the conductor's.
    """

    started: float
    released: float | None = None
    joined: Joined | None = None
    joined_at: float | None = None
    exit: NodeExit | None = None
    beat: Heartbeat | None = None
    heard: float = 0.0
    clock_ahead_s: float = 0.0
    lost: TrainwrightError | None = None

    @property
    def over(self) -> bool:
        """Whether the node has ended, with or without an error."""
        return self.exit is not None or self.lost is not None

    @property
    def is_done(self) -> bool:
        """Whether all its ranks have trained to the end."""
        return self.exit is not None and self.exit.status == "done"

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error."""
        return self.exit is not None and self.exit.status == "failed"

    @property
    def host(self) -> str:
        """Name of the node's machine; "" before it joined."""
        return "" if self.joined is None else self.joined.host


class Members:
    """The nodes of one generation, from its launch.

    Args:
        membership: knows what runs them.

    Attributes:
        nodes: all nodes that were started, in the order of their numbers.
        gang: the nodes that the roll-call fixed, by number.
    """

    def __init__(self, launch: Launch, membership: Membership) -> None:
        self._launch, self._membership = launch, membership
        self.nodes: list[Node] = []
        self.gang: dict[int, Node] = {}

    def unstarted(self) -> range:
        """Numbers of the nodes that are still to be started.

        A node whose run was taken by a host that is left out needs a replacement, so one more number is returned
        for it. The first node stays until all nodes have joined: its host would be free otherwise, and would take
        the replacement's run, too.
        """
        taken = sum(node.host in self._launch.left_out for node in self.nodes)
        return range(len(self.nodes), self._launch.nodes + min(taken, len(self._launch.left_out)))

    def joined(self) -> dict[int, Node]:
        """The nodes that have joined and may take part."""
        return {number: node for number, node in enumerate(self.nodes) if self._takes_part(node)}

    def incomplete(self, timeout_s: float) -> GangIncomplete:
        """The error for a roll-call that too few nodes have answered; it names the nodes that are missing."""
        missing = [self.named(number) for number, node in enumerate(self.nodes) if not self._takes_part(node)]
        logs = [self._membership.log(number) for number, node in enumerate(self.nodes) if node.joined is None]
        came = [node.host for node in self.nodes if node.joined is not None]
        if came and all(host in self._launch.left_out for host in came):
            sentence = f"Every node that answered the roll-call of generation {self._launch.generation} is left out: "
            return GangIncomplete(
                f"{sentence}{', '.join(sorted(set(came)))}.",
                remedy="`trainwright nodes` says which are drained, and `trainwright restore NODE` lets one take part.",
                details={"missing": missing, "log": "\n".join(logs)},
            )
        return GangIncomplete(
            f"Node {', '.join(missing)} of {self._launch.nodes} had not answered the roll-call of generation "
            f"{self._launch.generation} after {timeout_s:g} s.",
            details={"missing": missing, "log": "\n".join(logs)},
        )

    def fix(self) -> dict[int, Node]:
        """Fix the gang: as many of the joined nodes as can share the global batch evenly."""
        joined = self.joined()
        self.gang = dict(list(joined.items())[: self.fitting(len(joined)) or len(joined)])
        return self.gang

    def active(self) -> dict[int, Node]:
        """The gang; before the gang is fixed, all nodes that were started."""
        return self.gang or dict(enumerate(self.nodes))

    def ends(self) -> list[RankEnd]:
        """What each rank left, of the nodes of the gang that have ended."""
        return [end for node in self.gang.values() if node.exit is not None for end in node.exit.ranks]

    def could_be(self) -> int:
        """The gang's size if it included the nodes that have joined since it was fixed."""
        return self.fitting(len(self.gang.keys() | self.joined().keys()))

    def fitting(self, joined: int) -> int:
        """The largest number of `joined` nodes that can train together; 0 if there are too few."""
        return fitting(self._launch, min(joined, self._launch.nodes), self._launch.least_nodes)

    def called(self, number: int) -> str:
        """A node's name in messages."""
        return called(number, self.nodes[number])

    def named(self, number: int) -> str:
        """The name of a node that takes no part, with the reason that its launcher gives."""
        node = self.nodes[number]
        reason = f"{node.host} is left out" if node.host in self._launch.left_out else self._membership.status(number)
        return f"{number} ({reason})" if reason else str(number)

    def cut_links(self, since: float) -> list[str]:
        """Links of the gang that one end cannot use, while both ends have been heard since `since`."""
        heard = [number for number, node in self.gang.items() if not node.over and node.heard > since]
        return links_between(self.gang, heard)

    def cause(self) -> TrainwrightError:
        """The error that caused the others."""
        cause = first_cause(self.active().values())
        # Connections broke, and no node ended first: which nodes can reach each other says more.
        cut = links_between(self.gang, self.gang) if cause.details.get("link") else []
        return link_cut(cut) if cut else self.with_place(cause)

    def is_unexplained(self, since: float) -> bool:
        """Whether connections broke with no known cause while a node is silent since `since`: it may be gone."""
        silent = any(not node.over and node.heard < since for node in self.gang.values())
        return silent and bool(first_cause(self.gang.values()).details.get("link"))

    def placed(self, error: TrainwrightError) -> TrainwrightError:
        """The error, with the node of the rank that it names."""
        place = error.details.get("rank", -1) // self._launch.devices
        if 0 <= place < len(self.gang):
            error.details.setdefault("node", list(self.gang)[place])
        return error

    def with_place(self, error: TrainwrightError) -> TrainwrightError:
        """The error, whose sentence names the rank and the node that failed, unless it was not theirs alone."""
        shared = isinstance(error, Fenced | Cancelled | Preempted | Diverged | UsageError) or error.details.get("link")
        ranks = error.details.get("ranks", []) if isinstance(error, CorruptError) else [error.details.get("rank")]
        if shared or len(ranks) != 1:
            return error
        active = list(self.active())
        place = -1 if ranks[0] is None else ranks[0] // self._launch.devices
        number = active[place] if 0 <= place < len(active) else error.details.get("node")
        places = [f"rank {ranks[0]}"] if place >= 0 and len(active) * self._launch.devices > 1 else []
        places += [self.called(number)] if number in active and len(active) > 1 else []
        unnamed = [name for name in places if name.partition(" (")[0] not in error.message.lower()]
        json, sentence = error.to_json(), error.message.removesuffix(".")
        return from_json({**json, "message": f"{sentence} ({' on '.join(unnamed)})."}) if unnamed else error

    def _takes_part(self, node: Node) -> bool:
        return node.joined is not None and not node.over and node.host not in self._launch.left_out


def called(number: int, node: Node) -> str:
    """A node's name in messages."""
    return f"node {number} ({node.host})" if node.host else f"node {number}"


def fitting(launch: Launch, most: int, least: int) -> int:
    """The most nodes, from `least` to `most`, whose ranks share the global batch evenly; 0 if no number fits."""
    batch = launch.global_batch_size
    return next((n for n in range(most, least - 1, -1) if n and batch % (n * launch.devices) == 0), 0)


def links_between(nodes: Mapping[int, Node], heard: Iterable[int]) -> list[str]:
    """Links that one of their ends cannot use. Both ends of each link are among `heard`."""
    ends = set(heard)
    beats = {n: nodes[n].beat for n in ends}
    pairs = {(min(n, far), max(n, far)) for n, beat in beats.items() if beat for far in beat.unreachable if far in ends}
    return [f"between {called(a, nodes[a])} and {called(b, nodes[b])}" for a, b in sorted(pairs)]


def link_cut(cut: list[str]) -> NodeLost:
    """The error for links that carry no data while the heartbeats of both ends arrive."""
    return NodeLost(
        f"The link {'; the link '.join(cut)} is cut, while the heartbeats of both ends arrive.",
        remedy="Resume; look at the network between these nodes, and at firewalls.",
        details={"links": cut},
    )


def first_cause(nodes: Iterable[Node]) -> TrainwrightError:
    """The error that caused the others: a lost supervisor; else the first by `_PRECEDENCE`, then by time.

    A lost supervisor is a consequence if its gang was asked to stop before it was last heard of, unless a scheduler is
    sure that its machine failed. What a scheduler says of nodes that said nothing counts as their own word. An error
    about a connection is a consequence of any other.
    """
    known = list(nodes)
    said = [(node, from_json(node.exit.error)) for node in known if node.exit and node.exit.error]
    said += [(node, node.lost) for node in known if node.lost is not None and not isinstance(node.lost, NodeLost)]
    gone = sorted((node for node in known if isinstance(node.lost, NodeLost)), key=lambda node: node.heard)
    if gone:
        is_sure = any(node.lost is not None and node.lost.details.get("is_sure") for node in gone)
        before = -1.0 if is_sure else gone[0].heard + ASKED_S
        said = [
            (node, error)
            for node, error in said
            if isinstance(error, Fenced | Cancelled | Preempted) and node.heard <= before
        ]
        if not said:
            return _gone(gone, known)

    def when(node: Node, error: TrainwrightError) -> float:
        return float(error.details.get("when", 0.0)) - node.clock_ahead_s

    ended = [when(*entry) for entry in said if isinstance(entry[1], NodeLost) and not entry[1].details.get("link")]

    def rank(entry: tuple[Node, TrainwrightError]) -> tuple[bool, bool, int, float]:
        node, error = entry
        # What the user's code raises well after another node's rank has died is as good as an error about a connection.
        is_late = type(error) is UserCodeError and when(node, error) > min(ended, default=when(node, error)) + LATER_S
        # An internal error ranks before the failures that it causes on other nodes.
        places = [place for place, kind in enumerate(_PRECEDENCE) if isinstance(error, kind)]
        place = places[0] if places else _PRECEDENCE.index(UsageError)
        return bool(error.details.get("link")), is_late, place, when(node, error)

    return min(said, key=rank)[1]


def _gone(gone: list[Node], nodes: list[Node]) -> TrainwrightError:
    """The error of the node that is gone longest; of none if all went at once, as with their cluster or its network."""
    first = gone[0].lost
    assert first is not None, "it is gone"
    if len(gone) == len(nodes) > 1 and gone[-1].heard - gone[0].heard <= ASKED_S:
        first.details.pop("node", None)
    return first


@dataclass(frozen=True)
class Progress:
    """How far a training has got.

    Attributes:
        phase: `waiting` (another conductor trains it), `starting`, `training` or `ended` (of this generation).
        checkpoint_step: step of the newest committed checkpoint; -1 if there is none.
        sentence: what a person should know beyond the figures, such as why a generation ended; else "".
        cause: why the generation failed that has ended, and is followed by another; "" if it only grows.
        node_seconds: used by the training so far, including this conductor's earlier generations.
    """

    generation: int
    phase: str
    step: int = 0
    epoch: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint_step: int = -1
    sentence: str = ""
    cause: str = ""
    node_seconds: float = field(default=0.0, compare=False)


class RankReports:
    """What the ranks of one generation have reported so far.

    Args:
        commit: commits a checkpoint.
        say: shows fields of `Progress`; those that are left out keep their values.

    Attributes:
        liveness: which ranks make progress.
        micro_batch: rows that a device takes at once; 0 while unknown.
        checkpoint_step: step of the newest committed checkpoint of this generation; -1 if there is none.
    """

    def __init__(self, launch: Launch, commit: Callable[[Checkpoint], None], say: Callable[..., None]) -> None:
        self.liveness = Liveness(launch.hang_s, launch.stall_s, launch.silence_s)
        self.micro_batch = 0
        self.checkpoint_step = -1
        self._launch, self._commit, self._say = launch, commit, say
        self._begun_with = ""
        self._kinds: dict[str, str] = {}

    def take_in(self, reports: Sequence[RankReport], node: str) -> None:
        """Take in the reports of the ranks of `node`, its name in messages.

        Raises: UsageError if ranks compute on devices of several kinds: each step would take as long as on the slowest.
        """
        for report in reports:
            self._note_device(report, node)
            self.liveness.hear(report, node)
            self.micro_batch = report.micro_batch or self.micro_batch
            for checkpoint in report.checkpoints:
                self.commit(checkpoint)
            if report.rank == 0:
                self._show(report)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commit a checkpoint that this generation wrote; CorruptError if it cannot have written it."""
        generation = self._launch.generation
        if checkpoint.training != self._launch.training or checkpoint.generation > generation:
            raise CorruptError(f"{checkpoint.ref.uri} was reported by generation {generation}, which did not write it.")
        if checkpoint.generation < generation:
            # This generation resumed from it at the last step. Older checkpoints left uncommitted are never read.
            return
        self._commit(checkpoint)
        if checkpoint.step > self.checkpoint_step:
            self.checkpoint_step = checkpoint.step
            self._say(checkpoint_step=checkpoint.step)

    def _note_device(self, report: RankReport, node: str) -> None:
        if not report.device:
            return
        # Of `cuda:3 (NVIDIA H200)`, all but the number.
        self._kinds.setdefault(re.sub(r":\d+", "", report.device, count=1), f"rank {report.rank} on {node}")
        if len(self._kinds) > 1:
            where = "; ".join(f"{who} on {kind}" for kind, who in self._kinds.items())
            raise UsageError(
                f"The ranks compute on different devices: {where}.",
                remedy="Choose machines with one kind by the launcher's pool, queue or job_variables.",
            )

    def _show(self, report: RankReport) -> None:
        self._say(step=report.step, epoch=report.epoch, samples=report.samples, metrics=report.metrics)
        if report.waits_for:
            self._say(sentence=f"waiting: {report.waits_for}")
        if report.begun_with != self._begun_with:
            self._begun_with = report.begun_with
            self._say(sentence=f"init_from: {self._begun_with}")


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

    def laggard(self) -> Hung | None:
        """The rank for which all others waited until a collective timed out; None if that is not one rank."""
        working = {number: rank for number, rank in self.ranks.items() if rank.place not in WAITING}
        # A checkpoint waits for its store.
        if len(working) != 1 or len(self.ranks) < 2 or any(rank.place == "checkpoint" for rank in working.values()):
            return None
        ((number, rank),) = working.items()
        return Hung(
            f"Rank {number} {rank.stands()}, and the other ranks have waited for it in vain.",
            remedy="Resume; if it comes again, look at what this rank does there, and at train.collective_timeout_s.",
            details={"rank": number, "step": rank.step},
        )

    def straggler(self) -> str:
        """A sentence about a newly found rank whose own work takes far longer than the others'; "" if there is none."""
        paces = {number: rank.pace_s for number, rank in self.ranks.items() if rank.pace_s is not None}
        if len(paces) < max(2, len(self.ranks)):
            return ""
        in_order = sorted(paces.values())
        # The others' median is never less than this.
        least_s = max(STRAGGLES_S, STRAGGLES_TIMES * in_order[len(in_order) // 2 - 1])
        for number, pace_s in paces.items():
            if number in self.warned or pace_s < least_s:
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
        still_s = self.still_s
        # No limit is shorter than these two; there may be thousands of ranks.
        if still_s <= min(self.hang_s, self.stopped_s, self.stall_s) or still_s <= max(
            self._limit(rank, slowest_s) for rank in self.ranks.values()
        ):
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

    def _node(self, number: int, node: Node) -> NodeUsage:
        seen = self._seen.get(number)
        released = time.monotonic() if node.released is None else node.released
        return NodeUsage(
            number=number,
            started=wall_s(node.started),
            released=wall_s(released),
            joined=self._at(node.joined_at),
            working=None if seen is None else self._at(seen.working),
            stopped=None if seen is None else self._at(seen.stopped),
            waited_s=0.0 if seen is None else seen.waited_s,
            saved_s=0.0 if seen is None else seen.saved_s,
            used=self._used.get(number),
            gpus=None if node.exit is None else node.exit.gpus,
        )

    def _at(self, moment: float | None) -> float | None:
        return None if moment is None else wall_s(moment)
