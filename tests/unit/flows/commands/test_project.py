"""`init --with`: files beside a pipeline that is there already."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.templating import apply_values

from data_contracts.errors import SpecError, UsageError
from flows.cli import parser
from flows.commands.project import init
from tests.support.tiny import write_project


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a project."""
    return write_project(tmp_path / "p").parent


def call(*words: str | Path) -> Any:
    return init(parser().parse_args(["init", *map(str, words)]))


def test_files_are_added_to_a_project_and_replace_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    answer = call(folder, "--with", "gitlab", "--with", "prefect", "--with", "gitlab")
    assert answer.value == {
        "spec": f"{folder}/pipeline.yaml",
        "name": "tiny",
        "files": [".gitlab-ci.yml", "prefect.yaml"],
    }
    assert answer.text == f"wrote {folder}/.gitlab-ci.yml\nwrote {folder}/prefect.yaml"
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(UsageError, match=r"prefect\.yaml exists already"):
        call(folder, "--with", "github", "--with", "prefect")
    assert not (folder / ".github").exists()


@pytest.mark.parametrize("extras", [[], ["--with", "github"]])
def test_a_folder_in_use_without_a_pipeline_is_refused(extras: list[str], tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UsageError, match="is not empty"):
        call(tmp_path, *extras)


def test_a_pipeline_alone_is_not_written_over_and_one_that_cannot_be_read_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match="is not empty"):
        call(folder)
    (folder / "pipeline.yaml").write_text("version: 1\nname: A b\n")
    with pytest.raises(SpecError, match=r"pipeline\.yaml:2: name"):
        call(folder, "--with", "github")


@pytest.mark.parametrize("kind", ["link", "file"])
@pytest.mark.parametrize("name", [".github", ".github/workflows"])
def test_nothing_is_written_through_a_folder_that_is_a_link_or_a_file(
    name: str, kind: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(tmp_path / "elsewhere") if kind == "link" else (folder / name).touch()
    with pytest.raises(UsageError, match=rf"{name} is not a folder of the project"):
        call(folder, "--with", "github", "--with", "gitlab")
    assert not any((tmp_path / "elsewhere").iterdir())
    assert not (folder / ".gitlab-ci.yml").exists()


def test_a_dangling_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "prefect.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="exists already"):
        call(folder, "--with", "prefect")
    assert not (tmp_path / "elsewhere").exists()


def test_workflows_stand_where_their_host_reads_them(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name in ("first", "second"):
        call(tmp_path / "models" / name, "--with", "github", "--with", "prefect")
        text = (tmp_path / f".github/workflows/trainwright-{name}.yml").read_text()
        assert f"trainwright ci models/{name}/pipeline.yaml --deployment {name} " in text
        assert (tmp_path / "models" / name / "prefect.yaml").exists()
    call(tmp_path / "models" / "third", "--with", "gitlab")
    assert "trainwright ci models/third/pipeline.yaml " in (tmp_path / ".gitlab-ci.yml").read_text()
    with pytest.raises(UsageError, match=r"'a b/pipeline.yaml' has characters"):
        call(tmp_path / "a b", "--with", "gitlab")
    assert not (tmp_path / "a b").exists()


def test_a_deployment_s_process_does_not_import_from_the_project(folder: Path) -> None:
    """Prefect puts the folder of the pull step on the import path of a process that has passwords and keys."""
    call(folder, "--with", "prefect")
    written = yaml.safe_load((folder / "prefect.yaml").read_text())
    assert written["pull"] == [{"prefect.deployments.steps.set_working_directory": {"directory": "/"}}]
    [build] = written["build"]
    assert build["prefect.deployments.steps.run_shell_script"]["script"] == "pwd"
    [deployment] = apply_values(written["deployments"], {"checkout": {"stdout": str(folder)}})
    assert deployment["parameters"] == {"spec": str(folder / "pipeline.yaml")}
