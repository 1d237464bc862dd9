"""Credentials are named; what a name stands for is looked up when the store is opened."""

from __future__ import annotations

import pytest

from data_contracts.errors import UsageError
from infra.store.backends.credentials import resolve


def test_named_credentials_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "the key")
    options = {
        "key": "env:A_KEY",
        "client_kwargs": {"aws_session_token": "env:A_KEY", "region_name": "eu-west-1"},
        "anon": False,
        "endpoint_url": "http://localhost:9000",
    }
    assert resolve(options) == {
        "key": "the key",
        "client_kwargs": {"aws_session_token": "the key", "region_name": "eu-west-1"},
        "anon": False,
        "endpoint_url": "http://localhost:9000",
    }
    assert options["key"] == "env:A_KEY"


def test_a_profile_is_s3fs_profile() -> None:
    assert resolve({"key": "profile:work", "secret": "profile:work"}) == {"profile": "work"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"secret": "env:NOT_SET_ANYWHERE"},
            "storage_options.secret names the environment variable NOT_SET_ANYWHERE, which is not set. "
            "Set NOT_SET_ANYWHERE, or name another credential (env:NAME or profile:NAME).",
        ),
        (
            {"client_kwargs": {"key": "env:NOT_SET_ANYWHERE"}},
            "storage_options.client_kwargs.key names the environment variable NOT_SET_ANYWHERE, which is not set. "
            "Set NOT_SET_ANYWHERE, or name another credential (env:NAME or profile:NAME).",
        ),
        (
            {"key": "block:minio"},
            "storage_options.key names the Prefect block minio, which cannot be read outside a flow. "
            "Name the credential as env:NAME or profile:NAME.",
        ),
    ],
)
def test_what_cannot_be_looked_up(options: dict, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolve(options)
    assert str(raised.value) == sentence
