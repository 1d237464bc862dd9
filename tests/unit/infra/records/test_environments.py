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
from infra.store import Store, layout
from tests.support.wheels import write_wheel


def install(wheel: Path, target: Path, installer: str) -> None:
    command = [sys.executable, "-m", *installer.split(), "install", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed a package."""
    folder = tmp_path_factory.mktemp("pip") / "site"
    install(write_wheel(folder.parent, "Some_Stranger", "1.0"), folder, "pip")
    return folder


def test_pip_and_uv_give_one_digest_for_one_wheel(site: Path, tmp_path: Path) -> None:
    sites = [site, tmp_path / "same/site", tmp_path / "poisoned/site"]
    install(write_wheel(tmp_path / "same", "Some_Stranger", "1.0"), sites[1], "uv pip")
    poison = write_wheel(tmp_path / "poisoned", "Some_Stranger", "1.0", {"some_stranger.py": "poison = 1\n"})
    install(poison, sites[2], "uv pip")
    found = [one for place in sites for one in installed_packages(str(place)).packages]
    assert [(one.name, one.version) for one in found] == [("some-stranger", "1.0")] * 3
    assert len(found[0].record) == 64
    assert found[0].record == found[1].record != found[2].record


@pytest.mark.parametrize(
    ("url", "record"), [(None, ""), ('{"url": "file:///x", "dir_info": {"editable": true}}', "editable")]
)
def test_a_package_without_a_record_and_one_run_from_its_sources_say_so(
    site: Path, tmp_path: Path, url: str | None, record: str
) -> None:
    copy = Path(shutil.copytree(site, tmp_path / "site"))
    info = copy / "Some_Stranger-1.0.dist-info"
    (info / "RECORD").unlink()
    if url is not None:
        (info / "direct_url.json").write_text(url)
    assert [one.record for one in installed_packages(str(copy)).packages] == [record]


def test_this_process_imports_from_everything_that_is_installed_here() -> None:
    here = {one.name: one for one in installed_packages(sys.executable).packages}
    assert here["torch"].version == metadata.version("torch")
    assert here["trainwright"].record == "editable"
    assert all(len(here[name].record) == 64 for name in ("torch", "lightning", "prefect"))


def test_an_environment_is_written_once_and_each_run_marks_it(store: Store, tmp_path: Path) -> None:
    """An environment with two packages, one of them in another version than below it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    for name, version in (("Some_Stranger", "1.0"), ("humanize", "0.1")):
        install(write_wheel(tmp_path / "wheels", name, version), packages_folder_in(tmp_path / "env"), "uv pip")
    python = str(tmp_path / "env/bin/python")
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


def test_a_machine_without_the_store_leaves_its_lists_in_a_folder(store: Store, site: Path, tmp_path: Path) -> None:
    """What is installed in a project is written down, too."""
    for name in ("empty", "shared"):
        (tmp_path / name).mkdir()
    assert import_places(tmp_path / "empty") == [sys.executable]
    places = import_places(site)
    assert places == [sys.executable, str(site)]
    keep_lists(str(tmp_path / "shared"), str(site))
    note_lists(store, "run-1", tmp_path / "shared")
    names = store.list(layout.environments())
    assert [store.list(layout.runs_with(name)) for name in names] == [["run-1"]] * 2
    listed = sorted((read_environment(store, name) for name in names), key=len)
    assert listed == [list(installed_packages(place).packages) for place in reversed(places)]
    assert [one.label.partition(" (")[0] for one in listed[0]] == ["some-stranger 1.0"]
