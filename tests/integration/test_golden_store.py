"""A store that an earlier Trainwright made (tests/golden/store-v1) is used as its owner would use it today."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.tiny import answer, trainwright

pytestmark = pytest.mark.warm

UNFINISHED = "trainings/23f0217776b94fffdc72f83c45da8571f828102a-0"
CANCELLED, REJECTED = "20261122-185259-50d650", "20261122-185249-39338a"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A copy of the golden store beside its project, in a place where it has never been."""
    return Path(shutil.copytree(repository / "tests/golden/store-v1", tmp_path_factory.mktemp("golden") / "copy"))


def command(golden: Path, *arguments: str | Path, expect: int = 0) -> dict:
    done = trainwright(*arguments, "--store", golden / "store", "--json", cwd=golden / "project")
    assert done.returncode == expect, done.stderr
    return answer(done)


@pytest.mark.parametrize(("seed", "evaluation"), [(7, "042cb27e"), (8, "c1e99871")])
def test_every_stage_of_the_same_spec_has_the_key_it_had(golden: Path, seed: int, evaluation: str) -> None:
    """Keys are byte-identical: what was made then is what would be reused now."""
    stages = command(golden, "plan", golden / "project/pipeline.yaml", "--set", f"train.seed={seed}")["stages"]
    assert [(step["name"], step["action"]) for step in stages[:5]] == [
        (name, "reuse") for name in ("validate", "shard", "train", "verify", "evaluate")
    ]
    assert stages[4]["why"].startswith(f"evaluations/{evaluation}")


def test_a_rejected_run_is_still_rejected(golden: Path) -> None:
    report = command(golden, "resume", REJECTED, expect=3)
    assert report["verdict"] == "rejected"


def test_what_was_promoted_is_proven_a_cancelled_run_resumes_and_what_it_promotes_is_rolled_back(golden: Path) -> None:
    assert command(golden, "prove", "tiny@champion")["version"] == 1

    report = command(golden, "resume", CANCELLED)
    assert (report["verdict"], report["model"]["version"]) == ("promoted", 3)
    trained = next(stage for stage in report["stages"] if stage["name"] == "train")
    assert trained["status"] == "ran"
    launch = json.loads((golden / "store" / UNFINISHED / "g1" / "launch.json").read_text())
    # Its conductor did not commit it, so this run adopts it (ADR 0025).
    assert launch["resume"]["ref"]["uri"] == f"{UNFINISHED}/checkpoints/320-g0"

    proof = command(golden, "prove", "tiny@champion")
    assert proof["version"] == 3
    kinds = {link["kind"] for link in proof["links"]}
    assert {"dataset", "checkpoint", "evaluation", "code", "receipt", "model"} <= kinds

    assert command(golden, "rollback", "tiny@champion")["version"] == 1
    assert command(golden, "prove", "tiny@champion")["version"] == 1
