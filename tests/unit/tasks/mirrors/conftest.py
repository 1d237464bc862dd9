"""One promoted run for all tests of this folder, each of which gets a copy of its project and store."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import mirrors as mirrors_module
from infra.store import Store, open_store
from tasks.mirrors import deliver
from tests.support.stub_server import FakeMlflow, serving
from tests.support.tiny import home_with_server, trainwright, work_on_a_copy, write_project

PORT_OF_NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path) -> Path:
    """A committed project whose run promoted version 1 while its MLflow was away."""
    mirrors = {"mlflow": {"uri": PORT_OF_NOBODY, "experiment": "e", "model": False}, "wait_s": 120.0}
    spec = write_project(tmp_path_factory.mktemp("project") / "tiny", {"mirrors": mirrors, "promote": {"gates": []}})
    (spec.parent / ".gitignore").write_text(".trainwright\n__pycache__\nlog.txt\n")
    git = ["git", "-C", str(spec.parent), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    home = tmp_path_factory.mktemp("home")
    with home_with_server(home, shared_folder):
        ran = trainwright("run", spec)
    assert ran.returncode == 0, ran.stderr
    shutil.copy(home / mirrors_module.FILE, spec.parent)
    (spec.parent / "log.txt").write_text(ran.stderr)
    return spec.parent


@pytest.fixture
def project(line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = work_on_a_copy(line, tmp_path, monkeypatch)
    (tmp_path / "home").mkdir()
    shutil.copy(copy / mirrors_module.FILE, tmp_path / "home")  # the same user's, who ran the line
    return copy


@pytest.fixture
def store(project: Path) -> Store:
    return open_store(str(project / ".trainwright"), create=False)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMlflow]:
    """An MLflow at the address that the spec names."""
    fake = FakeMlflow()
    with serving(fake) as (address, _):
        endpoint = deliver.Endpoint
        monkeypatch.setattr(
            deliver,
            "Endpoint",
            lambda name, uri, *rest: endpoint(name, address if uri == PORT_OF_NOBODY else uri, *rest),
        )
        yield fake
