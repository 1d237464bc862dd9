"""What processes import from is written down by whoever starts them, from files, once for each environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError
from infra.environments.packages import packages_folder_in
from infra.records.nodes import (
    import_places,
    installed_packages,
    keep_lists,
    note_environment,
    note_lists,
    read_environment,
)
from infra.store import layout, open_store
from tests.support.wheels import write_wheel


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An environment with two packages, one of them in another version than below it."""
    write_wheel(tmp_path / "wheels", "Some_Stranger", "1.0")
    write_wheel(tmp_path / "wheels", "humanize", "0.1")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    target = packages_folder_in(tmp_path / "env")
    for wheel in (tmp_path / "wheels").iterdir():
        install(wheel, target, "uv")
    return tmp_path / "env"


def install(wheel: Path, target: Path, installer: str) -> None:
    program = [sys.executable, "-m", *([installer] if installer == "uv" else ["pip", "--disable-pip-version-check"])]
    command = [*program, *(["pip"] if installer == "uv" else []), "install", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, capture_output=True)


def test_pip_and_uv_give_one_digest_for_one_wheel(tmp_path: Path) -> None:
    other = write_wheel(tmp_path / "other", "Some_Stranger", "1.0", {"some_stranger.py": "poison = 1\n"})
    wheel = write_wheel(tmp_path, "Some_Stranger", "1.0")
    found = []
    for installer, one in (("uv", wheel), ("pip", wheel), ("uv", other)):
        site = packages_folder_in(tmp_path / f"env{len(found)}")
        install(one, site, installer)
        found += installed_packages(str(site)).packages
    assert [(one.name, one.version) for one in found] == [("some-stranger", "1.0")] * 3
    assert len(found[0].record) == 64
    assert found[0].record == found[1].record != found[2].record


def test_a_package_without_a_record_and_one_run_from_its_sources_say_so(tmp_path: Path) -> None:
    install(write_wheel(tmp_path, "Some_Stranger", "1.0"), tmp_path / "site", "uv")
    info = tmp_path / "site/Some_Stranger-1.0.dist-info"
    (info / "RECORD").unlink()
    assert [one.record for one in installed_packages(str(info.parent)).packages] == [""]
    installed_packages.cache_clear()
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    assert [one.record for one in installed_packages(str(info.parent)).packages] == ["editable"]
    installed_packages.cache_clear()


def test_this_process_imports_from_everything_that_is_installed_here() -> None:
    here = {one.name: one for one in installed_packages(sys.executable).packages}
    assert here["torch"].version == metadata.version("torch")
    assert here["trainwright"].record == "editable"
    assert all(len(here[name].record) == 64 for name in ("torch", "lightning", "prefect"))


def test_an_environment_is_written_once_and_each_run_marks_it(made: Path, tmp_path: Path) -> None:
    store, python = open_store(str(tmp_path / "store")), str(made / "bin/python")
    [name] = {note_environment(store, run_id, python) for run_id in ("run-1", "run-2", "run-1")}
    assert store.list(layout.environments()) == [name]
    assert store.list(layout.runs_with(name)) == ["run-1", "run-2"]
    listed = {one.name: one.version for one in read_environment(store, name)}
    assert (listed["some-stranger"], listed["humanize"]) == ("1.0", "0.1"), "what lies below is shadowed"
    assert listed["torch"] == metadata.version("torch")
    path = tmp_path / "store" / layout.environment(name)
    other = note_environment(store, "run-3", sys.executable)
    path.chmod(0o644)
    shutil.copy(tmp_path / "store" / layout.environment(other), path)
    with pytest.raises(CorruptError):
        read_environment(store, name)
    path.unlink()
    with pytest.raises(CorruptError, match="not the list that its name stands for"):
        read_environment(store, name)


def test_a_machine_without_the_store_leaves_its_lists_in_a_folder(tmp_path: Path) -> None:
    store, folder = open_store(str(tmp_path / "store")), tmp_path / "shared"
    folder.mkdir()
    keep_lists(str(folder), None)
    note_lists(store, "run-1", folder)
    [name] = store.list(layout.environments())
    assert store.list(layout.runs_with(name)) == ["run-1"]
    assert read_environment(store, name) == installed_packages(sys.executable).packages


def test_what_is_installed_in_a_project_is_written_down_too(tmp_path: Path) -> None:
    store, project, folder = open_store(str(tmp_path / "store")), tmp_path / "project", tmp_path / "shared"
    for new in (project, folder):
        new.mkdir()
    assert import_places(project) == [sys.executable]
    installed_packages.cache_clear()
    install(write_wheel(tmp_path, "Some_Stranger", "1.0"), project, "pip")
    assert import_places(project) == [sys.executable, str(project)]
    keep_lists(str(folder), str(project))
    note_lists(store, "run-1", folder)
    listed = [read_environment(store, name) for name in store.list(layout.environments())]
    assert sorted(listed, key=len) == [list(installed_packages(one).packages) for one in (str(project), sys.executable)]
    assert [one.label.partition(" (")[0] for one in min(listed, key=len)] == ["some-stranger 1.0"]
