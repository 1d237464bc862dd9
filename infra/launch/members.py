"""The nodes of one generation as its conductor knows them: who may take part, who is called what, whose end is why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Fenced,
    Hung,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
    from_json,
)
from infra.launch.local import Handle

# Which of several nodes' errors is the cause: a node's user code failing loses its peers their connections, not the
# other way round.
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
        joined, exit: what it wrote at the roll-call and at its end; lost: why it is known to be gone.
        beats: heartbeats read; heard: when the last one came.
        unreachable: nodes that it cannot connect to.
    """

    handle: Handle
    started: float
    released: float | None = None
    joined: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    beats: int = 0
    heard: float = 0.0
    lost: NodeLost | None = None
    unreachable: list[int] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.exit is not None or self.lost is not None

    @property
    def host(self) -> str:
        """Name of its machine; "" before it joined."""
        return str((self.joined or {}).get("host", ""))


class Members:
    """The nodes of one generation, from its launch.

    Attributes:
        nodes: all that were started, in the order of their numbers; gang: those that the roll-call fixed, by number.
    """

    def __init__(self, launch: Mapping[str, Any]) -> None:
        self._launch = launch
        self.nodes: list[Node] = []
        self.gang: dict[int, Node] = {}

    @property
    def wanted(self) -> int:
        """How many are to train."""
        return int(self._launch["nodes"])

    @property
    def least(self) -> int:
        """How many must."""
        return min(self.wanted, int(self._launch.get("min_nodes", self.wanted)))

    def unstarted(self) -> range:
        """Numbers of the nodes that are still to be started.

        Beyond those that are wanted, one for each whose run was taken by a host that is left out. That one stays until
        all are there: its host, with nothing to do, would take the other's place, too.
        """
        taken = sum(node.host in self._barred for node in self.nodes)
        return range(len(self.nodes), self.wanted + min(taken, len(self._barred)))

    def joined(self) -> dict[int, Node]:
        """Those that have joined and may take part."""
        return {number: node for number, node in enumerate(self.nodes) if self._here(node)}

    def missing(self) -> list[str]:
        """Those that have not, named."""
        return [self.named(number) for number, node in enumerate(self.nodes) if not self._here(node)]

    def fix(self) -> dict[int, Node]:
        """The gang from here on: as many of those that have joined as share the global batch evenly."""
        joined = self.joined()
        self.gang = dict(list(joined.items())[: self.fitting(len(joined)) or len(joined)])
        return self.gang

    def active(self) -> dict[int, Node]:
        """The gang, and before it is fixed all that were started."""
        return self.gang or dict(enumerate(self.nodes))

    def late(self) -> dict[int, Node]:
        """Those without which the gang was fixed and that have not answered since."""
        return {n: node for n, node in enumerate(self.nodes) if n not in self.gang and node.joined is None}

    def could_be(self) -> int:
        """How large the gang could be with those that have come since it was fixed."""
        return self.fitting(len(self.gang.keys() | self.joined().keys()))

    def fitting(self, joined: int) -> int:
        """The most of them that can train together; 0 if too few."""
        return fitting(self._launch, min(joined, self.wanted), self.least)

    def called(self, number: int) -> str:
        """A node as people know it."""
        return called(number, self.nodes[number])

    def named(self, number: int) -> str:
        """A node that takes no part, with why: what its launcher says of it."""
        node = self.nodes[number]
        told = f"{node.host} is left out" if node.host in self._barred else node.handle.told()
        return f"{number} ({told})" if told else str(number)

    @property
    def _barred(self) -> list[str]:
        return list(self._launch.get("left_out", []))

    def _here(self, node: Node) -> bool:
        return node.joined is not None and not node.over and node.host not in self._barred


def called(number: int, node: Node) -> str:
    """A node as people know it."""
    return f"node {number} ({node.host})" if node.host else f"node {number}"


def fitting(launch: Mapping[str, Any], most: int, least: int) -> int:
    """The most nodes, of `least` to `most`, whose ranks share the global batch evenly; 0 if there is no such number."""
    batch, devices = int(launch.get("train", {}).get("global_batch_size", 0)), int(launch["devices"])
    return next((n for n in range(most, least - 1, -1) if n and batch % (n * devices) == 0), 0)


def links_between(nodes: Mapping[int, Node], heard: Iterable[int]) -> list[str]:
    """Links that one of their ends cannot use, of those whose ends are both among `heard`."""
    ends = set(heard)
    pairs = {(min(n, far), max(n, far)) for n in ends for far in nodes[n].unreachable if far in ends}
    return [f"between {called(a, nodes[a])} and {called(b, nodes[b])}" for a, b in sorted(pairs)]


def first_cause(nodes: Iterable[Node]) -> TrainwrightError:
    """The error that explains the others: a supervisor that vanished, else the first of `_PRECEDENCE`, then in time."""
    known = list(nodes)
    lost: list[TrainwrightError] = [node.lost for node in known if node.lost is not None]
    if lost:
        return lost[0]

    def rank(error: TrainwrightError) -> tuple[int, float]:
        # An internal error stands before the consequences that it has elsewhere.
        places = [place for place, kind in enumerate(_PRECEDENCE) if isinstance(error, kind)]
        return places[0] if places else _PRECEDENCE.index(UsageError), error.details.get("when", 0.0)

    return min((from_json(node.exit["error"]) for node in known if node.exit and node.exit["error"]), key=rank)
