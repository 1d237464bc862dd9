"""A page is never worth a stage. (That one is stored and tied to its run: tests/integration/test_server.py.)"""

from __future__ import annotations

import logging
import socket
import types
import uuid
from typing import Any

import pytest

from infra.orchestrator import artifacts


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == artifacts.__name__]


@pytest.mark.parametrize(
    ("url", "key", "sentence"),
    [
        (None, "digits-train", "because this command uses no server"),
        ("closed", "digits-train", "Connection refused"),
        ("closed", "Digits_Train", "must only contain lowercase letters"),
        ("silent", "digits-train", "timed out"),
    ],
    ids=["no-server", "server-away", "bad-key", "server-hangs"],
)
def test_a_page_that_cannot_be_stored_is_one_warning(
    url: str | None, key: str, sentence: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setattr(artifacts, "TIMEOUT_S", 0.3)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if url == "silent":
            listener.listen()
        if url is not None:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}), caplog.at_level(logging.WARNING):
            artifacts.stage_artifact(key, "# reused", "train")
    (message,) = warnings_of(caplog)
    assert sentence in message
    assert key in message
    assert "\n" not in message


class Server:
    """In place of Prefect's client: keeps what it is told, and fails from the n-th call on."""

    def __init__(self, fails_from: int = 100) -> None:
        self.told: list[tuple[str, float]] = []
        self._fails_from = fails_from

    def _take(self, kind: str, data: float) -> None:
        if len(self.told) >= self._fails_from:
            raise OSError("the server is away")
        self.told.append((kind, data))

    def create_artifact(self, page: Any) -> Any:
        self._take(page.type, page.data)
        return types.SimpleNamespace(id=uuid.uuid4())

    def update_artifact(self, artifact: uuid.UUID, change: Any) -> None:
        self._take("update", change.data)


def shown(server: Server, monkeypatch: pytest.MonkeyPatch, every_s: float) -> list[tuple[str, float]]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setattr(artifacts, "_client", lambda url: server)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        bar = artifacts.ProgressArtifact("digits-shard-progress", every_s)
        for percent in (10.0, 20.0, 30.0, 40.0):
            bar.show(percent, "reading")
        bar.end("5 shards")
    return server.told


def test_a_bar_is_made_once_and_then_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(Server(), monkeypatch, 0) == [
        ("progress", 10),
        ("update", 20),
        ("update", 30),
        ("update", 40),
        ("update", 100),
    ]
    assert shown(Server(), monkeypatch, 60) == [("progress", 10), ("update", 100)]


@pytest.mark.parametrize("fails_from", [0, 2])
def test_a_bar_that_fails_once_is_left_alone(
    fails_from: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(shown(Server(fails_from), monkeypatch, 0)) == fails_from
    assert len(warnings_of(caplog)) == 1
