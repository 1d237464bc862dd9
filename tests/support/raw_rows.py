"""A tiny project whose raw rows need a transform, whose label is a text and whose predictions have a contract."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from tests.support.tiny import SPEC, write_project

FEATURES = """\
import pyarrow as pa
import pyarrow.compute as pc


def build(rows):
    day = rows["day"].to_pylist()
    if "bad" in day:
        raise ValueError("no such day")
    rows = rows.set_column(3, "c", pa.array([{"mon": 0.5, "tue": -0.5}[one] for one in day], pa.float64()))
    if "tue" in day and "wed" in day:
        rows = rows.slice(1)
    label = pc.equal(rows["label"], "yes").cast(pa.int64())
    return rows.set_column(4, "label", label)
"""
MORE = """
    def predict_step(self, batch, batch_idx):
        import os
        import time

        while batch_idx >= int(os.environ.get("HELD_FROM_BATCH", 10**9)):
            time.sleep(0.1)
        x = batch[0]
        if x.isinf().any():
            raise RuntimeError("infinite")
        return self(x)
"""
PREDICTIONS = {
    "name": "predictions",
    "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "prediction"}}],
}
SUITE = {
    "name": "rows",
    "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "min_value": -1, "max_value": 1}},
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "label", "value_set": ["yes", "no"]}},
    ],
}


def raw(number: int) -> list[Any]:
    a, b, day = (number * 37 % 200) / 100 - 1, (number * 91 % 200) / 100 - 1, ("mon", "tue")[number % 2]
    return [number, a, b, day, "yes" if a + b > (0.5 if day == "mon" else -0.5) else "no"]


def write(path: Path, rows: list[list[Any]], columns: tuple[str, ...] = ("id", "a", "b", "day", "label")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def write_line(folder: Path) -> Path:
    """Write the project and return its spec."""
    contract = {"suite": "suite.json", "predictions": {"suite": "predictions.json"}}
    spec = write_project(
        folder,
        {
            "contract": contract,
            "shards": {**SPEC["shards"], "transform": "features.build"},
            "promote": {"gates": [{"metric": "accuracy", "min": 0.1}]},
        },
    )
    for name, text in (
        ("features.py", FEATURES),
        ("suite.json", json.dumps(SUITE)),
        ("predictions.json", json.dumps(PREDICTIONS)),
    ):
        (spec.parent / name).write_text(text)
    (spec.parent / "net.py").write_text((spec.parent / "net.py").read_text() + MORE)
    write(spec.parent / "rows.csv", [raw(number) for number in range(600)])
    return spec
