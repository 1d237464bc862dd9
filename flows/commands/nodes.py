"""`nodes`, `drain`, `restore`: what a store knows of nodes, and which of them no training may use."""

from __future__ import annotations

import argparse
from typing import Any

from data_contracts.errors import UsageError
from flows.commands.guard import Answer
from flows.commands.tables import table
from infra.records.nodes import KINDS, NodeRecord, decide, has_mishaps, nodes_of
from infra.store import Store, layout
from tasks.run.run import known_store_list, not_found
from tasks.stages.rollback import checked_reason

_HEAD = ["node", "state", "failures", "stragglers", "corrupt replicas", "last", "why"]


def nodes(arguments: argparse.Namespace) -> Answer:
    """The `nodes` command; a figure counts what happened since the node was last restored."""
    lines: list[str] = []
    value: list[dict[str, Any]] = []
    for store in known_store_list(arguments.store or arguments.place):
        if found := nodes_of(store):
            lines += [f"{store.uri}", table(_HEAD, [_row(one) for one in found], right=_HEAD[2:5]), ""]
        value.append({"store": store.uri, "nodes": [_json(one) for one in found]})
    return Answer(
        "\n".join(lines).rstrip() or "Nothing went wrong on any node, and none is drained.", {"stores": value}
    )


def drain(arguments: argparse.Namespace) -> Answer:
    """The `drain` command."""
    reason = checked_reason(arguments.reason)
    store = _store(arguments)
    decision = decide(store, arguments.node, drained=True, reason=reason)
    sentence = f"No training of {store.uri} uses the node {arguments.node} from its next generation on"
    if not has_mishaps(store, arguments.node):
        # The name may be mistyped: nothing that went wrong was recorded of a node of this name.
        sentence += "; nothing is recorded of it yet, so check the name"
    return Answer(sentence, decision.to_json())


def restore(arguments: argparse.Namespace) -> Answer:
    """The `restore` command; UsageError if the node is not drained."""
    store = _store(arguments)
    decision = decide(store, arguments.node, drained=False, reason=checked_reason(arguments.reason))
    return Answer(f"The node {arguments.node} takes part again, and its figures begin anew", decision.to_json())


def _store(arguments: argparse.Namespace) -> Store:
    """The named store, the known store that has a record of the node, or the only known store."""
    stores = known_store_list(arguments.store)
    having = [store for store in stores if layout.node_folder(arguments.node) in store.list(layout.NODES)]
    if len(having) == 1 or (not having and len(stores) == 1):
        return (having or stores)[0]
    if not having:
        raise not_found(f"node {arguments.node}", stores)
    raise UsageError(
        f"{len(having)} stores know the node {arguments.node}: {', '.join(store.uri for store in having)}.",
        remedy="Name one with --store; a store's own trainings are all that it keeps the node out of.",
    )


def _row(node: NodeRecord) -> list[str]:
    last = node.mishaps[-1] if node.mishaps else None
    why = node.standing.reason if node.is_drained and node.standing else (last.sentence if last else "")
    figures = [str(node.count(kind)) for kind in KINDS]
    return [node.name, "drained" if node.is_drained else "in use", *figures, last.at[:16] if last else "", why]


def _json(node: NodeRecord) -> dict[str, Any]:
    return {
        "node": node.name,
        "drained": node.is_drained,
        "since_restored": {kind: node.count(kind) for kind in KINDS},
        "ever": {kind: node.count(kind, ever=True) for kind in KINDS},
        "standing": node.standing.to_json() if node.standing else None,
        "mishaps": [one.to_json() for one in node.mishaps],
    }
