"""What decides the rows that raw files give, as parts of reuse keys."""

from __future__ import annotations

from collections.abc import Iterable

from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec


def ways(sources: Iterable[SourceSpec]) -> list[dict[str, object]]:
    """How each source is read: the settings that decide its rows."""
    return [
        {"pattern": one.pattern, "columns": one.columns, **({"pieces": one.pieces.model_dump()} if one.pieces else {})}
        for one in sources
    ]


def raw_inputs(files: Iterable[SourceFile]) -> list[dict[str, object]]:
    """Raw files by their content, not by their place; columns taken from paths count."""
    return [
        {"blake3": file.blake3, "format": file.format, "columns": file.columns, "source": file.source} for file in files
    ]
