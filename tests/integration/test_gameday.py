"""A real game day of a tiny pipeline: what it reports, that nothing of it is left, and what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.processes.processes import find_marked, marked_env, new_mark
from tests.support.pictures import Elements
from tests.support.pool import Site, site_with, until
from tests.support.tiny import SPEC, answer, trainwright, write_project

pytestmark = pytest.mark.warm


def test_a_game_day_says_how_the_line_recovers_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    spec = write_project(folder)
    before = sorted(path.name for path in folder.iterdir())
    faults = ["--only", "conductor-killed", "--only", "checkpoint-damaged"]
    done = trainwright("gameday", spec, "--yes", "--json", *faults, "--set", "retry.hung=0")
    assert done.returncode == 0, done.stderr
    conductor, checkpoint = answer(done)["faults"]
    assert [one["verdict"] for one in (conductor, checkpoint)] == ["as promised"] * 2
    assert [one["same_weights"] for one in (conductor, checkpoint)] == [True, True]
    # Steps 11 to 15 again; with the newest checkpoint damaged, those since the one before.
    assert (conductor["lost_steps"], checkpoint["lost_steps"]) == (5, 15)
    assert checkpoint["cause"] == "corrupt"
    assert 0 < checkpoint["noticed_s"] < checkpoint["recovered_s"] < checkpoint["lost_node_s"] + 0.1
    assert sorted(path.name for path in folder.iterdir()) == before, "no store of the pipeline, and none of its own"
    elements = Elements()
    elements.feed(Path(answer(done)["page"]).read_text())
    assert "2 faults injected, 2 recovered from as promised, 0 not injected." in elements.texts


@pytest.mark.slow
def test_a_training_that_does_not_recover_is_exit_code_3(tmp_path: Path) -> None:
    """With a loss that no step after the fault can take: the module refuses to train in a second generation."""
    spec = write_project(tmp_path / "tiny")
    module = tmp_path / "tiny" / "net.py"
    refuses = (
        "def on_train_start(self):\n        import json\n        import os\n"
        "        if json.load(open(os.environ['TRAINWRIGHT_LAUNCH']))['generation']:\n"
        "            raise ValueError('once')\n\n    def training_step"
    )
    module.write_text(module.read_text().replace("def training_step", refuses))
    done = trainwright("gameday", spec, "--yes", "--json", "--only", "rank-killed")
    assert done.returncode == 3, done.stderr
    (killed,) = answer(done)["faults"]
    assert (killed["verdict"], killed["recovered_s"]) == ("not recovered", None)
    assert killed["why"].startswith("user_code: ")
    assert "tiny: not as promised: rank-killed." in done.stderr


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_fault_leaves_nothing(tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny")
    before = sorted(path.name for path in spec.parent.iterdir())
    mark = new_mark()
    command = [sys.executable, "-m", "flows.cli", "gameday", str(spec), "--yes", "--only", "rank-hung"]
    process = subprocess.Popen(command, env=marked_env(mark), stderr=subprocess.PIPE, text=True)
    until(lambda: list(spec.parent.glob(".trainwright-gameday-*/trainings/*-1/game-day/injected.json")))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=480)
    assert (process.returncode, find_marked(mark)) == (130, []), said
    assert sorted(path.name for path in spec.parent.iterdir()) == before


def test_without_yes_it_only_says_what_it_would_do(tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny", {"retry": {"hung": 0}, "train": {**SPEC["train"], "machine": "local"}})
    before = sorted(path.name for path in (tmp_path / "tiny").iterdir())
    done = trainwright("gameday", spec, "--json", "--at-most", "10m", "--only", "rank-hung", "--only", "node-killed")
    assert done.returncode == 0, done.stderr
    said = answer(done)
    assert (said["would_try"], said["at_most_s"]) == (["node-killed"], 600)
    assert said["not_tried"] == {"rank-hung": "retry.hung is 0, so it ends the training"}
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == before
    listed = answer(trainwright("gameday", "--list", "--json"))
    assert len(listed["faults"]) == 8
    assert "link-cut" in listed["not_tried"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "gameday needs a pipeline spec."),
        (["SPEC", "--at-most", "soon"], "--at-most: 'soon' is not a length of time; write 90m, 26h, 2d or 1w."),
        (["SPEC", "--at-most", "2d"], "--at-most: 2d is not between 1m and 1d."),
        (["SPEC", "--only", "disk-full"], "--only disk-full: a game day does not inject this fault: fills the disk for "
         "everybody who uses it."),
        (["SPEC", "--only", "rank-hung", "--set", "retry.hung=0"], "This pipeline can try none of the faults. "
         "rank-hung: retry.hung is 0, so it ends the training."),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
    ids=["none", "words", "long", "fault", "nothing", "spec"],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny")
    done = trainwright("gameday", *(str(spec) if word == "SPEC" else word for word in arguments), "--yes", "--json")
    assert done.returncode == 2, done.stderr
    assert sentence in answer(done)["error"]["message"]


@pytest.fixture
def site(tmp_path: Path, state_folder: Path) -> Iterator[Site]:
    with site_with(tmp_path / "site", state_folder / "home") as site:
        site.pool("gpu", slots=2)
        yield site


@pytest.mark.slow
@pytest.mark.warm(False)
def test_on_a_pool_it_needs_its_owners_word_and_strikes_its_own_nodes(site: Site, tmp_path: Path) -> None:
    pool = {"launcher": "work-pool", "pool": "gpu", "rollcall_timeout_s": 150}
    spec = write_project(tmp_path / "tiny", {"train": {**SPEC["train"], **pool}})
    environment = {**site.environment, "TRAINWRIGHT_HOME": str(tmp_path / "home")}
    faults = ["--only", "node-killed", "--only", "conductor-killed"]
    # Other files' tests may have left some on the same server.
    earlier = {run["id"] for run in site.ask("/flow_runs/filter", {"limit": 200})}

    def own() -> list[dict[str, Any]]:
        return [run for run in site.ask("/flow_runs/filter", {"limit": 200}) if run["id"] not in earlier]

    def left() -> list[str]:
        return [run["name"] for run in own() if run["state"]["type"] in ("RUNNING", "PENDING", "SCHEDULED")]

    refused = trainwright("gameday", spec, "--yes", "--json", *faults, env=environment)
    assert refused.returncode == 2, refused.stderr
    sentence = "train.pool: nobody has agreed to game days on the work pool gpu."
    assert answer(refused)["error"]["message"] == sentence
    site.ask("/variables/", {"name": "trainwright_gameday", "value": ["gpu"]})
    done = trainwright("gameday", spec, "--yes", "--json", *faults, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = answer(done)["faults"]
    assert [(one["verdict"], one["same_weights"]) for one in found] == [("as promised", True)] * 2
    # A node whose conductor was killed ends by itself, once it sees that the lease stands still.
    until(lambda: not left(), what=left)
    named = {run["name"]: run["state"]["type"] for run in own() if run["name"].startswith("game day: ")}
    assert named == {
        "game day: no fault": "COMPLETED",
        "game day: node-killed": "COMPLETED",
        "game day: conductor-killed": named["game day: conductor-killed"],
    }
    assert site.slots("gpu") == 0
