"""The blocks of the tutorial and of the page about a corpus, run one after the other as a reader would, in an empty
folder with its own state folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import script


def printed(commands: str, tmp_path: Path) -> str:
    """What a reader sees who does all of this in an empty folder; it must not fail."""
    state = {"TRAINWRIGHT_HOME": str(tmp_path / "home"), "PREFECT_HOME": str(tmp_path / "prefect")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder = tmp_path / "reader"
    folder.mkdir()
    started = {"cwd": folder, "env": {**os.environ, **state, "PATH": path}, "text": True}
    try:
        done = subprocess.run(["bash", "-c", commands], capture_output=True, check=False, **started)
    finally:
        subprocess.run(["trainwright", "down"], capture_output=True, check=False, **started)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    return told


@pytest.mark.slow
def test_the_tutorial_works(repository: Path, tmp_path: Path) -> None:
    commands = script(repository / "docs/tutorial.md")
    assert commands.count("trainwright run") == 3
    told = printed(commands, tmp_path)
    verdicts = [told.find(word) for word in ("promoted", "unchanged", "rejected")]
    assert -1 < verdicts[0] < verdicts[1], told
    assert verdicts[2] > -1, told


@pytest.mark.slow
def test_the_page_about_a_small_corpus_works(repository: Path, tmp_path: Path) -> None:
    told = printed(script(repository / "docs/small-corpus.md"), tmp_path)
    assert "promoted" in told, told
