"""Several ranks verify and score as one process does, to the bit: losses, verdicts, metrics, outcomes and ids."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, Ref
from data_contracts.messages.children import (
    EVALUATE,
    VERIFY,
    Child,
    EvaluateRequest,
    LaidOut,
    RemoteJob,
    ScoredSet,
    StoreAddress,
    VerifyRequest,
)
from infra.store import Store, open_store
from tests.distributed.conftest import PROJECT
from tests.support.gang import REPOSITORY, make_dataset, torchrun, wait
from training.checkpoint.capture import capture
from training.checkpoint.save import Place, save
from training.fit.reference_loss import record
from training.loader import Shards, Split
from training.score import evaluate_worker, verify_worker
from training.user.assemble import build_module, plain_trainer

METRICS = {
    "accuracy": {"class_path": "torchmetrics.classification.MulticlassAccuracy", "target": "y", "mode": "max",
                 "init_args": {"num_classes": 2, "average": "micro"}},
    "f1": {"class_path": "torchmetrics.classification.MulticlassF1Score", "target": "y", "mode": "max",
           "init_args": {"num_classes": 2}},
    "loss": {"logged": "test_loss", "mode": "min"},
    "places": {"logged": "place", "mode": "min"},
}  # fmt: skip
ROWS = {"many": 53, "few": 3, "train": 21}
# Case: split, rows of a batch, strategy. 53 rows in batches of 8 are 7 batches: the last round lacks some.
CASES = [
    ("many", 8, "ddp"), ("many", 8, "fsdp"), ("many", 8, "hsdp"), ("few", 2, "ddp"), ("few", 8, "fsdp"),
]  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp", "shard_modules": ["Block"]},
    "hsdp": {"strategy": "hsdp", "shard_modules": ["Block"], "shard_ranks": 2},
}


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


def checkpoint_of(
    store: Store,
    home: Path,
    train: dict[str, Any],
    name: str,
    held: dict[str, Any] | None = None,
    *,
    broken: bool = False,
) -> Checkpoint:
    torch.manual_seed(5)
    module = build_module(train, PROJECT)
    if broken:
        module.outlet.weight.data[0, 0] = torch.nan  # type: ignore[union-attr, operator]
    uri = f"trainings/{name}-0/checkpoints/1-g0"
    state = capture({"state_dict": module.state_dict()}, {}, 0)
    ref = save(Place(store, uri, {"step": 1, **({"held": held} if held else {})}, {}, {}, home), state, 1, [])
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


def case_of(layout: str, child: Child[Any, Any], request: LaidOut) -> dict[str, Any]:
    settings = {**LAYOUTS[layout], "collective_timeout_s": 10}
    return {"layout": settings, "job": RemoteJob.of(child.module, request).to_json(), "paths": request.paths}


def answers_of(ranks: int, home: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What so many ranks answer to each case."""
    scratch = Path(tempfile.mkdtemp(prefix=f"ranks-{ranks}-", dir=home))
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
    cases = []
    for number, (split, size, strategy) in enumerate(CASES):
        request = request_of(store, home, dataset, checkpoint, train, split=split, batch_size=size)
        if (split, size) not in alone:
            own = request.model_copy(update={"uri": f"evaluations/alone{number}-0"})
            alone[split, size] = evaluate_worker.main(own, lambda report: None)
        cases.append((strategy, request))
    for ranks in (2, 4):
        asked = [
            case_of(strategy, EVALUATE, request.model_copy(update={"uri": f"evaluations/r{ranks}c{number}-0"}))
            for number, (strategy, request) in enumerate(cases)
        ]
        for (split, size, strategy), answer in zip(CASES, answers_of(ranks, home, asked), strict=True):
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
    (answer,) = answers_of(2, home, [case_of("ddp", EVALUATE, request)])
    assert answer["cause"] == "usage"
    assert answer["message"].startswith("evaluate: test_step logs object as a metric object, which accumulates on each")


def held_by(train: dict[str, Any], home: Path, dataset: dict[str, Any], rows: int) -> dict[str, Any]:
    """The loss of one process on the first rows, as it is sealed with a checkpoint."""
    torch.manual_seed(5)
    module = build_module(train, PROJECT)
    split = Split(Shards(home / "dataset", Dataset.from_json(dataset), "train"), batch=train["batch"], in_order=True)
    trainer = plain_trainer(train, [])
    module.trainer = trainer
    found = record(module, lambda: split.take(slice(0, rows)), trainer, sharded=False, rows=rows)
    assert found is not None
    return found


def verdict(request: VerifyRequest) -> dict[str, Any]:
    """What one process answers or raises."""
    try:
        return verify_worker.main(request, lambda report: None).to_json()
    except CorruptError as error:
        return error.to_json()


def test_ranks_verify_as_one_process_to_the_bit(store: Store, home: Path, dataset: dict[str, Any]) -> None:
    train = train_of()
    held = held_by(train, home, dataset, 21)
    checkpoints = {
        "whole": checkpoint_of(store, home, train, "whole", held),
        "one row": checkpoint_of(store, home, train, "row", held_by(train, home, dataset, 1)),
        "no loss": checkpoint_of(store, home, train, "none"),
        "other loss": checkpoint_of(store, home, train, "other", {**held, "loss": math.nextafter(held["loss"], 2)}),
        "not finite": checkpoint_of(store, home, train, "nan", broken=True),
        "changed": checkpoint_of(store, home, train, "changed"),
    }
    file = next((store.local(checkpoints["changed"].ref)).glob("weights-*.safetensors"))
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    code = Ref(uri="code/a", id="a" * 64, seal="a" * 64)
    asked, expected = [], []
    for name, checkpoint in checkpoints.items():
        request = VerifyRequest(
            store=StoreAddress(uri=store.uri), checkpoint=checkpoint, train=train, code=code,
            dataset=Dataset.from_json(dataset),
            paths={code.id: str(PROJECT), dataset["ref"]["id"]: str(home / "dataset")},
        )  # fmt: skip
        alone = verdict(request)
        for layout in LAYOUTS if name == "whole" else ("ddp", "fsdp"):
            asked.append(case_of(layout, VERIFY, request))
            expected.append((f"{name}, {layout}", alone))
    verdicts = {name: alone.get("cause", alone.get("loss")) for name, alone in expected}
    assert (verdicts["whole, ddp"], verdicts["no loss, ddp"]) == (held["loss"], None)
    assert {verdicts[f"{name}, ddp"] for name in ("other loss", "not finite", "changed")} == {"corrupt"}
    for ranks in (2, 4):
        for (what, alone), answer in zip(expected, answers_of(ranks, home, asked), strict=True):
            assert answer == alone, f"{what} on {ranks} ranks"
