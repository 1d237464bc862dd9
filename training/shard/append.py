"""Adding new files to a dataset: what is recorded of the files that it has, and whether its shards stay as they are.

A dataset and its new files must have the rows and types that reading all files at once gives. So the types of each file
are recorded beside the shards. If new files change a column's type or bring a new column, old rows would have two
types: then all files are sharded again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from data_contracts.canonical import canonical
from data_contracts.errors import UsageError
from data_contracts.handoffs import ShardFile, SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.quoting import column_shown, type_shown
from infra.sources.read import FileFacts
from training.formats.schema import Facts, Mismatch


class NotExtended(Exception):
    """New files cannot be added to a dataset as its shards are; `reason` says why, after "because"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Types:
    """The types of a dataset's rows, by which new files are compared.

    Attributes:
        read: of all files together, as they are read.
        stored: of the rows that were stored, before and after they were narrowed.
        files: types and first texts of each file; those of `format: files` and `text` follow from their pattern.
    """

    read: pa.Schema
    stored: Facts
    files: dict[str, FileFacts]

    def may_be_stored(self, sensitive: Collection[str]) -> bool:
        """Whether no type can have keys of objects in a sensitive column, which may be values."""
        withheld = set(sensitive)
        schemas = [self.read, self.stored.raw or [], *(facts.schema for facts in self.files.values())]
        return not any(one.name in withheld and pa.types.is_nested(one.type) for schema in schemas for one in schema)

    def to_json(self) -> dict[str, Any]:
        """As JSON, in which equal schemas of files stand once."""
        schemas = list(dict.fromkeys(_to_hex(one.schema) for one in self.files.values()))
        at = {text: number for number, text in enumerate(schemas)}
        files = {name: [at[_to_hex(one.schema)], one.text_from] for name, one in self.files.items()}
        raw, form = self.stored.raw, self.stored.form
        assert raw is not None
        assert form is not None
        return {"read": _to_hex(self.read), "stored": [_to_hex(raw), _to_hex(form)], "schemas": schemas, "files": files}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Types:
        """What `to_json` gave."""
        schemas = [_from_hex(text) for text in value["schemas"]]
        files = {name: FileFacts(schemas[at], text_from) for name, (at, text_from) in value["files"].items()}
        return cls(_from_hex(value["read"]), Facts(*map(_from_hex, value["stored"])), files)


@dataclass(frozen=True)
class Earlier:
    """A dataset whose shards the new dataset includes.

    Attributes:
        splits: what its splits hold.
        counts: how its raw rows became those of the splits, see `Sharded`.
        types: None if they were not recorded, as by an earlier version or because they may hold sensitive values.
    """

    splits: dict[str, list[ShardFile]]
    schema: pa.Schema
    dropped_rows: dict[str, int]
    counts: dict[str, int] = field(default_factory=dict)
    types: Types | None = None

    def rows(self) -> dict[str, int]:
        """Rows of each split."""
        return {name: sum(shard.rows for shard in shards) for name, shards in self.splits.items()}

    def read_as(self, together: pa.Schema) -> pa.Schema:
        """The schema by which new files are read, given that of all files together; NotExtended if it is another."""
        if self.types is None:
            raise NotExtended("the types of the files that were sharded are not recorded")
        before = self.types.read
        there = set(before.names)
        new = [name for name in together.names if name not in there]
        moved = [one for one in before if together.field(one.name).type != one.type]
        if new or moved:
            parts = [f"the column {column_shown(name)} is new" for name in new]
            parts += [
                f"the column {column_shown(one.name)} was {type_shown(one.type)} and is "
                f"{type_shown(together.field(one.name).type)}"
                for one in moved
            ]
            raise NotExtended(", ".join(parts))
        return before

    def stored_with(self, new: Facts) -> Facts:
        """The types of all stored rows; NotExtended if rows of the dataset would have another type with new rows."""
        assert self.types is not None
        before = self.types.stored
        together = Facts(before.raw, before.form)
        try:
            together.merge(new)
            fits = together.schema().equals(self.schema, check_metadata=True)
        except (Mismatch, UsageError):
            fits = False  # sharding all files says why
        if not fits:
            raise NotExtended("the new files change the type of a stored column")
        return together


def known_as(file: SourceFile, source: SourceSpec) -> str:
    """The name of a file in `Types`: what decides its types."""
    csv = source.csv.model_dump(exclude_defaults=True) if source.csv else {}
    more = [settings for settings in (file.columns, file.column_types, csv, file.hidden_index) if settings]
    return canonical([file.blake3, file.format, source.columns, *more]).decode()


def lacking(schema: pa.Schema, facts: Iterable[FileFacts]) -> dict[str, int]:
    """Columns that some files lack, whose rows have nulls there, and the number of these files."""
    every, found = set(schema.names), dict[str, int]()
    for fact in facts:
        for name in every.difference(fact.schema.names):
            found[name] = found.get(name, 0) + 1
    return {name: found[name] for name in schema.names if name in found}


def _to_hex(schema: pa.Schema) -> str:
    return str(schema.serialize().to_pybytes().hex())


def _from_hex(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))
