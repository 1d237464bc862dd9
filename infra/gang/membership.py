"""The seam between a gang and what runs its nodes: processes here, flow runs of a pool, pods or jobs of a cluster.

A conductor knows its nodes by nothing else. A launcher is one file with one `Launcher` and its `Membership`; causes,
budgets, recovery and checkpoints lie above and do not know which it is.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from data_contracts.messages.gang import CancelMarker, Launch, NodeExit, Place
from infra.gang.hub import Ended, Hub, News
from infra.gang.rank_files import codes_of_generation
from infra.store import Store, layout


class Membership(abc.ABC):
    """The nodes of one generation: what they say comes through a hub; how they start and end, a launcher knows."""

    def __init__(self, store: Store, launch: Launch, hub: Hub) -> None:
        self.store, self.launch, self.hub = store, launch, hub
        self._codes = codes_of_generation(store.uri, launch.training, launch.generation)
        self._reported: set[int] = set()

    @abc.abstractmethod
    def start(self, nodes: Collection[int]) -> None:
        """Start these nodes, as one, except those that are started. StorageUnavailable: try again."""

    @abc.abstractmethod
    def ended(self) -> Mapping[int, Ended]:
        """The nodes that have ended, as far as is known; answers at once."""

    @abc.abstractmethod
    def status(self, node: int) -> str:
        """What is known of a node that has not joined (`its run is Late`); "" if nothing."""

    @abc.abstractmethod
    def log(self, node: int) -> str:
        """The end of what a node's supervisor printed."""

    @abc.abstractmethod
    def end(self, nodes: Collection[int]) -> None:
        """End nodes with all their descendants; return when none is left, or when one outlives being killed."""

    def waits(self) -> str:
        """What the nodes wait for before any of them is started, as in the queue of a cluster; "" if for nothing."""
        return ""

    def may_be_silent(self, node: int) -> bool:
        """Whether its silence says little, such as of a running process of this machine, which may only be busy."""
        return False

    def news(self) -> list[News]:
        """What has come since the last call. A node's own word about its end comes before that of what runs it.

        Raises:
            CorruptError: no process of the training has said or written it.
            StorageUnavailable: nothing is lost; ask again.
        """
        gone = {node: how for node, how in self.ended().items() if not self._has_left(node)}
        records = {node: self.exit_of(node) for node in gone}
        found = self.hub.news()
        now = time.monotonic()
        found += [News(node, now, records[node] or how) for node, how in gone.items() if not self._has_left(node)]
        self._reported.update(gone)
        return found

    def tell(self, node: int, message: Place | CancelMarker) -> None:
        """Tell a node something, now or when it connects again."""
        self.hub.tell(node, message)

    def exit_of(self, node: int) -> NodeExit | None:
        """How a node ended, as it wrote into the store; None if it has not. For one whose word may be lost."""
        path = layout.node_exit(self.launch.training, self.launch.generation, node)
        return self.store.find_as(path, self._codes.checking(path, NodeExit.from_json))

    def _has_left(self, node: int) -> bool:
        return node in self.hub.left or node in self._reported


class SlotReservation(Protocol):
    """Admits nodes: all of them, or none."""

    def take(self, nodes: int) -> str | None:
        """Ask for slots for `nodes` in all, including those held already.

        Returns None once it is held, else the reason to wait. Does not wait itself; raises one of our errors if waiting
        could never end.
        """

    def give_back(self) -> None:
        """Give all slots back."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a gang's nodes run, in the words of the spec; each launcher says what it makes of them.

    Attributes:
        section: of the spec.
        devices: of a node; needs_gpus: whether they are GPUs.
        labels: of the nodes' runs or jobs; tags: Prefect tags of the runs.
        timeout_s: within which something must come that runs nodes.
    """

    section: str
    pool: str
    queue: str | None = None
    job_variables: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    devices: int = 1
    needs_gpus: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    timeout_s: float = 120.0


class Launcher(Protocol):
    """What starts the nodes of a training's generations."""

    @property
    def address(self) -> str:
        """At which the nodes reach this process."""

    @property
    def slots(self) -> SlotReservation | None:
        """What admits the nodes of a generation, until the end; None: there are always enough."""

    def __call__(self, store: Store, launch: Launch, hub: Hub) -> Membership:
        """The nodes of a generation, of which none is started yet."""
