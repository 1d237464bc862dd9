"""DVC: the repository's own pipeline in a copy of its files, and sources that are tracked at a revision."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.store import open_store
from tests.support.digits import EPOCHS, change_yaml
from tests.support.speed.children import import_path
from tests.support.tiny import answer, trainwright, write_project, write_rows

pytestmark = [pytest.mark.apt("git"), pytest.mark.warm]

REPOSITORY = Path(__file__).parents[2]
COPIED = ("dvc.yaml", ".dvc", ".dvcignore", ".gitignore", "pyproject.toml", "examples/digits")
HANDOFFS = Path("examples/digits/handoffs")
STAGES = ["validate", "shard", "train", "verify", "evaluate", "promote"]


def call(folder: Path, *command: str, **env: str) -> str:
    """What a command printed; it must succeed."""
    someone = {
        f"GIT_{role}_{what}": "someone@example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        **someone,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
        "PYTHONPATH": import_path(),
        **env,
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=560, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with `python`, `dvc` and `trainwright`, even where Trainwright runs without being installed."""
    found = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if not (Path(found[0]) / "trainwright").exists():
        script = tmp_path_factory.mktemp("bin") / "trainwright"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flows.cli "$@"\n')
        script.chmod(0o755)
        found.insert(0, str(script.parent))
    return os.pathsep.join(found)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory, path: str) -> Path:
    """A copy of this repository without the sources, its training shortened, in which `dvc repro` ran once."""
    copy = tmp_path_factory.mktemp("dvc") / "repository"
    listed = call(REPOSITORY, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED)
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, copy / name)
    change_yaml(copy / "examples" / "digits" / "lightning.yaml", ["trainer", "max_epochs"], EPOCHS)
    call(copy, "git", "init", "--quiet")
    call(copy, "git", "add", "--all")
    call(copy, "git", "commit", "--quiet", "--message", "a copy")
    said = call(copy, "dvc", "repro", PATH=path)
    assert [f"Running stage '{stage}'" in said for stage in ("prepare", *STAGES)] == [True] * 7
    return copy


def test_every_stage_leaves_its_hand_off(reproduced: Path) -> None:
    found = {stage: json.loads((reproduced / HANDOFFS / f"{stage}.json").read_text()) for stage in STAGES}
    assert found["validate"]["accepted"]
    assert found["evaluate"]["checkpoint_id"] == found["verify"]["ref"]["id"] == found["train"]["ref"]["id"]
    assert found["promote"]["decision"] == "promoted"
    # What DVC is told to keep, and nothing else, is new in the tree: the store is not.
    assert call(reproduced, "git", "status", "--porcelain") == "?? dvc.lock\n"


def test_a_second_repro_does_nothing(reproduced: Path, path: str) -> None:
    said = call(reproduced, "dvc", "repro", PATH=path)
    assert "Data and pipelines are up to date" in said
    assert "Running stage" not in said


def test_a_changed_setting_runs_again_what_depends_on_it(reproduced: Path) -> None:
    config = reproduced / "examples" / "digits" / "lightning.yaml"
    before = config.read_text()
    try:
        config.write_text(before + "# changed\n")
        assert list(json.loads(call(reproduced, "dvc", "status", "--json"))) == ["train"]
    finally:
        config.write_text(before)


def test_metrics_show_gives_the_metrics(reproduced: Path) -> None:
    shown = json.loads(call(reproduced, "dvc", "metrics", "show", "--json"))
    [[metrics]] = [one["data"].values() for one in shown.values()]
    evaluation = json.loads((reproduced / HANDOFFS / "evaluate.json").read_text())
    assert metrics["data"] == {"accuracy": evaluation["metrics"]["accuracy"]["value"]}
    assert metrics["data"]["accuracy"] >= 0.95


def test_plots_show_gives_the_curves(reproduced: Path) -> None:
    shown = json.loads(call(reproduced, "dvc", "plots", "show", "--json"))
    assert not shown.get("errors")
    curves = {
        name: [(point["step"], point[name]) for point in plot[0]["content"]["data"]["values"] if name in point]
        for plot in shown["data"].values()
        for name in ("train_loss", "val_loss", "val_acc")
        if name in str(plot)
    }
    assert set(curves) == {"train_loss", "val_loss", "val_acc"}
    steps = json.loads((reproduced / HANDOFFS / "train.json").read_text())["step"]
    for name, points in curves.items():
        at = [step for step, _ in points]
        assert at == sorted(set(at)), name
        assert len(at) >= 3, name
        assert at[-1] < steps, name
    assert curves["train_loss"][-1][1] < curves["train_loss"][0][1] / 2
    assert curves["val_acc"][-1][1] > curves["val_acc"][0][1]
    call(reproduced, "dvc", "plots", "show")
    assert (reproduced / "dvc_plots" / "index.html").read_text().count("train_loss") > len(curves["train_loss"])


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A tiny project in a DVC repository with two revisions of its data (600 rows, then 500), and their commits."""
    folder = tmp_path_factory.mktemp("tracked") / "tiny"
    write_project(folder, {"data": {"source": {"uri": "rows.csv", "rev": "v1"}}})
    (folder / ".gitignore").write_text(".trainwright/\n")
    call(folder, "git", "init", "--quiet")
    call(folder, "dvc", "init", "--quiet")
    commits = {}
    for tag, rows in (("v1", 600), ("v2", 500)):
        write_rows(folder / "rows.csv", rows)
        call(folder, "dvc", "add", "--quiet", "rows.csv")
        call(folder, "git", "add", "--all")
        call(folder, "git", "commit", "--quiet", "--message", tag)
        call(folder, "git", "tag", tag)
        commits[tag] = call(folder, "git", "rev-parse", "HEAD").strip()
    return folder, commits


@pytest.mark.slow
def test_a_run_reads_a_tracked_source_at_its_revision_and_records_it(tracked: tuple[Path, dict[str, str]]) -> None:
    folder, commits = tracked
    store = open_store(str(folder / ".trainwright"))
    done = trainwright("run", folder / "pipeline.yaml", "--json")
    assert done.returncode == 0, done.stderr
    report = answer(done)
    assert report["verdict"] == "promoted"
    [file] = json.loads((folder / ".trainwright" / "runs" / report["run_id"] / "resolved.json").read_text())["files"]
    assert file["rev"] == commits["v1"]
    [contract] = store.list("contracts")
    assert store.verify(f"contracts/{contract}").provenance["raw"] == [file]
    # The workspace has moved on to v2; the proof looks at v1.
    proof = answer(trainwright("prove", "tiny@champion", "--store", store.uri, "--data", folder, "--json"))
    assert proof["raw_checked"] == [f"rows.csv@{commits['v1']}"]


@pytest.mark.slow
def test_another_revision_gives_other_rows(tracked: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, commits = tracked
    rows = {}
    for rev in ("v1", "v2", commits["v2"]):
        options = ("--set", f"data.source.rev={rev}", "--store", tmp_path / "store", "--json")
        rows[rev] = answer(trainwright("validate", folder / "pipeline.yaml", *options))["handoff"]["rows"]
    assert rows == {"v1": 600, "v2": 500, commits["v2"]: 500}
    done = trainwright("validate", folder / "pipeline.yaml", "--set", "data.source.rev=v3")
    assert (done.returncode, "v3 is not a revision of the Git repository" in done.stderr) == (2, True)
