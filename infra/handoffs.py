"""Hand-offs in the store: a sealed directory holds its hand-off as `handoff.json`, without what only the seal knows."""

from __future__ import annotations

from typing import Any, TypeVar

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import FileEntry, HandOff, Ref
from infra.store import Store, Writer

FILE = "handoff.json"
T = TypeVar("T", bound=HandOff)


def put_handoff(writer: Writer, fields: dict[str, Any]) -> FileEntry:
    """Write a hand-off's fields (without `ref`) into a directory that is about to be sealed."""
    return writer.put(FILE, canonical(fields))


def read_handoff(store: Store, ref: Ref, kind: type[T]) -> T:
    """The hand-off of a sealed directory, with its `ref`; shards in the directory itself get its URI.

    CorruptError if the file is missing or is no such hand-off; UsageError if its schema is newer.
    """
    path = f"{ref.uri}/{FILE}"
    try:
        fields = store.read_json(path)
        for shards in fields.get("splits", {}).values():
            for shard in shards:
                shard["uri"] = shard["uri"] or ref.uri
        return kind.from_json({**fields, "ref": ref.to_json()})
    except FileNotFoundError as error:
        raise CorruptError(f"{path} is missing.", details={"file": path}) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(f"{path} is not the hand-off {kind.__name__}.", details={"file": path}) from error
