"""An environment has exactly the packages of a lock: those that are here are linked, others come from wheels."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError, UsageError
from infra.environments.cache import is_intact, make_locked
from infra.environments.packages import dist_infos, packages_folder, packages_folder_in, versions
from tests.support.wheels import write_wheel

# Small, without needs, and installed.
HERE = f"iniconfig=={metadata.version('iniconfig')}"


def test_what_is_here_is_linked_and_the_rest_comes_from_the_wheels(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "gadget", "1.5", needs=["other-gadget"])
    lock = [HERE, "gadget==1.5", "trainwright==0"]
    python = make_locked(tmp_path / "environment", lock, tmp_path / "wheels")
    site = packages_folder_in(tmp_path / "environment")
    assert versions(site) == {"iniconfig": metadata.version("iniconfig"), "gadget": "1.5"}
    assert (site / "iniconfig/__init__.py").samefile(packages_folder() / "iniconfig/__init__.py")
    said = subprocess.run(
        [python, "-c", "import gadget; print(gadget.version)"], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "1.5"


def test_a_lock_that_no_longer_resolves_is_one_sentence(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "gadget", "1.6")
    with pytest.raises(UsageError) as refused:
        make_locked(tmp_path / "environment", [HERE, "gadget==1.5"], tmp_path / "wheels")
    assert refused.value.message.startswith("The lock of 2 packages no longer resolves: ")
    assert "gadget==1.5" in refused.value.message
    assert "\n" not in refused.value.message
    assert "--wheels" in refused.value.remedy


@pytest.mark.parametrize(
    "line", ["-r http://127.0.0.1/x", "gadget==1.5 --index-url http://127.0.0.1", "gadget", "gadget @ file:///x", ""]
)
def test_a_line_of_a_lock_is_a_name_and_a_version(line: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="not a name and a version"):
        make_locked(tmp_path / "environment", [HERE, line], tmp_path)
    assert not (tmp_path / "environment").exists()


def test_a_package_whose_files_were_changed_is_not_linked(tmp_path: Path) -> None:
    found = dist_infos(packages_folder())["iniconfig"]
    assert is_intact(found)
    shutil.copytree(found, tmp_path / found.name)
    shutil.copytree(found.parent / "iniconfig", tmp_path / "iniconfig")
    assert is_intact(tmp_path / found.name)
    with (tmp_path / "iniconfig/__init__.py").open("a") as file:
        file.write("# changed\n")
    assert not is_intact(tmp_path / found.name)
    (tmp_path / "iniconfig/__init__.py").unlink()
    assert not is_intact(tmp_path / found.name)
