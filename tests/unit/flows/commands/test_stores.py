"""A spec sends this machine's credentials only where the machine's user said that they may go."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.quoting import APPROVED
from flows.cli import main
from tests.support.commands import json_of, output_of
from tests.support.tiny import SPEC, write_project


@pytest.fixture
def elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port of somebody else's, on a machine whose user has approved nothing."""
    monkeypatch.delenv(APPROVED, raising=False)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "team:the-password")
    monkeypatch.setenv("GITHUB_TOKEN", "the-token")
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.setblocking(False)
        yield port


def address_of(port: socket.socket) -> str:
    return f"http://127.0.0.1:{port.getsockname()[1]}"


def was_called(port: socket.socket) -> bool:
    try:
        port.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def at(port: socket.socket, name: str) -> dict[str, Any]:
    return {"endpoint_url": address_of(port), "key": f"env:{name}", "secret": f"env:{name}"}


def changes(kind: str, port: socket.socket, name: str) -> dict[str, Any]:
    """A part of a spec that sends a variable to a port."""
    options = at(port, name)
    weights = {"weights": "s3://bucket/w.safetensors", "digest": f"blake3:{'ab' * 32}", "storage_options": options}
    return {
        "store": {"store": {"uri": "s3://bucket/x", "storage_options": options}},
        "source": {"data": {"source": {"uri": "s3://bucket/rows.csv", "storage_options": options}}},
        "weights": {"train": {**SPEC["train"], "init_from": weights}},
    }[kind]


@pytest.mark.parametrize("name", ["PREFECT_API_AUTH_STRING", "GITHUB_TOKEN"])
@pytest.mark.parametrize("kind", ["store", "source", "weights"])
def test_plan_sends_nothing_that_nobody_approved(
    kind: str, name: str, elsewhere: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    said = output_of(capsys, "plan", str(write_project(tmp_path / "tiny", changes(kind, elsewhere, name))), code=2)
    assert "storage_options.key" in said
    assert name in said
    assert not was_called(elsewhere)
    assert "the-token" not in said
    if name == "GITHUB_TOKEN":
        assert f"trainwright store approve {address_of(elsewhere)} env:GITHUB_TOKEN" in said


def test_a_run_with_a_mirror_or_a_cluster_that_nobody_approved_does_not_start(
    elsewhere: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    dask = f"tcp://127.0.0.1:{elsewhere.getsockname()[1]}"
    for part, sentence in (
        ({"mirrors": {"mlflow": {"uri": address_of(elsewhere), "token": "env:GITHUB_TOKEN"}}}, "mirrors.mlflow.token"),
        ({"shards": {**SPEC["shards"], "runner": {"dask": dask, "scratch": "/s"}}}, "shards.runner.dask"),
    ):
        assert f"{sentence}: nobody on this machine has approved that" in output_of(
            capsys, "run", str(write_project(tmp_path / sentence, part)), code=2
        )
    assert not was_called(elsewhere)


def test_what_is_approved_is_sent(
    elsewhere: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = address_of(elsewhere)
    assert json_of(capsys, "store", "approve", where, "env:GITHUB_TOKEN", "--json")[where] == ["env:GITHUB_TOKEN"]
    assert main(["store", "approve", where, "env:PREFECT_API_AUTH_STRING"]) == 2
    assert main(["store", "approve", where, "GITHUB_TOKEN"]) == 2
    elsewhere.close()  # refuses from here on, which answers at once
    spec = write_project(tmp_path / "tiny", {"store": {"uri": "s3://bucket/x", "storage_options": {
        "endpoint_url": where, "key": "env:GITHUB_TOKEN", "secret": "env:GITHUB_TOKEN",
        "config_kwargs": {"retries": {"max_attempts": 1}},
    }}})  # fmt: skip
    assert "does not answer" in output_of(capsys, "plan", str(spec), code=5)
