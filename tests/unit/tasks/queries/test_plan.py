"""What a plan says is what the stages then do: both look by the same `find`. Read from the golden store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from data_contracts.errors import ContractRejected, UsageError
from data_contracts.handoffs import Checkpoint
from flows.stages import stages, verbs
from tasks.queries.plan import plan
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import evaluate
from tasks.stages.stage import EarlierHandoffs
from tasks.stages.validate import validate
from tasks.stages.verify import verify

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    return Path(shutil.copytree(repository / "tests/golden/store-v1", tmp_path_factory.mktemp("golden") / "copy"))


def opened(golden: Path, *overrides: str) -> Run:
    spec = golden / "project/pipeline.yaml"
    return open_run(read_spec(spec, overrides), store_uri=str(golden / "store"), recorded=False)


def lines(run: Run) -> list[str]:
    return [f"{step.name} {step.action} {step.why}" for step in plan(run, stages())]


REUSED = [
    "validate reuse contracts/6cd8582f738057d1e673bf63e2fba10219a3030b-0",
    "shard reuse datasets/05f9dcaa92a4cbeeb1262b123947299990be89e1-0",
]
SEVEN, EIGHT = (
    "trainings/e9d60c325e5da602f6f0e655e052167d0c60c7ba-0/checkpoints/45-g0",
    "trainings/27ec13a7075eac5065f6e9e1cab7d646609bc60e-0/checkpoints/45-g0",
)
CHANGED = "train.checkpoint.every_steps, train.lightning.trainer.max_epochs, train.seed"
HELD = "it will not be promoted: on hold, because root rolled version 2 back at 2026-11-22 18:52 UTC"
PLANS = {
    "train.seed=7": [
        f"train reuse {SEVEN}",
        f"verify reuse {SEVEN}.verified",
        "evaluate reuse evaluations/042cb27e80d05357ec029211c385218d0bd9d064-0",
        "promote reuse tiny@champion already is this checkpoint (version 1)",
    ],
    "train.seed=8": [
        f"train reuse {EIGHT}",
        f"verify reuse {EIGHT}.verified",
        "evaluate reuse evaluations/c1e9987111e92d0a2a0bc01b7e3e5bd59464be3d-0",
        f"promote run {HELD}",
    ],
    "train.seed=10": [
        "train run there is no finished training for this dataset and these settings; changed since the last run: "
        + CHANGED,
        *(f"{stage} run it depends on the result of train" for stage in ("verify", "evaluate", "promote")),
    ],
}


@pytest.mark.parametrize("override", PLANS)
def test_a_plan_names_what_is_reused_and_why_the_rest_is_not(override: str, golden: Path) -> None:
    assert lines(opened(golden, override)) == [*REUSED, *PLANS[override]]


def test_a_change_that_no_result_depends_on_is_no_reason(golden: Path) -> None:
    own = ("train.seed=10", "train.checkpoint.every_s=90", "train.hang_timeout_s=90", "shards.workers=2")
    assert lines(opened(golden, *own))[2] == PLANS["train.seed=10"][0]


def test_a_set_that_is_still_to_be_made_is_made_by_shard(golden: Path) -> None:
    assert lines(opened(golden, "evaluate.sets.hard.source=rows.csv"))[1:3] == [
        "shard run there is no dataset of evaluate.sets.hard for its files and these shard settings",
        "train run it depends on the result of validate",
    ]


def test_a_stored_rejection_is_reused_by_the_plan_as_by_validate(golden: Path) -> None:
    run = opened(golden, "data.source=bad.csv")
    before = sorted((golden / "store/contracts").iterdir())
    first, *others = plan(run, stages())
    with pytest.raises(ContractRejected) as raised:
        validate(run)
    assert (raised.value.exit_code, run.live.results["validate"].status) == (3, "rejected")
    assert sorted((golden / "store/contracts").iterdir()) == before, "the data was checked again"
    rejected = "contracts/c67a6e033f2699ea6907c982f49e0f93c8a69863-0"
    assert (first.action, first.why) == ("reuse", f"{rejected}: {raised.value.message}")
    assert [(step.name, step.action, step.why) for step in others] == [
        (name, "skip", "the run ends with validate") for name in [*verbs()][1:]
    ]


def test_the_champion_is_still_to_be_scored_where_it_has_no_evaluation(
    golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened(golden, "train.seed=7")
    checkpoint: Checkpoint = EarlierHandoffs(run).handoff(verify)
    other = checkpoint.model_copy(update={"ref": checkpoint.ref.model_copy(update={"id": "0" * 64})})
    monkeypatch.setattr(evaluate, "_champion", lambda run: other)
    assert lines(run)[4:] == [
        "evaluate run the champion has no evaluation on these sets",
        "promote run it depends on the result of evaluate",
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["promote.approvers=['file:nobody.pub']", "promote.approval=manual"], "promote.approvers"),
        (["train.global_batch_size=512"], r"has 492 rows, fewer than train\.global_batch_size 512, so no step"),
    ],
    ids=["a key that is missing", "a batch that the rows do not fill"],
)
def test_what_a_run_would_refuse_is_refused(overrides: list[str], words: str, golden: Path) -> None:
    with pytest.raises(UsageError, match=words):
        plan(opened(golden, *overrides), stages())
