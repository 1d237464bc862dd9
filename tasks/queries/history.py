"""The values that a training logged, step by step, as its checkpoint holds them (`training.checkpoint.save` writes
them).
"""

from __future__ import annotations

import re
from typing import Any

from data_contracts.handoffs import Checkpoint
from infra.store import Store

Record = dict[str, Any]


def logged_metrics(store: Store, checkpoint: Checkpoint) -> list[Record]:
    """One record per step that logged something: `{"step", "epoch", <metric>: value, …}`, oldest first."""
    return store.read_sealed_as(store.manifest(checkpoint.ref), "history.json", list)


def curves(records: list[Record]) -> dict[str, list[Record]]:
    """File name → one metric's records, each with the same keys: `step`, `epoch` and the metric's name.

    One table per metric, because they are logged at different steps and tools that plot want tables without gaps.
    """
    tables: dict[str, list[Record]] = {}
    for record in records:
        at: Record = {key: record[key] for key in ("step", "epoch") if key in record}
        for name in record.keys() - {"step", "epoch"}:
            file = re.sub(r"[^\w.=-]", "_", name).lstrip(".") + ".json"
            tables.setdefault(file, []).append({**at, name: record[name]})
    return dict(sorted(tables.items()))
