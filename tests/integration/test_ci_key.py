"""`run --trigger ci` started twice with one key is one run: the second waits for the first and answers the same."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import server_url
from tests.support.tiny import answer, trainwright, write_project

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]

WORSE = "train.lightning.model.init_args.lr=0.0000001"


def at_once(spec: Path, repository: Path, times: int) -> list[tuple[int, dict[str, Any]]]:
    """The same command in several processes, started together: exit code and answer of each."""

    def run(_: int) -> subprocess.CompletedProcess[str]:
        return trainwright("run", spec, "--trigger", "ci", "--json", cwd=repository, timeout_s=600)

    with ThreadPoolExecutor(times) as started:
        return [(done.returncode, answer(done)) for done in started.map(run, range(times))]


def made(store: Path) -> dict[str, int]:
    """How many there are of each thing that a run makes once."""
    areas = {area: f"{area}/*" for area in ("contracts", "datasets", "trainings", "evaluations", "runs", "triggers")}
    areas |= {"versions": "models/tiny/*", "generations": "trainings/*/g*/launch.json"}
    return {area: len(list(store.glob(pattern))) for area, pattern in areas.items()}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny project under git, its store inside; the server is up, so that two started at once run at once."""
    return tracked_project(tmp_path_factory.mktemp("ci"))


def tracked_project(folder: Path) -> Path:
    spec = write_project(folder)
    lines = (spec.parent / "rows.csv").read_text().splitlines()
    lines[3] = "2,17.5,0.1,0.1,1"
    (spec.parent / "bad.csv").write_text("\n".join(lines) + "\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=spec.parent, check=True)
    server_url()
    return spec


@pytest.mark.parametrize("times", [2, pytest.param(12, marks=pytest.mark.sweep)])
def test_several_at_once_train_once_and_all_tell_of_the_promotion(times: int, tmp_path: Path, repository: Path) -> None:
    spec = tracked_project(tmp_path)
    store = spec.parent / ".trainwright"
    answers = at_once(spec, repository, times)
    first = answers[0][1]
    assert answers == [(0, first)] * times
    assert made(store) == dict.fromkeys(made(store), 1)
    assert (first["verdict"], first["trigger"], first["dirty"]) == ("promoted", "ci", False)
    assert {stage["status"] for stage in first["stages"]} == {"ran"}
    assert first["cost"]["node_seconds"] > 0

    later = trainwright("run", spec, "--trigger", "ci", "--json")
    assert (later.returncode, answer(later)) == (0, first)
    assert made(store) == dict.fromkeys(made(store), 1)


@pytest.mark.parametrize(
    ("override", "code", "verdict"),
    [pytest.param(WORSE, 4, "not_promoted", marks=pytest.mark.slow), ("data.source=bad.csv", 3, "rejected")],
)
def test_a_refusal_is_repeated_with_its_exit_code(spec: Path, override: str, code: int, verdict: str) -> None:
    before = made(spec.parent / ".trainwright")
    answers = []
    for _ in range(2):
        done = trainwright("run", spec, "--trigger", "ci", "--set", override, "--json")
        answers.append((done.returncode, answer(done)))
    assert answers[0] == answers[1]
    assert (answers[0][0], answers[0][1]["verdict"]) == (code, verdict)
    found = made(spec.parent / ".trainwright")
    assert found["runs"] == before["runs"] + 1
    assert found["generations"] == before["generations"] + (verdict == "not_promoted")
