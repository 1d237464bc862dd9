"""Releases that are too young are refused, and an index that does not say when it got a file is named."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from data_contracts.errors import SpecError, UsageError
from data_contracts.load import load_spec
from infra.environments import cache
from infra.environments.packages import Packages, packages_folder_in, read_requirements
from infra.store import Store
from tasks.run import resolve as resolving
from tasks.run.spec_check import read_spec
from tests.support.stub_server import Asked, serving
from tests.support.tiny import write_project
from tests.support.wheels import write_wheel

NOW = datetime(2026, 11, 28, tzinfo=UTC).timestamp()
DAY_S = 86400.0
OLD, YOUNG = "2026-11-01T00:00:00Z", "2026-11-27T00:00:00Z"
Resolve = Callable[..., Packages]


class Index:
    """An index over HTTP; `times` has the upload time by file, and a file without one has none in the answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.as_html = folder, False
        self.times: dict[str, str] = {}

    def put(self, version: str, time: str | None, build: str = "") -> None:
        """Add a file of the package; its text is its version and build."""
        text = f"text = {version + build!r}\n"
        wheel = write_wheel(self.folder.parent / f"made{build}", "stranger", version, {"stranger.py": text})
        name = wheel.name.replace("-py3", f"-{build}-py3") if build else wheel.name
        wheel = wheel.rename(self.folder / name)
        if time is not None:
            self.times[wheel.name] = time

    def answer(self, asked: Asked) -> tuple[int, Any, dict[str, str]]:
        name = asked.path.rstrip("/").rpartition("/")[2]
        wheels = sorted(path.name for path in self.folder.iterdir())
        if name in wheels:
            return 200, (self.folder / name).read_bytes(), {"Content-Type": "application/octet-stream"}
        if name != "stranger":
            return 404, b"", {}
        if self.as_html:
            links = "".join(f'<a href="/f/{html.escape(one)}">{one}</a>' for one in wheels)
            return 200, links.encode(), {"Content-Type": "text/html"}
        times = {one: {"upload-time": self.times[one]} if one in self.times else {} for one in wheels}
        files = [{"filename": one, "url": f"/f/{one}", "hashes": {}, **times[one]} for one in wheels]
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": files}
        return 200, page, {"Content-Type": "application/vnd.pypi.simple.v1+json"}


@pytest.fixture
def index(tmp_path: Path, few_needs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with an old and a young version, which uv and pip are configured to use; uv is found."""
    (tmp_path / "files").mkdir()
    index = Index(tmp_path / "files")
    index.put("1.0", OLD)
    index.put("2.0", YOUNG)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_FIND_LINKS", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with serving(index.answer) as (address, _):
        for name, value in {
            "UV_DEFAULT_INDEX": f"{address}/simple",
            "PIP_INDEX_URL": f"{address}/simple",
            "PIP_CONFIG_FILE": "/dev/null",
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),  # with uv
        }.items():
            monkeypatch.setenv(name, value)
        yield index


@pytest.fixture
def resolve(index: Index, tmp_path: Path) -> Resolve:
    """Resolves a line of requirements; by default releases must be a week old."""
    file = tmp_path / "requirements.txt"

    def resolved(line: str, days: int = 7, now: float = NOW) -> Packages:
        file.write_text(f"{line}\n")
        return cache.resolve(read_requirements(file, tmp_path), [], None, min_age_days=days, clock=lambda: now)

    return resolved


def test_the_newest_release_that_is_old_enough_is_taken(resolve: Resolve) -> None:
    assert resolve("stranger", days=0).sealed == ("stranger==2.0",)
    packages = resolve("stranger")
    assert packages.sealed == ("stranger==1.0",)
    assert packages.uploaded_before == "2026-11-21T00:00:00+00:00"
    # A week later it is still what the requirements were resolved to, as without the setting.
    assert resolve("stranger", now=NOW + 8 * DAY_S) == packages
    assert Packages.of_files(packages.files(), "here") == packages
    with pytest.raises(SpecError, match=r"stranger==2\.0"):
        resolve("stranger==2.0")


@pytest.mark.parametrize("as_html", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_index_without_upload_times_is_refused(as_html: bool, index: Index, resolve: Resolve) -> None:
    index.times, index.as_html = {}, as_html
    with pytest.raises(SpecError, match="stranger"):
        resolve("stranger")


def test_pip_that_has_no_word_for_it_installs_nothing(resolve: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    if Version(metadata.version("pip")).major >= 26:
        pytest.skip("this pip has one")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(SpecError, match="no such option: --uploaded-prior-to"):
        resolve("stranger")


@pytest.mark.slow
def test_a_file_without_a_time_is_never_taken(index: Index, resolve: Resolve) -> None:
    del index.times["stranger-2.0-py3-none-any.whl"]
    assert resolve("stranger").sealed == ("stranger==1.0",)


@pytest.mark.slow
def test_a_node_takes_no_file_that_was_added_to_the_release_later(
    index: Index, resolve: Resolve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages = resolve("stranger")
    index.put("1.0", YOUNG, build="9")
    monkeypatch.setattr(cache, "_in_use", {})  # as another machine
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "node"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "node-uv"))
    site = packages_folder_in(cache.environment(packages))
    assert (site / "stranger.py").read_text() == "text = '1.0'\n"


@pytest.mark.slow
def test_of_two_clocks_the_earlier_counts(
    index: Index, store: Store, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = {"file": "requirements.txt", "packages": {"min_age_days": 7}}
    path = write_project(tmp_path / "project", {"environment": section})
    (path.parent / "requirements.txt").write_text("stranger\n")
    monkeypatch.setattr(store, "now_s", lambda: NOW)
    monkeypatch.setattr(resolving.time, "time", lambda: NOW + 30 * DAY_S)
    packages = resolving.resolve_environment(read_spec(path), store)
    assert packages.sealed == ("stranger==1.0",)


def test_a_configured_folder_of_wheels_and_a_least_age_exclude_each_other(
    index: Index, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(index.folder))
    with pytest.raises(SpecError, match="UV_FIND_LINKS names wheels, which have no upload times"):
        resolve("stranger")
    assert resolve("stranger", days=0).sealed == ("stranger==2.0",)


def test_wheels_and_a_least_age_exclude_each_other(tmp_path: Path) -> None:
    section = {"file": "requirements.txt", "wheels": ".", "packages": {"min_age_days": 7}}
    with pytest.raises(UsageError, match=r"environment\.wheels.*has no upload times"):
        load_spec(write_project(tmp_path, {"environment": section}), [])
