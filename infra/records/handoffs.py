"""Hand-offs in the store: a sealed directory holds its hand-off as `handoff.json`, without the `ref`."""

from __future__ import annotations

from typing import Any, TypeVar

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import FileEntry, HandOff, Ref
from infra.store import Store, Writer, layout
from infra.store.records import corrupt

FILE = "handoff.json"
T = TypeVar("T", bound=HandOff)


def put_handoff(writer: Writer, fields: dict[str, Any]) -> FileEntry:
    """Write a hand-off's fields (without `ref`) into a directory that is about to be sealed."""
    return writer.put(FILE, canonical(fields))


def newest_handoff(store: Store, area: str, key: str, kind: type[T]) -> T | None:
    """The hand-off of the newest attempt under a reuse key in an area of the store; None if there is none.

    Raises as `read_handoff`.
    """
    ref = store.newest(area, key)
    return None if ref is None else read_handoff(store, ref, kind)


def read_handoff(store: Store, ref: Ref, kind: type[T]) -> T:
    """The hand-off of a sealed directory, with its `ref`; shards in the directory itself get its URI.

    CorruptError if it is missing, was changed, is not a hand-off of this kind or has another reuse key than its
    directory; UsageError if its schema is newer.
    """

    def handoff(fields: Any) -> tuple[str, T]:
        for shards in fields.get("splits", {}).values():
            for shard in shards:
                shard["uri"] = shard["uri"] or ref.uri
        return fields["key"], kind.from_json({**fields, "ref": ref.to_json()})

    try:
        key, handed_over = store.read_sealed_as(store.manifest(ref), FILE, handoff, f"the hand-off {kind.__name__}")
    except FileNotFoundError as error:
        path = layout.manifest(ref.uri)
        raise CorruptError(f"{path} is missing.", details={"file": path}) from error
    if (layout.split_attempt(ref.uri.rpartition("/")[2]) or ("",))[0] != key:
        raise corrupt(f"{ref.uri}/{FILE}", "is the hand-off of another reuse key")
    return handed_over
