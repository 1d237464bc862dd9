"""What a training logged, step by step, as its checkpoint keeps it (`training.checkpoint.save` writes it)."""

from __future__ import annotations

import json
import re
from typing import Any

from data_contracts.handoffs import Checkpoint
from infra.store import Store

Record = dict[str, Any]


def logged_metrics(store: Store, checkpoint: Checkpoint) -> list[Record]:
    """One record per step that logged something: `{"step", "epoch", <metric>: value, …}`, oldest first."""
    return json.loads(store.read(f"{checkpoint.ref.uri}/history.json"))


def curves(records: list[Record]) -> dict[str, list[Record]]:
    """File name → one metric's records, each with the same keys: `step`, `epoch` and the metric's name.

    One table per metric, because they are logged at different steps and tools that plot want tables without gaps.
    """
    found: dict[str, list[Record]] = {}
    for record in records:
        at: Record = {key: record[key] for key in ("step", "epoch") if key in record}
        for name in record.keys() - {"step", "epoch"}:
            file = re.sub(r"[^\w.=-]", "_", name).lstrip(".") + ".json"
            found.setdefault(file, []).append({**at, name: record[name]})
    return dict(sorted(found.items()))
