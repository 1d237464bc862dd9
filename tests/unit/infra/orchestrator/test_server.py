"""Where our server listens. (The server itself: tests/integration/test_server.py.)"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.orchestrator import server


@pytest.mark.parametrize(
    ("host", "password", "expected"),
    [
        (None, None, "127.0.0.1"),
        ("localhost", None, "127.0.0.1"),
        ("127.0.0.2", None, "127.0.0.2"),
        ("::1", None, "::1"),
        ("0.0.0.0", "me:secret", "0.0.0.0"),
        ("0.0.0.0", None, "which is reachable from the network, but no password is set"),
        ("192.0.2.7", None, "which is reachable from the network, but no password is set"),
        ("gpu-box", "me:secret", "'gpu-box', which is not an IP address"),
    ],
)
def test_the_network_reaches_the_server_only_with_a_password(
    host: str | None, password: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PREFECT_SERVER_API_HOST", host), ("PREFECT_SERVER_API_AUTH_STRING", password)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    if " " not in expected:
        assert server._host() == expected
        return
    with pytest.raises(UsageError) as caught:
        server._host()
    assert expected in caught.value.message
    assert "secret" not in str(caught.value)


def test_the_port_stays_the_same_from_one_start_to_the_next_and_a_taken_one_is_passed_over(home: Path) -> None:
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        last = probe.getsockname()[1]
    state = {"pid": os.getpid(), "mark": "gone", "url": f"http://127.0.0.1:{last}/api"}
    (home / "server.json").write_text(json.dumps(state))
    with server._listen("127.0.0.1") as first:
        assert first.getsockname()[1] == last
        with server._listen("127.0.0.1") as second:
            assert second.getsockname()[1] != last
            assert server.FIRST_PORT <= second.getsockname()[1] < server.FIRST_PORT + server.PORTS


def test_an_address_that_is_not_this_machines_is_refused(home: Path) -> None:
    with pytest.raises(UsageError, match="cannot listen on 192.0.2.7"):
        server._listen("192.0.2.7")


@pytest.mark.parametrize("its_password", [None, "trainwright:known"])
def test_a_server_is_not_used_without_the_password_in_the_file(
    its_password: str | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    old, new = (server.Service("server", os.getpid(), mark, "http://127.0.0.1:1/api") for mark in ("old", "new"))
    stopped: list[str] = []
    monkeypatch.setattr(server.api, "chosen_server", lambda own_url: None)
    monkeypatch.setattr(server.api, "connect_to", lambda url, password: None)
    monkeypatch.setattr(server, "running_service", lambda name: old)
    monkeypatch.setattr(server, "_wait_until_healthy", lambda service: None)
    monkeypatch.setattr(server, "_start", lambda: new)
    monkeypatch.setattr(server.Service, "variable", lambda service, name: its_password)
    monkeypatch.setattr(server.Service, "stop", lambda service, grace_s: stopped.append(service.mark))
    assert server.ensure_server().started
    assert stopped == ["old"]
