"""What a node that was launched on this machine writes to the store: records and checkpoints with their codes."""

from __future__ import annotations

from typing import Any

from data_contracts.handoffs import Ref
from data_contracts.messages import Message
from infra.gang.rank_files import FIELD, codes_of_generation
from infra.store import Store, layout
from infra.store.seal import write_manifest


def publish(store: Store, path: str, record: Message | dict[str, Any]) -> None:
    """Create the record of a node at a path that the layout gives, with its code."""
    training, _, rest = path.partition("/g")
    value = record if isinstance(record, dict) else record.to_json()
    store.create_json(path, codes_of_generation(store.uri, training, int(rest.split("/")[0])).coded(path, value))


def seal_checkpoint(store: Store, training: str, step: int, generation: int, settings: dict[str, Any]) -> Ref:
    """Seal a checkpoint of one file as rank 0 does."""
    uri = layout.checkpoint(training, step, generation)
    writer = store.writer(uri)
    identity = write_manifest("checkpoint", settings, {}, [writer.put("state.json", b"{}")])[1]
    codes = codes_of_generation(store.uri, training, generation)
    code = codes.coded(layout.manifest(uri), {"id": identity})[FIELD]
    return writer.seal("checkpoint", settings, {"training": training, "generation": generation, FIELD: code})
