"""The nodes of one generation as its conductor knows them: who may take part, and whose error is the cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Fenced,
    GangIncomplete,
    Hung,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
    from_json,
)
from data_contracts.messages.gang import Joined, Launch, NodeExit
from data_contracts.messages.ranks import RankEnd
from infra.gang.conductor.liveness import link_cut
from infra.gang.node.local import Handle

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


@dataclass
class Node:
    """A node that was launched.

    Attributes:
        joined: what the node wrote at the roll-call; joined_at: when it was read.
        exit: what the node wrote when it ended.
        lost: why the node is known to be gone.
        beats: number of heartbeats read.
        heard: when the last heartbeat was read.
        unreachable: nodes that this node cannot connect to.
    """

    handle: Handle
    started: float
    released: float | None = None
    joined: Joined | None = None
    joined_at: float | None = None
    exit: NodeExit | None = None
    beats: int = 0
    heard: float = 0.0
    lost: NodeLost | None = None
    unreachable: list[int] = field(default_factory=list)

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

    Attributes:
        nodes: all nodes that were started, in the order of their numbers.
        gang: the nodes that the roll-call fixed, by number.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
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
        logs = [node.handle.log() for node in self.nodes if node.joined is None]
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

    def late(self) -> dict[int, Node]:
        """Nodes that are not in the gang and have not answered the roll-call yet."""
        return {n: node for n, node in enumerate(self.nodes) if n not in self.gang and node.joined is None}

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
        reason = f"{node.host} is left out" if node.host in self._launch.left_out else node.handle.status()
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
        return link_cut(cut) if cut else cause

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
    pairs = {(min(n, far), max(n, far)) for n in ends for far in nodes[n].unreachable if far in ends}
    return [f"between {called(a, nodes[a])} and {called(b, nodes[b])}" for a, b in sorted(pairs)]


def first_cause(nodes: Iterable[Node]) -> TrainwrightError:
    """The error that caused the others: a lost supervisor; else the first by `_PRECEDENCE`, then by time."""
    known = list(nodes)
    lost: list[TrainwrightError] = [node.lost for node in known if node.lost is not None]
    if lost:
        return lost[0]

    def rank(error: TrainwrightError) -> tuple[int, float]:
        # An internal error ranks before the failures that it causes on other nodes.
        places = [place for place, kind in enumerate(_PRECEDENCE) if isinstance(error, kind)]
        return places[0] if places else _PRECEDENCE.index(UsageError), error.details.get("when", 0.0)

    return min((from_json(node.exit.error) for node in known if node.exit and node.exit.error), key=rank)
