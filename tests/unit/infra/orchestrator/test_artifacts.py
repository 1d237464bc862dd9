"""A page is never worth a stage. (That one is stored and tied to its run: tests/integration/test_server.py.)"""

from __future__ import annotations

import logging
import socket

import pytest

from infra.orchestrator import artifacts


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == artifacts.__name__]


@pytest.mark.parametrize(
    ("url", "key", "sentence"),
    [
        (None, "digits-train", "because no server is in use"),
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
