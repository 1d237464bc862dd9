"""What a request to a mirror's server does when the server refuses, fails, hangs or redirects."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from data_contracts.errors import StorageUnavailable, UsageError
from infra import mirrors
from infra.mirrors import Deadline, Endpoint, credentials
from tests.support.approved import approve_here
from tests.support.stub_server import Answer, Asked, serving

SECRET = "s3cret-value"


def access(monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.setenv("THE_TOKEN", SECRET)
    approve_here("http://mirror", "env:THE_TOKEN")
    return credentials(
        "mirrors.mlflow", "http://mirror", {"username": None, "password": None, "token": "env:THE_TOKEN"}
    )


def test_an_error_is_asked_again_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Answer] = [(500, {}), None, (503, {}), (200, {"a": 1})]
    with serving(lambda _: answers.pop(0)) as (address, got), Endpoint("X", address, {}, Deadline(60)) as server:
        assert server.ask("POST", "/p", json={"b": 2}) == {"a": 1}
    assert [one.json for one in got] == [{"b": 2}] * 4


def test_what_may_have_arrived_is_not_repeated_unseen() -> None:
    with (
        serving(lambda _: (500, {})) as (address, got),
        Endpoint("X", address, {}, Deadline(60)) as server,
        pytest.raises(StorageUnavailable, match="answered with an error"),
    ):
        server.ask("POST", "/p", again=False, json={})
    assert len(got) == 1


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((401, {"message": SECRET}), r"refuses the credentials \(401\)"),
        ((400, {"error_code": "INVALID", "message": SECRET}), r"refuses a request \(400, INVALID\)"),
        ((400, {"error_code": f"{SECRET} <b>"}), r"refuses a request \(400\)"),
    ],
)
def test_a_refusal_is_not_asked_again_and_quotes_nothing(
    answer: Answer, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(lambda _: answer) as (address, got),
        Endpoint("X", address, access(monkeypatch), Deadline(60)) as server,
        pytest.raises(UsageError, match=sentence) as caught,
    ):
        server.ask("GET", "/p")
    assert len(got) == 1
    assert got[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in str(caught.value)


def test_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda _: (200, {})) as (elsewhere, leaked):

        def lead(_: Asked) -> Answer:
            return 307, {}, {"Location": f"{elsewhere}/p"}

        with (
            serving(lead) as (address, _),
            Endpoint("X", address, access(monkeypatch), Deadline(60)) as server,
            pytest.raises(UsageError, match="redirect"),
        ):
            server.ask("POST", "/p", json={})
        assert leaked == []


@pytest.mark.parametrize("dribbles", [False, True])
def test_a_server_that_hangs_or_dribbles_is_given_up_at_the_deadline(dribbles: bool) -> None:
    def dribble(listener: socket.socket) -> None:
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError):
            link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while True:  # until the other side has closed the connection
                link.sendall(b" ")
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        if dribbles:
            threading.Thread(target=dribble, args=(listener,), daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Endpoint("X", address, {}, Deadline(1)) as server, pytest.raises(StorageUnavailable, match="in time"):
            server.ask("GET", "/p")
    assert Deadline(0).left_s() == 0
    assert 0 < Deadline(60).left_s() <= 60


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "FIRST_PAUSE_S", 0.001)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with (
            Endpoint("X", address, {}, Deadline(60)) as server,
            pytest.raises(StorageUnavailable, match=r"could not be reached \(ConnectError\)"),
        ):
            server.ask("GET", "/p")


@pytest.mark.parametrize(
    ("address", "name", "sentence"),
    [
        ("http://mirror", "NOT_SET", r"mirrors\.mlflow\.token names the environment variable NOT_SET"),
        ("http://other", "THE_TOKEN", r"mirrors\.mlflow\.token: nobody .* env:THE_TOKEN may be sent to http://other;"),
    ],
)
def test_a_credential_that_is_not_set_or_not_approved_for_the_address_is_named(
    address: str, name: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("THE_TOKEN", SECRET)
    approve_here("http://mirror", "env:NOT_SET")
    with pytest.raises(UsageError, match=sentence):
        credentials("mirrors.mlflow", address, {"token": f"env:{name}"})
