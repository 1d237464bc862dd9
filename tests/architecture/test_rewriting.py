"""What is rewritten before workers start is what pytest itself would have left: see `tests/support/rewriting.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import rewriting

PASSES = "def test_it():\n    assert 1 == 1\n"
FAILS = "def test_it():\n    left = [1, 2]\n    assert left == [1, 3]\n"


def test_a_file_is_rewritten_once_and_again_when_it_changes(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    files = [tmp_path / "test_a.py", tmp_path / "test_b.py"]
    for file in files:
        file.write_text(PASSES)
    assert rewriting.rewrite(pytestconfig, files) == files
    assert rewriting.rewrite(pytestconfig, files) == []
    files[1].write_text(FAILS)
    assert rewriting.rewrite(pytestconfig, files) == [files[1]]


def test_pytest_takes_what_was_rewritten_and_explains_a_failure_by_it(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    file = tmp_path / "test_a.py"
    file.write_text(FAILS)
    rewriting.rewrite_all(pytestconfig, [file])
    [bytecode] = (tmp_path / "__pycache__").iterdir()
    before = bytecode.stat()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "At index 1 diff: 2 != 3" in done.stdout
    assert (bytecode.stat().st_ino, bytecode.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    shutil.rmtree(tmp_path / "__pycache__")


def test_files_are_those_below_what_the_command_line_names(pytestconfig: pytest.Config) -> None:
    files = rewriting.files_with_tests(pytestconfig)
    assert Path(__file__) in files
    assert all(file.name.startswith("test_") for file in files)
