"""What a training logged, step by step, as its checkpoint keeps it (`training.checkpoint.save` writes it)."""

from __future__ import annotations

import json
from typing import Any

from data_contracts.handoffs import Checkpoint
from infra.store import Store


def logged_metrics(store: Store, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """One record per step that logged something: `{"step", "epoch", <metric>: value, …}`, oldest first."""
    return json.loads(store.read(f"{checkpoint.ref.uri}/history.json"))
