"""Which server is meant, and one sentence for each way in which the one that a person named cannot be used."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from data_contracts.errors import StorageUnavailable, TrainwrightError, UsageError
from infra.orchestrator import api
from tests.support.stub_server import Asked, serving

OURS = "http://127.0.0.1:4210/api"
THEIRS = "https://prefect.example.com/api"
PROFILE = f"""
active = "team"
[profiles.team]
PREFECT_API_URL = "{THEIRS}"
[profiles.bare]
[profiles.own]
PREFECT_API_URL = "{OURS}"
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment that may be changed, without Prefect settings; its PREFECT_HOME."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    monkeypatch.setattr(os, "environ", kept | {"PREFECT_HOME": str(tmp_path), "TRAINWRIGHT_HOME": str(tmp_path / "tw")})
    return tmp_path


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a server that is only slow."""
    monkeypatch.setattr(api, "ANSWER_TIMEOUT_S", 60.0)


@pytest.mark.parametrize(
    ("variables", "profiles", "expected"),
    [
        ({}, None, None),
        ({}, "not toml [", None),
        ({}, 'active = "gone"\n', None),
        ({}, PROFILE, (THEIRS, "the active Prefect profile 'team'")),
        ({"PREFECT_PROFILE": "bare"}, PROFILE, None),
        ({"PREFECT_PROFILE": "own"}, PROFILE, None),
        ({"PREFECT_API_URL": ""}, None, None),
        ({"PREFECT_API_URL": OURS}, None, None),
        ({"PREFECT_API_URL": f"{OURS}/"}, PROFILE, None),
        ({"PREFECT_API_URL": "http://other/api/"}, PROFILE, ("http://other/api", "PREFECT_API_URL")),
    ],
    ids=[
        "nothing", "broken-profiles", "no-such-profile", "profile", "profile-without-server", "profile-names-ours",
        "empty-variable", "variable-names-ours", "variable-names-ours-over-profile", "variable-over-profile",
    ],
)  # fmt: skip
def test_the_environment_comes_before_the_profile_and_ours_last(
    environment: Path, variables: dict[str, str], profiles: str | None, expected: tuple[str, str] | None
) -> None:
    os.environ.update(variables)
    if profiles is not None:
        (environment / "profiles.toml").write_text(profiles)
    assert api.chosen_server(OURS) == expected


def test_using_our_server_turns_prefect_to_it_and_keeps_the_persons_keys_out(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(api.sys.modules, "prefect.settings", raising=False)
    os.environ.update(NO_PROXY="example.com", PREFECT_API_AUTH_STRING="of:another server")
    api.connect_to(OURS, "me:secret")
    api.connect_to(OURS, "me:secret")
    assert os.environ["PREFECT_API_URL"] == OURS
    assert Path(os.environ["PREFECT_HOME"]) == environment / "tw" / "prefect"
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "example.com,127.0.0.1"
    assert os.environ["PREFECT_API_AUTH_STRING"] == "me:secret"


def test_a_process_whose_prefect_talks_elsewhere_already_is_stopped(environment: Path) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}), pytest.raises(AssertionError, match=":1/api"):
        api.connect_to(OURS, "me:secret")
    with temporary_settings(restore_defaults={PREFECT_API_URL}), pytest.raises(AssertionError, match="imported before"):
        api.connect_to(OURS, "me:secret")


def reach(url: str) -> api.Server:
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    with temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}):
        return api.reach(url, "PREFECT_API_URL")


def healthy(asked: Asked) -> tuple[int, Any]:
    return 200, "3.8.8" if asked.path.endswith("/admin/version") else True


def test_a_server_of_the_persons_own_is_used_as_it_is() -> None:
    with serving(healthy) as (address, _):
        server = reach(f"{address}/api")
    assert (server.url, server.started, server.ours) == (f"{address}/api", False, False)
    assert server.ui_url == address


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"),
    [
        (
            lambda asked: healthy(asked) if asked.path.endswith("/health") else (401, {}),
            UsageError,
            "refuses the credentials",
        ),
        (lambda asked: (403, {}), UsageError, "refuses the credentials (403)"),
        (lambda asked: (404, {}), UsageError, "is not a Prefect API (404)"),
        (lambda asked: (200, b"<!doctype html>"), UsageError, "is not a Prefect API"),
        (lambda asked: (500, {}), StorageUnavailable, "answers with an error (500)"),
    ],
    ids=["password", "forbidden", "not-found", "other-web-server", "broken"],
)
def test_a_server_that_cannot_be_used_is_refused_in_a_sentence(
    answer: Callable[[Asked], Any], kind: type[TrainwrightError], sentence: str
) -> None:
    with serving(answer) as (address, _), pytest.raises(kind) as caught:
        reach(f"{address}/api")
    assert sentence in caught.value.message
    assert f"{address}/api (from PREFECT_API_URL)" in caught.value.message
    assert caught.value.remedy


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(StorageUnavailable) as caught:
            reach(f"http://me:secret@127.0.0.1:{port}/api")
    assert f"http://127.0.0.1:{port}/api (from PREFECT_API_URL) does not answer" in caught.value.message
    assert "secret" not in str(caught.value)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(("url", "reads"), [(OURS, False), (THEIRS, True)])
def test_a_client_of_a_server_without_tls_reads_no_certificates(url: str, reads: bool) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: url}):
        settings = api.client_settings(30.0, limits=None)
    assert ("verify" not in settings) is reads
    assert (settings["timeout"], settings["limits"]) == (httpx.Timeout(30.0, connect=5.0), None)


def test_a_server_that_answers_with_an_error_is_not_said_to_be_silent() -> None:
    request, response = httpx.Request("POST", OURS), httpx.Response(500)
    away = api.unreachable(httpx.HTTPStatusError("its database is away", request=request, response=response))
    assert away.message == "The Prefect server answers with an error (500)."
    assert "whether its database answers" in away.remedy
