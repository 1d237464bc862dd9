"""Which columns a batch needs for its label alone. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def label_columns(batch: Any, metrics: Mapping[str, Mapping[str, Any]], columns: list[str]) -> set[str]:
    """The columns of the shards that only the label of a batch is made of: what the metrics call their target.

    Args:
        batch: `train.batch`.
        columns: of the shards.
    """
    targets = {str(one["target"]) for one in metrics.values() if one.get("target") is not None}
    if batch is None:
        return targets & set(columns)
    keys = (
        [[key] for key in batch]
        if isinstance(batch, dict)
        else [[str(at), str(at - len(batch))] for at in range(len(batch))]
    )
    label: set[str] = set()
    others: set[str] = set()
    for names, entry in zip(keys, batch.values() if isinstance(batch, dict) else batch, strict=True):
        parts = [entry] if isinstance(entry, str) else entry
        called = [*names, entry] if isinstance(entry, str) and isinstance(batch, list) else names
        (label if targets & set(called) else others).update(parts)
    return label - others
