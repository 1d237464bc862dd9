"""A run that broke off, from the command line: its checkpoints listed, gone back in, and begun with by another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.store import layout, open_store
from tests.support.damage import overwrite
from tests.support.tiny import MODEL, SPEC, answer, trainwright, write_project

pytestmark = pytest.mark.warm

BREAKS = '''

class Breaks(Net):
    """Raises at its 18th step as long as a file is there."""

    def __init__(self, place: str, **more):
        super().__init__(**more)
        self.place = place

    def training_step(self, batch, batch_idx):
        from pathlib import Path

        if self.global_step == 17 and Path(self.place).exists():
            raise RuntimeError("not yet")
        return super().training_step(batch, batch_idx)
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run that broke off in step 18, with checkpoints of steps 5, 10 and 15."""
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    train = json.loads(json.dumps(SPEC["train"]))
    train["lightning"]["model"] = {"class_path": "net.Breaks", "init_args": {"place": str(folder / "stop")}}
    spec = write_project(folder, {"train": {**train, "checkpoint": {"every_steps": 5, "keep": 3}}})
    (folder / "net.py").write_text(MODEL + BREAKS)
    (folder / "stop").touch()
    done = trainwright("run", spec, "--json")
    assert done.returncode == 8, done.stderr
    (folder / "run").write_text(answer(done)["run_id"])
    return folder


def listed(project: Path) -> dict[str, Any]:
    store = project / ".trainwright"
    return answer(trainwright("checkpoints", (project / "run").read_text(), "--store", store, "--json"))


@pytest.mark.slow
def test_a_run_that_broke_off_goes_back_to_a_step_that_is_committed(project: Path) -> None:
    run_id, store = (project / "run").read_text(), project / ".trainwright"
    before = listed(project)["checkpoints"]
    newest = before[-1]
    assert [(one["step"], one["state"]) for one in before] == [(5, "committed"), (10, "committed"), (15, "committed")]
    assert (newest["bytes"] > 1000, newest["age_s"] >= 0, "train_loss" in newest["metrics"]) == (True, True, True)

    done = trainwright("resume", run_id, "--store", store, "--from", "7")
    assert done.returncode == 2, done.stderr
    assert "has no committed checkpoint of step 7; committed steps: 5, 10, 15." in done.stderr

    (project / "stop").unlink()
    done = trainwright("resume", run_id, "--store", store, "--from", "10", "--json")
    report = answer(done)
    assert (done.returncode, report["verdict"]) == (0, "promoted"), done.stderr
    said = [line.split(maxsplit=1) for line in done.stderr.splitlines()]
    assert {line[0] for line in said if line[1:] and line[1].startswith("reuse ")} >= {"validate", "shard"}
    assert "was begun and not finished; continues from step 10, as requested; step 15 will be set aside" in done.stderr
    assert "train: continues from step 10 (step 15 was set aside at " in done.stderr

    # keep: 3, so 5 and 10 were retired in their time; what was set aside was not.
    found = listed(project)["checkpoints"]
    assert [one["handed_over"] for one in found] == [False] * (len(found) - 1) + [True]
    after = [(one["step"], one["generation"], one["state"]) for one in found]
    assert after[-1][2] == "verified"
    assert (15, 0, "set aside") in after
    assert {generation for _, generation, state in after if state == "committed"} == {1}


def test_another_training_begins_with_the_champion(tmp_path: Path) -> None:
    spec, home = write_project(tmp_path / "tiny"), tmp_path / "tiny" / ".trainwright"
    done = trainwright("run", spec)
    assert done.returncode == 0, done.stderr
    begin = ["--set", "train.init_from=tiny@champion", "--set", "train.seed=9"]
    done = trainwright("plan", spec, *begin)
    assert "\ntrain.init_from: 4 tensors loaded\n" in done.stdout, done.stderr
    done = trainwright("train", spec, *begin, "--json")
    assert done.returncode == 0, done.stderr
    told = answer(done)
    assert told["stage"]["sentence"].endswith(", begun with tiny@champion: 4 tensors loaded")
    assert "train: init_from: 4 tensors loaded" in done.stderr
    store = open_store(str(home))
    champion = answer(trainwright("show", "tiny@champion", "--store", home, "--json"))["checkpoint"]["ref"]
    provenance = store.manifest(told["handoff"]["ref"]["uri"]).provenance
    assert champion in provenance["parents"]
    sealed = json.loads(store.read(f"{told['handoff']['ref']['uri']}/train.json"))
    assert sealed["train"]["init_from"] == {"id": champion["id"], "strict": True}

    held = home / champion["uri"] / "weights-0.safetensors"
    overwrite(held, held.read_bytes()[:-1] + b"?")
    done = trainwright("train", spec, *begin)
    assert (done.returncode, "weights-0.safetensors" in done.stderr) == (6, True), done.stderr
    assert store.exists(layout.verified(champion["uri"]))
