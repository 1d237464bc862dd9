"""`prefect`, called in the folder with `prefect.yaml`, talks to our server; a file of the person's own stays."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest

from infra.orchestrator import lifecycle
from tests.support.files import write_files

URL = "http://127.0.0.1:4210/api"
PASSWORD = "trainwright:a-password"


def named(folder: Path) -> dict[str, Any]:
    """What the file in a folder makes of Prefect's settings."""
    profiles = Path(tomllib.loads((folder / "prefect.toml").read_text())["profiles_path"])
    return tomllib.loads(profiles.read_text())["profiles"]["trainwright"]


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a prefect.yaml; no checkout to fall back to."""
    folder = write_files(tmp_path / "clone", {"prefect.yaml": ""})
    monkeypatch.chdir(folder)
    monkeypatch.setattr(lifecycle, "CODE_ROOT", tmp_path)
    return folder


def test_prefect_reads_our_address_there_until_it_is_taken_away(folder: Path) -> None:
    from prefect.settings import Settings

    path = lifecycle.link_project(URL, PASSWORD)
    assert path == folder / "prefect.toml"
    settings = Settings()
    assert settings.api.url == URL
    assert settings.api.auth_string.get_secret_value() == PASSWORD
    lifecycle.unlink_project()
    assert [entry.name for entry in folder.iterdir()] == ["prefect.yaml"]
    lifecycle.unlink_project()


def test_every_folder_that_was_linked_is_unlinked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = write_files(tmp_path / "second", {"prefect.yaml": ""})
    lifecycle.link_project(URL, PASSWORD)
    lifecycle.link_project(URL.replace("4210", "4211"), PASSWORD)
    assert named(folder)["PREFECT_API_URL"].endswith(":4211/api")
    monkeypatch.chdir(second)
    lifecycle.link_project(URL, PASSWORD)
    lifecycle.unlink_project()
    assert not (folder / "prefect.toml").exists()
    assert not (second / "prefect.toml").exists()


def test_a_prefect_toml_of_the_persons_own_is_never_touched(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = lifecycle.link_project(URL, PASSWORD)
    theirs.write_text("[logging]\nlevel = 'DEBUG'\n")  # in place of ours
    with caplog.at_level(logging.WARNING):
        assert lifecycle.link_project(URL, PASSWORD) is None
    assert f"export PREFECT_PROFILES_PATH={lifecycle.profiles()}" in caplog.text
    lifecycle.unlink_project()
    assert theirs.read_text() == "[logging]\nlevel = 'DEBUG'\n"


def test_from_any_other_folder_the_checkout_is_linked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lifecycle.link_project(URL, PASSWORD) is None
    monkeypatch.setattr(lifecycle, "CODE_ROOT", folder)
    assert lifecycle.link_project(URL, PASSWORD) == folder / "prefect.toml"
