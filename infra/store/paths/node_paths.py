"""The paths of records about nodes; `infra/store/layout.py` has all others."""

from __future__ import annotations

from data_contracts.canonical import digest, valid_name
from infra.store.paths.path_parts import name_part, number_part

NODES = "nodes"


def node_folder(name: str) -> str:
    """Name of a node's folder below `nodes`: the node's name, or its digest if the name cannot be part of a path."""
    try:
        return valid_name(name)
    except ValueError:
        return digest(name)[:32]


def node_mishaps(folder: str) -> str:
    """Folder of the mishaps of a node."""
    return f"{NODES}/{name_part(folder)}/mishaps"


def node_mishap(name: str, same: str) -> str:
    """One mishap; `same` is the digest of what identifies it."""
    return f"{node_mishaps(node_folder(name))}/{name_part(same)}.json"


def node_standings(folder: str) -> str:
    """Folder of people's decisions about a node: `<k>.json` from 0, the newest of which holds."""
    return f"{NODES}/{name_part(folder)}/standing"


def node_standing(folder: str, k: int) -> str:
    """Decision `k` about a node."""
    return f"{node_standings(folder)}/{number_part(k)}.json"
