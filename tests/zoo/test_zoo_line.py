"""Modules of the zoo go the whole line, from a table to a model that is proved, predicts and runs without us."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.support.tiny import STAGES, complaints, trainwright
from tests.zoo.rows import table
from tests.zoo.test_zoo import MODULES, ZOO, lightning_config

pytestmark = pytest.mark.warm
# Modules that go the line by default; with --sweep all do that have a metric.
WALKED = ("multilabel_metrics", "packed_lstm")
# A spec says what is accumulated, so the callback is refused. The loss of a step that depends on attributes, which no
# checkpoint has, is not the recorded one, so verify fails.
LEFT_OUT = ("accumulation_schedule", "step_keeps_state")
CLASSES = ("MulticlassAccuracy", {"num_classes": 3, "average": "micro"})
# What a batch has for its truth → the metric over predictions.
METRICS: dict[str, tuple[str, dict[str, Any]]] = {
    "label": CLASSES,
    "tags": ("MultilabelAccuracy", {"num_labels": 3}),
    "yes": ("BinaryAccuracy", {}),
}
SUITE = {
    "name": "zoo",
    "expectations": [
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "label", "value_set": [0, 1, 2]}}
    ],
}


def truth(name: str) -> str | None:
    """The entry of a module's batches that a metric compares its predictions with."""
    entry = ZOO[name]
    if "data" in entry or name in LEFT_OUT:
        return None
    return next((target for target in METRICS if target in entry.get("batch", ["x", "label"])), None)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in WALKED else [pytest.mark.sweep]) for name in ZOO if truth(name)],
)
def test_a_module_goes_the_whole_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    project = Path(shutil.copytree(MODULES, tmp_path / "zoo", ignore=shutil.ignore_patterns("__pycache__")))
    rows = table(240, 3)
    pq.write_table(rows, project / "rows.parquet")
    (project / "suite.json").write_text(json.dumps(SUITE))
    lightning, train = lightning_config(name)
    target = truth(name)
    assert target is not None
    metric, arguments = METRICS[target]
    spec = {
        "version": 1,
        "name": "zoo",
        "data": {"source": "rows.parquet"},
        "code": {"include": ["*.csv"]},
        "contract": {"suite": "suite.json"},
        "shards": {"split": {"key": "id", "fractions": {"train": 0.7, "val": 0.1, "test": 0.2}}},
        "train": {"lightning": lightning, **train},
        "evaluate": {
            "metrics": {
                "score": {
                    "class_path": f"torchmetrics.classification.{metric}",
                    "init_args": arguments,
                    "target": target,
                    "mode": "max",
                }
            }
        },
        "promote": {"gates": [{"metric": "score", "min": 0.0}]},
    }
    path = project / "pipeline.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    for stage in STAGES:
        done = trainwright(stage, path, cwd=project)
        assert done.returncode == 0, f"{stage}: {done.stdout}{done.stderr}"
    for words in (
        ("predict", "zoo@champion", "rows.parquet", "predictions.parquet"),
        ("export", "--to", "safetensors", "zoo@champion", "exported"),
        ("prove", "zoo@champion"),
    ):
        done = trainwright(*words, cwd=project)
        assert done.returncode == 0, f"{words[0]}: {done.stdout}{complaints(done)}"
    assert pq.read_metadata(project / "predictions.parquet").num_rows == rows.num_rows
