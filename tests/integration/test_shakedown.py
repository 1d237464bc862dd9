"""What would end a run after its training ends it before: `plan` and `train` try the training on its first rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny import MODEL, SPEC, SUITE, succeed, trainwright, write_project

pytestmark = pytest.mark.warm
ON = {"TRAINWRIGHT_NO_SHAKEDOWN": ""}
SEVERAL = "evaluate.metrics.accuracy.init_args.average=none"


def noting(builds: Path) -> str:
    """The model, which notes each time that it is built."""
    build = "        super().__init__()\n"
    return MODEL.replace(
        build, f"{build}        with open({str(builds)!r}, 'a') as file:\n            file.write('x')\n"
    )


def test_it_ends_a_plan_and_a_training_and_is_not_repeated(tmp_path: Path) -> None:
    home, builds = {"TRAINWRIGHT_HOME": str(tmp_path / "home"), **ON}, tmp_path / "builds"
    spec = write_project(tmp_path / "tiny")
    spec.with_name("net.py").write_text(noting(builds))
    trainings = tmp_path / "tiny/.trainwright/trainings"
    done = succeed("plan", spec, "--no-estimate", env=home)
    assert "no shakedown of the training now: no shards exist yet" in done.stderr
    for verb in ("validate", "shard"):
        assert trainwright(verb, spec, env=home).returncode == 0
    assert not builds.exists()

    done = trainwright("train", spec, "--set", SEVERAL, env=home)
    assert done.returncode == 2, done.stderr
    assert "evaluate.metrics.accuracy: it gives 2 numbers, one is needed; met before the training" in done.stderr
    assert "Choose an average" in done.stderr
    assert "train     rejected" in done.stderr
    assert not trainings.exists()

    def built() -> int:
        """How often a plan builds the model."""
        before = len(builds.read_text())
        succeed("plan", spec, "--no-estimate", env=home)
        return len(builds.read_text()) - before

    assert built() > 0
    assert built() == 0, "the same code and data are not tried twice"
    assert len(json.loads((tmp_path / "home/shakedowns.json").read_text())) == 1
    with spec.with_name("net.py").open("a") as file:
        file.write("\n\nclass Other(Net):\n    pass\n")
    assert built() > 0, "other code is tried"

    succeed("train", spec, "--set", SEVERAL, "--no-shakedown", env=home)
    assert trainings.exists()


def test_columns_that_the_predictions_lack_are_named_before_the_training(tmp_path: Path) -> None:
    home = {"TRAINWRIGHT_HOME": str(tmp_path / "home"), **ON}
    missing = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "prediction_2"}}
    predictions = {"suite": {**SUITE, "expectations": [missing]}}
    spec = write_project(tmp_path / "tiny", {"contract": {**SPEC["contract"], "predictions": predictions}})
    for verb in ("validate", "shard"):
        assert trainwright(verb, spec, env=home).returncode == 0
    done = trainwright("plan", spec, env=home)
    assert done.returncode == 2, done.stderr
    assert "contract.predictions: the predictions have no column 'prediction_2'" in done.stderr
    assert "They have prediction, prediction_0, prediction_1." in done.stderr
