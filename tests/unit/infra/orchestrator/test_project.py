"""`prefect`, called in the folder with `prefect.yaml`, talks to our server; a file of the person's own stays."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

import pytest

from infra.orchestrator import project

URL = "http://127.0.0.1:4210/api"


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a prefect.yaml; no checkout to fall back to."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "prefect.yaml").touch()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(project, "CODE_ROOT", tmp_path)
    return folder


def test_prefect_reads_our_address_there_until_it_is_taken_away(folder: Path) -> None:
    from prefect.settings import Settings

    path = project.link(URL)
    assert path == folder / "prefect.toml"
    assert Settings().api.url == URL
    project.unlink()
    assert [entry.name for entry in folder.iterdir()] == ["prefect.yaml"]
    project.unlink()


def test_every_folder_that_was_linked_is_unlinked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "prefect.yaml").touch()
    project.link(URL)
    project.link(URL.replace("4210", "4211"))
    assert tomllib.loads((folder / "prefect.toml").read_text())["api"]["url"].endswith(":4211/api")
    monkeypatch.chdir(second)
    project.link(URL)
    project.unlink()
    assert not (folder / "prefect.toml").exists()
    assert not (second / "prefect.toml").exists()


def test_a_prefect_toml_of_the_persons_own_is_never_touched(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = folder / "prefect.toml"
    theirs.write_text("[logging]\nlevel = 'DEBUG'\n")
    with caplog.at_level(logging.WARNING):
        assert project.link(URL) is None
    assert f"export PREFECT_API_URL={URL}" in caplog.text
    project.unlink()
    assert theirs.read_text() == "[logging]\nlevel = 'DEBUG'\n"


def test_one_that_a_person_wrote_in_place_of_ours_stays(folder: Path) -> None:
    path = project.link(URL)
    assert path is not None
    path.write_text("mine = 1\n")
    project.unlink()
    assert path.read_text() == "mine = 1\n"


def test_a_folder_that_cannot_be_written_to_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Root writes anywhere, so the refusal cannot be had from a file mode.
    monkeypatch.setattr(Path, "write_text", refuse)
    with caplog.at_level(logging.WARNING):
        assert project.link(URL) is None
    assert "cannot be written (Permission denied)" in caplog.text


def test_from_any_other_folder_the_checkout_is_linked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert project.link(URL) is None
    monkeypatch.setattr(project, "CODE_ROOT", folder)
    assert project.link(URL) == folder / "prefect.toml"
