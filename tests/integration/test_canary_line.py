"""A canary on real data: two trained models, real scores, and the rows of real shards; no Prefect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.alias_moves import ALIAS
from data_contracts.handoffs import Checkpoint, Dataset
from infra.models import canaries, registry
from infra.records.receipts import has_ended
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages.evaluate import evaluate
from tasks.stages.promote import promote
from tasks.stages.shard import shard
from tasks.stages.train import train
from tasks.stages.validate import validate
from tasks.stages.verify import verify
from tests.support.tiny import write_project, write_rows

pytestmark = pytest.mark.warm

CANARY = "promote.canary={within: 14d, metric: accuracy, min_rows: 20}"
GATES = "promote.gates=[]"
WORSE = ["train.lightning.trainer.max_epochs=1", "train.lightning.model.init_args.lr=0.0001"]


def opened(spec: Path, *overrides: str) -> Run:
    return open_run(read_spec(spec, [GATES, *overrides]), options=RunOptions(), recorded=False)


def sharded(run: Run) -> Dataset:
    return shard(run, validate(run))


def trained(run: Run, dataset: Dataset) -> Checkpoint:
    return verify(run, train(run, dataset))


def ended(run: Run, checkpoint: Checkpoint, dataset: Dataset) -> Any:
    return promote(run, checkpoint, dataset, evaluate(run, checkpoint, dataset))


def test_fresh_rows_promote_a_canary_that_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    spec = write_project(tmp_path / "tiny")
    first = opened(spec, *WORSE)
    dataset = sharded(first)
    assert ended(first, trained(first, dataset), dataset).decision == "promoted"
    second = opened(spec, CANARY)
    better = trained(second, dataset)
    assert ended(second, better, dataset).decision == "canary"

    # The rows on which both were trained and chosen show nothing.
    again = opened(spec, CANARY)
    stands = ended(again, better, dataset)
    assert (stands.decision, stands.version) == ("canary", 2)
    canary = canaries.standing_canary(again.store, "tiny")
    assert canary is not None
    assert canaries.observation_batches(again.store, canary, 1) == []

    # More rows, of which about a tenth are test rows; those of the first night are among the rows again.
    rows = (spec.parent / "rows.csv").read_text()
    write_rows(spec.parent / "more.csv", 4000, seed=2)
    more = (spec.parent / "more.csv").read_text().splitlines()[1:]
    renumbered = [f"{600 + number},{line.partition(',')[2]}" for number, line in enumerate(more)]
    (spec.parent / "rows.csv").write_text(rows + "\n".join(renumbered) + "\n")
    night = opened(spec, CANARY)
    newer = sharded(night)
    receipt = ended(night, better, newer)
    assert (receipt.decision, receipt.alias, receipt.version, receipt.previous) == (
        "promoted",
        "champion",
        2,
        1,
    ), receipt.sentence
    [tallied] = receipt.canary.batches
    assert tallied.rows == newer.rows("test") - dataset.rows("test")
    assert receipt.canary.status.verdict == "better"
    assert has_ended(registry.read_alias(night.store, "tiny", ALIAS)[0])
