"""An environment with the packages of a lock: those that are installed here lie below it, others come from wheels."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError, UsageError
from infra.environments.packages import packages_folder_in, versions
from tasks.reproduction.reproduce import make_locked
from tests.support.wheels import write_wheel

# Small, without needs, and installed.
HERE = f"iniconfig=={metadata.version('iniconfig')}"


def test_what_is_here_is_used_and_the_rest_comes_from_the_wheels(tmp_path: Path, home: Path) -> None:
    write_wheel(tmp_path / "wheels", "gadget", "1.5", needs=["other-gadget"])
    python = make_locked(tmp_path / "environment", [HERE, "gadget==1.5", "trainwright==0"], tmp_path / "wheels")
    assert versions(packages_folder_in(tmp_path / "environment")) == {"gadget": "1.5"}
    printed = subprocess.check_output([python, "-c", "import gadget, iniconfig; print(gadget.version)"], text=True)
    assert printed.strip() == "1.5"
    with pytest.raises(UsageError, match="gadget==1.6"):
        make_locked(tmp_path / "second", [HERE, "gadget==1.6"], tmp_path / "wheels")


@pytest.mark.parametrize(
    "line", ["-r http://127.0.0.1/x", "gadget==1.5 --index-url http://127.0.0.1", "gadget", "gadget @ file:///x", ""]
)
def test_a_line_of_a_lock_is_a_name_and_a_version(line: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="not a name and a version"):
        make_locked(tmp_path / "environment", [HERE, line], tmp_path)
    assert not (tmp_path / "environment").exists()
