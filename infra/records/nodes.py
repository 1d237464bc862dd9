"""What a store knows of nodes: created once each, so it outlives the run and the conductor that saw it.

A node is known by the name that its supervisor states. Nothing proves the name, and nothing proves that whoever wrote a
record told the truth (ADR 0050).
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import get_args

from data_contracts.canonical import digest, is_name
from data_contracts.errors import UsageError
from data_contracts.operations.node_standing import Mishap, NodeMishap, NodeStanding
from infra.audit import actor, now
from infra.store import Store, layout

# Names a node where its host name does not: in a container, whose host name is another one each time.
NODE = "TRAINWRIGHT_NODE"
MOST_NAME = 253
# As `node_standing` writes a number.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
KINDS: tuple[Mishap, ...] = get_args(Mishap)


@dataclass(frozen=True)
class NodeRecord:
    """One node: what went wrong on it, oldest first, and the newest decision of a person; None if there is none."""

    name: str
    mishaps: list[NodeMishap]
    standing: NodeStanding | None

    @property
    def is_drained(self) -> bool:
        """Whether no training may use it."""
        return self.standing is not None and self.standing.drained

    def count(self, kind: Mishap, *, ever: bool = False) -> int:
        """How often this went wrong since the node was last restored, or `ever`."""
        since = "" if ever or self.standing is None or self.standing.drained else self.standing.at
        return sum(one.kind == kind and one.at >= since for one in self.mishaps)


def this_node() -> str:
    """The name of the node that this process runs on."""
    return os.environ.get(NODE) or socket.gethostname()


def record_mishap(store: Store, mishap: NodeMishap) -> bool:
    """Store a mishap, once for each node, training, generation and kind; returns whether this call did."""
    if not is_node_name(mishap.node):
        return False
    same = digest([mishap.training, mishap.generation, mishap.kind])[:32]
    return store.create_once(layout.node_mishap(mishap.node, same), mishap.to_json())


def nodes_of(store: Store) -> list[NodeRecord]:
    """Every node that the store knows, by name; CorruptError if a record is damaged."""
    found = (_node(store, folder) for folder in _folders(store))
    return sorted((node for node in found if node is not None), key=lambda node: node.name)


def has_mishaps(store: Store, name: str) -> bool:
    """Whether anything went wrong on a node, as far as the store knows; reads no record."""
    return bool(store.list(layout.node_mishaps(layout.node_folder(name))))


def drained_nodes(store: Store) -> dict[str, NodeStanding]:
    """The nodes that no training may use, by name."""
    standings = (_standing(store, folder) for folder in _folders(store))
    return {one.node: one for one in standings if one is not None and one.drained}


def decide(store: Store, name: str, *, drained: bool, reason: str) -> NodeStanding:
    """Record that a node is drained, or takes part again. UsageError for a name that cannot be one."""
    if not is_node_name(name):
        raise UsageError(f"{name[:80]!a} cannot be the name of a node.", remedy="`trainwright nodes` lists them.")
    folder = layout.node_folder(name)
    before = _standing(store, folder)
    if not drained and (before is None or not before.drained):
        raise UsageError(f"The node {name} is not drained.", remedy="`trainwright nodes` lists those that are.")
    decision = NodeStanding(node=name, drained=drained, reason=reason, by=actor(), at=now())
    k = _newest(store, folder) + 1
    while not store.create_once(layout.node_standing(folder, k), decision.to_json()):
        k += 1
    return decision


def is_node_name(name: str) -> bool:
    """Whether a text may be the name of a node."""
    return 0 < len(name) <= MOST_NAME and name.isprintable() and not name.isspace()


def _folders(store: Store) -> list[str]:
    """The folders of nodes; what is no name was not made by Trainwright."""
    return [name for name in store.list(layout.NODES) if is_name(name)]


def _node(store: Store, folder: str) -> NodeRecord | None:
    """What is recorded of a node; None if nothing is."""
    names = [name for name in store.list(layout.node_mishaps(folder)) if name.endswith(".json")]
    paths = [f"{layout.node_mishaps(folder)}/{name}" for name in names]
    mishaps = sorted(
        (store.read_as(path, NodeMishap.from_json) for path in paths), key=lambda one: (one.at, one.generation)
    )
    standing = _standing(store, folder)
    if standing is None and not mishaps:
        return None
    return NodeRecord(mishaps[0].node if standing is None else standing.node, mishaps, standing)


def _standing(store: Store, folder: str) -> NodeStanding | None:
    """The newest decision about a node."""
    k = _newest(store, folder)
    return None if k < 0 else store.read_as(layout.node_standing(folder, k), NodeStanding.from_json)


def _newest(store: Store, folder: str) -> int:
    """The number of the newest decision about a node; -1 if there is none."""
    stems = [name.removesuffix(".json") for name in store.list(layout.node_standings(folder))]
    return max((int(stem) for stem in stems if _NUMBER.fullmatch(stem)), default=-1)
