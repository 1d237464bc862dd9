"""A project whose code needs a package that Trainwright does not have, and another version of one that it has."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError, UsageError
from flows.stages import stages
from infra import code_bundle
from infra.environments import cache, installer
from infra.records.nodes import installed_packages
from tasks.queries.affected import affected
from tasks.queries.proof import Environment, prove
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages.evaluate import score
from tests.support.tiny import MODEL, write_project
from tests.support.wheels import write_wheel

USE = """\
import sys

import humanize
import stranger

assert stranger.version == {version!r}
assert humanize.version == "4.1.0"
assert "environments" in sys.prefix
"""
CLEAN = """

def clean(batch):
    return batch
"""


def use(folder: Path, version: str) -> None:
    """Let the project need a version of the package, and fail with any other."""
    (folder / "requirements.txt").write_text(f"stranger=={version}\nhumanize<4.2\n")
    (folder / "net.py").write_text(USE.format(version=version) + MODEL)
    (folder / "clean.py").write_text(USE.format(version=version) + CLEAN)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    for version in ("1.2.0", "1.3.0"):
        write_wheel(folder / "wheels", "stranger", version)
    write_wheel(folder / "wheels", "humanize", "4.1.0")
    spec: dict[str, Any] = {
        "environment": {"file": "requirements.txt", "wheels": "../wheels"},
        "shards": {"split": {"key": "id"}, "transform": "clean.clean"},
    }
    path = write_project(folder / "project", spec)
    use(path.parent, "1.2.0")
    return path


@pytest.fixture(scope="module")
def line(project: Path) -> dict[str, Any]:
    """The hand-offs of a run, by stage, and the run."""
    run = open_run(read_spec(project), recorded=False)
    made: dict[str, Any] = {}
    for stage in stages():
        made[stage.name] = stage(run, *(made[taken.name] for taken in stage.takes))
    return {**made, "run": run}


def test_every_process_that_imports_the_code_runs_in_it(line: dict[str, Any]) -> None:
    assert line["promote"].version == 1


def test_the_proof_says_what_it_ran_with(line: dict[str, Any]) -> None:
    run: Run = line["run"]
    packages = code_bundle.packages_in(run.store, run.store.manifest(run.resolved.code))
    assert packages.sealed == ("humanize==4.1.0", "stranger==1.2.0")
    installed = len(packages.install)
    assert prove(run.store, "tiny@champion").environments == {
        run.resolved.code.uri: Environment(packages.digest, 2, installed)
    }
    assert f"torch=={metadata.version('torch').partition('+')[0]}" in packages.install
    assert not {"prefect", "dvc", "great-expectations"} & packages.versions.keys()


def test_what_its_processes_imported_from_is_written_down(line: dict[str, Any]) -> None:
    run: Run = line["run"]
    label = next(one.label for one in installed_packages(sys.executable).packages if one.name == "prefect")
    assert affected(run.store, "prefect").runs == {run.run_id: (label,)}
    found = affected(run.store, "Stranger>=1.2,<1.3")
    [packages] = found.runs.values()
    assert packages[0].startswith("stranger 1.2.0 (RECORD ")
    assert [(one.model, one.version) for one in found.versions] == [("tiny", 1)]
    assert found.aliases == [("tiny", "champion", 1)]
    assert found.unknown_versions == affected(run.store, "stranger==1.3").versions == []
    about = run.store.manifest(line["verify"].ref).provenance
    assert len(about["environments"]) == 2  # our own, and that of the project


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_is_scored_in_its_own(ranks: int, line: dict[str, Any], project: Path) -> None:
    use(project.parent, "1.3.0")
    # Under another alias: a champion is scored as it was trained, by one process.
    asked = [f"evaluate.devices={ranks}", "promote.alias=other"]
    later = open_run(read_spec(project, asked), recorded=False)
    assert later.resolved.code_digest != line["run"].resolved.code_digest
    # The code of `line` refuses 1.3.0.
    evaluation, reused = score(later, line["verify"], line["shard"], afresh=True)
    assert not reused
    assert evaluation.metrics == line["evaluate"].metrics


def test_a_second_run_does_not_ask_the_installer(
    line: dict[str, Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(project.parent, "1.2.0")
    monkeypatch.setattr(cache, "_in_use", {})  # as another process
    monkeypatch.setattr(installer, "run_tied", None)
    assert open_run(read_spec(project), recorded=False).resolved.code == line["run"].resolved.code


@pytest.mark.parametrize(
    ("requirements", "said"), [("numpy<2\n", "numpy<2"), ("-e .\n", "entry 1 is not a package's name")]
)
def test_what_cannot_run_is_refused_before_anything_is_booked(requirements: str, said: str, tmp_path: Path) -> None:
    path = write_project(tmp_path / "project", {"environment": {"file": "requirements.txt", "wheels": "."}})
    (path.parent / "requirements.txt").write_text(requirements)
    with pytest.raises(UsageError) as caught:
        open_run(read_spec(path), recorded=False)
    assert caught.value.exit_code == 2
    assert said in caught.value.message
    assert not list((path.parent / ".trainwright").glob("trainings/*"))


def test_it_is_read_before_a_server_is_started(tmp_path: Path) -> None:
    path = write_project(tmp_path, {"environment": "requirements.txt"})
    with pytest.raises(SpecError, match=r"environment: \S*requirements\.txt is not a text file"):
        read_spec(path).check(None)
