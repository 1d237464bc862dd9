"""Several ranks score as one process does, to the bit: metrics, outcomes and ids."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, Ref
from data_contracts.messages.children import EvaluateRequest, ScoredSet, StoreAddress
from infra.store import Store, open_store
from tests.distributed.conftest import PROJECT
from tests.support.gang import REPOSITORY, make_dataset, torchrun, wait
from training.checkpoint.capture import capture
from training.checkpoint.save import Place, save
from training.score import evaluate_worker
from training.user.assemble import build_module

METRICS = {
    "accuracy": {"class_path": "torchmetrics.classification.MulticlassAccuracy", "target": "y", "mode": "max",
                 "init_args": {"num_classes": 2, "average": "micro"}},
    "f1": {"class_path": "torchmetrics.classification.MulticlassF1Score", "target": "y", "mode": "max",
           "init_args": {"num_classes": 2}},
    "loss": {"logged": "test_loss", "mode": "min"},
    "places": {"logged": "place", "mode": "min"},
}  # fmt: skip
ROWS = {"many": 53, "few": 3}
# Case: split, rows of a batch, strategy. 53 rows in batches of 8 are 7 batches: the last round lacks some.
CASES = [
    ("many", 8, "ddp"), ("many", 8, "fsdp"), ("few", 2, "ddp"), ("few", 8, "fsdp"),
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scoring")


@pytest.fixture(scope="module")
def store(home: Path) -> Store:
    return open_store(str(home / "store"))


@pytest.fixture(scope="module")
def dataset(home: Path) -> dict[str, Any]:  # type: ignore[override]
    return make_dataset(home / "dataset", ROWS)


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before
    sys.modules.pop("nets", None)


def checkpoint_of(store: Store, home: Path, train: dict[str, Any], name: str) -> Checkpoint:
    torch.manual_seed(5)
    module = build_module(train, PROJECT)
    uri = f"trainings/{name}-0/checkpoints/1-g0"
    state = capture({"state_dict": module.state_dict()}, {}, 0)
    ref = save(Place(store, uri, {"step": 1}, {}, {}, home), state, 1, [])
    fields = {"ref": ref.to_json(), "key": name, "training": f"trainings/{name}-0", "generation": 0}
    return Checkpoint.from_json(
        {**fields, "step": 1, "epoch": 0, "world_size": 1, "metrics": {}, "dropped_rows": 0}
    )  # fmt: skip


def request_of(
    store: Store, home: Path, dataset: dict[str, Any], checkpoint: Checkpoint, train: dict[str, Any], **changes: Any
) -> EvaluateRequest:
    code = Ref(uri="code/a", id="a" * 64, seal="a" * 64)
    asked = {"metrics": METRICS, "split": "many", "batch_size": 8, **changes}
    return EvaluateRequest(
        store=StoreAddress(uri=store.uri), uri="evaluations/e-0", key="e", checkpoint=checkpoint, train=train,
        evaluate=asked, sets={"": ScoredSet(dataset=Dataset.from_json(dataset), split=asked["split"])},
        data_external=False, code=code, metrics_code=code,
        paths={code.id: str(PROJECT), dataset["ref"]["id"]: str(home / "dataset")}, settings={}, provenance={},
    )  # fmt: skip


def train_of(**model: Any) -> dict[str, Any]:
    module = {"class_path": "nets.Scored", "init_args": model}
    return {"lightning": {"model": module, "trainer": {"accelerator": "cpu"}}, "batch": ["x", "y"], "seed": 0}


def scored_by(ranks: int, home: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What so many ranks answer to each case."""
    scratch = home / f"ranks-{ranks}-{len(cases)}"
    scratch.mkdir()
    (scratch / "cases.json").write_text(json.dumps(cases))
    environ = {"PYTHONPATH": str(REPOSITORY), "TRAINWRIGHT_SCRATCH": str(scratch), "CASES": str(scratch / "cases.json"),
               "OMP_NUM_THREADS": str(torch.get_num_threads()), "GLOO_SOCKET_IFNAME": "lo",
               "TRAINWRIGHT_PROJECT": str(PROJECT)}  # fmt: skip
    wait(torchrun("tests.support.scoring_ranks", ranks, environ, PROJECT), 120)
    answers = [scratch / f"answer-{number}.json" for number in range(len(cases))]
    assert all(map(Path.exists, answers)), (scratch / "log.txt").read_text()[-6000:]
    return [json.loads(answer.read_text()) for answer in answers]


def outcomes(store: Store, evaluation: Evaluation) -> bytes:
    assert evaluation.ref is not None
    return (store.local(evaluation.ref) / evaluate_worker.OUTCOMES).read_bytes()


def test_ranks_score_as_one_process_to_the_bit(store: Store, home: Path, dataset: dict[str, Any]) -> None:
    train = train_of()
    checkpoint = checkpoint_of(store, home, train, "t")
    alone: dict[tuple[str, int], Evaluation] = {}
    requests = []
    for number, (split, size, strategy) in enumerate(CASES):
        request = request_of(store, home, dataset, checkpoint, train, split=split, batch_size=size)
        if (split, size) not in alone:
            own = request.model_copy(update={"uri": f"evaluations/alone{number}-0"})
            alone[split, size] = evaluate_worker.main(own, lambda report: None)
        layout = {"strategy": strategy, "shard_modules": ["Block"] if strategy == "fsdp" else None}
        requests.append(({**layout, "collective_timeout_s": 10}, request))
    for ranks in (2, 4):
        cases = [
            {
                "layout": layout,
                "request": request.model_copy(update={"uri": f"evaluations/r{ranks}c{number}-0"}).to_json(),
            }
            for number, (layout, request) in enumerate(requests)
        ]
        for (split, size, strategy), answer in zip(CASES, scored_by(ranks, home, cases), strict=True):
            expected = alone[split, size]
            what = f"{strategy} on {ranks} ranks, {split} rows in batches of {size}"
            assert "metrics" in answer, (what, answer)
            found = Evaluation.from_json(answer)
            assert found.metrics == expected.metrics, what
            assert outcomes(store, found) == outcomes(store, expected), what
            assert found.ref is not None
            assert expected.ref is not None
            assert found.ref.id == expected.ref.id, what


def test_a_logged_metric_object_is_refused(store: Store, home: Path, dataset: dict[str, Any]) -> None:
    train = train_of(metric=True)
    checkpoint = checkpoint_of(store, home, train, "m")
    asked = {"metrics": {"object": {"logged": "object", "mode": "min"}}}
    request = request_of(store, home, dataset, checkpoint, train, **asked)
    case = {"layout": {"strategy": "ddp", "collective_timeout_s": 60}, "request": request.to_json()}
    (answer,) = scored_by(2, home, [case])
    assert answer["cause"] == "usage"
    assert answer["message"].startswith("evaluate: test_step logs object as a metric object, which accumulates on each")
