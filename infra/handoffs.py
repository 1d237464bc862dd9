"""Hand-offs in the store: a sealed directory holds its hand-off as `handoff.json`, without what only the seal knows."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from data_contracts.canonical import canonical
from data_contracts.handoffs import HandOff, Ref
from infra.store import Store, Writer

FILE = "handoff.json"
T = TypeVar("T", bound=HandOff)


def put_handoff(writer: Writer, fields: dict[str, Any]) -> None:
    """Write a hand-off's fields (without `ref`) into a directory that is about to be sealed."""
    writer.put(FILE, canonical(fields))


def read_handoff(store: Store, ref: Ref, kind: type[T]) -> T:
    """The hand-off of a sealed directory, with its `ref`; shards in the directory itself get its URI."""
    fields = json.loads(store.read(f"{ref.uri}/{FILE}"))
    for shards in fields.get("splits", {}).values():
        for shard in shards:
            shard["uri"] = shard["uri"] or ref.uri
    return kind.from_json({**fields, "ref": ref.to_json()})
