"""The values that a training logged, step by step, as its checkpoint holds them (`training.checkpoint.saver` writes
them).
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from infra.store import Store, layout

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


def write_logger_files(store: Store, checkpoint: Checkpoint, folder: Path) -> None:
    """Write what the loggers of the training's config wrote, generation by generation, into `g<generation>/`."""
    for generation in range(checkpoint.generation + 1):
        path = layout.logger_files(checkpoint.training, generation)
        if not store.exists(path):
            continue
        try:
            with zipfile.ZipFile(io.BytesIO(store.read(path))) as archive:
                # It leads no member outside of the folder.
                archive.extractall(folder / f"g{generation}")
        except zipfile.BadZipFile as error:
            raise CorruptError(f"{path} in the store is damaged: {error}.") from error
