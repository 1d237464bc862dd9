"""Projects of the stages' tests: sharded in this process, or promoted once for all files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.files import locked
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tests.support.nights import Nights, shard_here
from tests.support.runs import carry_out
from tests.support.tiny import own_modules, write_project


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the shard stage has a child do is done in this process, which saves the start of another."""
    shard_here(monkeypatch)
    with own_modules():
        yield


@pytest.fixture
def nights(here: None, tmp_path: Path) -> Nights:
    """A project to which files are added night by night."""
    return Nights(tmp_path)


@pytest.fixture(scope="session")
def promoted(shared_folder: Path) -> tuple[Path, Path]:
    """A spec and a store with one promoted run of it, made once for all of the session's processes; only copied."""
    folder = shared_folder / "promoted"
    spec, done = folder / "tiny" / "pipeline.yaml", folder / "done"
    with locked(shared_folder / "promoted.lock"), pytest.MonkeyPatch.context() as patch:
        if not done.exists():
            patch.setenv("TRAINWRIGHT_HOME", str(folder / "home"))
            write_project(spec.parent)
            assert carry_out(open_run(read_spec(spec), store_uri=str(folder / "store"))).decision == "promoted"
            done.touch()
    return spec, folder / "store"
