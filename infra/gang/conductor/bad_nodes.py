"""Records what a conductor observed of bad nodes, and leaves out the nodes that people drained."""

from __future__ import annotations

import contextlib
import logging

from data_contracts.errors import CorruptError, GangIncomplete, Hung, NodeLost, StorageUnavailable, TrainwrightError
from data_contracts.messages.gang import Launch
from data_contracts.operations.node_standing import Mishap, NodeMishap
from infra.audit import now
from infra.gang.conductor.generation import Generation
from infra.records.nodes import drained_nodes, record_mishap, this_node
from infra.store import Store
from infra.store.lease import patiently

log = logging.getLogger("trainwright")


def without_drained(store: Store, launch: Launch, *, here: bool) -> Launch:
    """The launch without the nodes that are drained now.

    Args:
        here: whether all nodes are processes of this machine.

    Raises: GangIncomplete if that leaves none; CorruptError if a decision about a node is damaged.
    """
    drained = patiently(lambda: drained_nodes(store))
    if here and (mine := drained.get(this_node())) is not None:
        raise GangIncomplete(
            f"Every node that could train is drained: {mine.sentence}.",
            remedy="Let one take part again with `trainwright restore NODE`, or train on other nodes.",
        )
    more = [name for name in sorted(drained) if name not in launch.left_out]
    return launch.model_copy(update={"left_out": [*launch.left_out, *more]}) if more else launch


def remember(store: Store, generation: Generation, error: TrainwrightError | None) -> None:
    """Record what a generation showed of its nodes; if the store does not answer, training continues all the same."""
    if isinstance(error, StorageUnavailable):
        return
    hosts = generation.nodes
    order = list(hosts)
    for rank in sorted(generation.reports.liveness.warned):
        place = rank // generation.launch.devices
        if place < len(order):
            _record(store, generation, hosts[order[place]], "straggler", "straggler", f"Rank {rank} was a straggler.")
    if isinstance(error, NodeLost | Hung):
        # The node that reports a broken connection may not be the one that broke it.
        number = error.details.get("node")
        if number in hosts and not error.details.get("link"):
            _record(store, generation, hosts[number], "failure", error.cause, error.message)
    elif isinstance(error, CorruptError):
        ranks = [rank for rank in error.details.get("ranks", []) if isinstance(rank, int)]
        if 2 * len(ranks) < len(order) * generation.launch.devices:  # without a majority, any of them may be right
            for place in sorted({rank // generation.launch.devices for rank in ranks}):
                _record(store, generation, hosts[order[place]], "corrupt_replica", error.cause, error.message)


def _record(store: Store, generation: Generation, host: str, kind: Mishap, cause: str, sentence: str) -> None:
    mishap = NodeMishap(
        node=host,
        kind=kind,
        cause=cause,
        sentence=sentence,
        training=generation.training,
        generation=generation.number,
        at=now(),
    )
    with contextlib.suppress(TrainwrightError):
        if record_mishap(store, mishap):
            log.info("%s is recorded of the node %s; `trainwright nodes` lists it", kind.replace("_", " "), host)
