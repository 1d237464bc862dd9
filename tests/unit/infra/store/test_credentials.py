"""Credentials are named; what a name stands for is looked up when the store is opened."""

from __future__ import annotations

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.quoting import APPROVED
from infra.settings import approve, remember_store, state_folder
from infra.store.s3 import check_database, resolve

MINIO = "http://minio:9000"
KEYS = {"key": "env:A_KEY", "secret": "env:A_SECRET", "endpoint_url": MINIO}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose user has approved nothing."""
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(APPROVED, raising=False)
    for name in ("A_KEY", "A_SECRET", "AWS_ACCESS_KEY_ID", "PREFECT_API_AUTH_STRING", "TRAINWRIGHT_SIGNING_KEY"):
        monkeypatch.setenv(name, f"value of {name}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"secret": "env:AWS_NOT_SET_ANYWHERE"},
            "storage_options.secret names the environment variable AWS_NOT_SET_ANYWHERE, which is not set. "
            "Set AWS_NOT_SET_ANYWHERE, or name another credential (env:NAME or profile:NAME).",
        ),
        (
            {"client_kwargs": {"aws_session_token": "env:AWS_NOT_SET_ANYWHERE"}},
            "storage_options.client_kwargs.aws_session_token names the environment variable AWS_NOT_SET_ANYWHERE, "
            "which is not set. "
            "Set AWS_NOT_SET_ANYWHERE, or name another credential (env:NAME or profile:NAME).",
        ),
        (
            {"key": "block:minio", "endpoint_url": MINIO},
            "storage_options.key names the Prefect block minio, which cannot be read outside a flow. "
            "Name the credential as env:NAME or profile:NAME.",
        ),
        (
            {"session_vars": {"config_file": [None, None, "here.ini", None]}},
            "storage_options.session_vars would let AWS's libraries read other variables and files. "
            "Leave it out; name credentials as env:NAME or profile:NAME.",
        ),
    ],
)
def test_what_cannot_be_looked_up(options: dict, sentence: str) -> None:
    approve(MINIO, ["block:minio"])
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        resolve(options)


@pytest.mark.parametrize(
    ("options", "field", "name", "address"),
    [
        (KEYS, "storage_options.key", "env:A_KEY and env:A_SECRET", MINIO),
        ({"secret": "env:A_KEY"}, "storage_options.secret", "env:A_KEY", "https://s3.amazonaws.com"),
        (
            {"key": "env:AWS_ACCESS_KEY_ID", "client_kwargs": {"endpoint_url": MINIO}},
            "storage_options.key", "env:AWS_ACCESS_KEY_ID", MINIO,
        ),
        (
            {"key": "env:AWS_ACCESS_KEY_ID", "endpoint_url": "https://s3.amazonaws.com.example"},
            "storage_options.key", "env:AWS_ACCESS_KEY_ID", "https://s3.amazonaws.com.example",
        ),
        (
            {"key": "env:AWS_ACCESS_KEY_ID", "endpoint_url": "https://abc123.execute-api.us-east-1.amazonaws.com"},
            "storage_options.key", "env:AWS_ACCESS_KEY_ID", "https://abc123.execute-api.us-east-1.amazonaws.com",
        ),
        (
            {"config_kwargs": {"user_agent": "env:AWS_ACCESS_KEY_ID"}},
            "storage_options.config_kwargs.user_agent", "env:AWS_ACCESS_KEY_ID", "https://s3.amazonaws.com",
        ),
        (
            {"key": "env:AWS_ACCESS_KEY_ID", "s3_additional_kwargs": {"Prefix": "env:AWS_ACCESS_KEY_ID"}},
            "storage_options.key", "env:AWS_ACCESS_KEY_ID", "https://s3.amazonaws.com",
        ),
        (
            {"key": "env:AWS_ACCESS_KEY_ID", "endpoint_url": "http://s3.amazonaws.com"},
            "storage_options.key", "env:AWS_ACCESS_KEY_ID", "http://s3.amazonaws.com",
        ),
        (
            {"key": "env:AWS_ACCESS_KEY_ID", "client_kwargs": {"verify": False}},
            "storage_options.key", "env:AWS_ACCESS_KEY_ID", "https://s3.amazonaws.com client_kwargs.verify=False",
        ),
        (
            {"key": "env:AWS_ACCESS_KEY_ID", "config_kwargs": {"proxies": {"https": "http://x"}}},
            "storage_options.key", "env:AWS_ACCESS_KEY_ID",
            "https://s3.amazonaws.com config_kwargs.proxies.https=http://x",
        ),
        ({"endpoint_url": MINIO}, "storage_options", "profile:default", MINIO),
        ({"profile": "work", "endpoint_url": MINIO}, "storage_options.profile", "profile:work", MINIO),
        ({"key": "profile:work", "endpoint_url": MINIO}, "storage_options.key", "profile:work", MINIO),
        ({"anon": True, "endpoint_url": "env:A_KEY"}, "storage_options.endpoint_url", "env:A_KEY", "env:A_KEY"),
    ],
)  # fmt: skip
def test_what_nobody_approved_is_not_sent(options: dict, field: str, name: str, address: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolve(options)
    sentence = f"{field}: nobody on this machine has approved that {name} may be sent to {address}; nothing was sent. "
    assert str(raised.value).startswith(sentence)
    assert f"trainwright store approve {shlex.quote(address)} {name.split()[0]}" in str(raised.value)
    assert "value of" not in str(raised.value)


AWS_KEY = {"key": "env:AWS_ACCESS_KEY_ID"}
AWS = [
    "https://s3.eu-west-1.amazonaws.com/",
    "https://s3.cn-north-1.amazonaws.com.cn",
    "https://s3-fips.dualstack.us-gov-west-1.amazonaws.com",
]
# Case: what is named, and which of it S3 is opened with otherwise (None: it is left out).
RESOLVED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "approved for the address": (
        {
            "key": "env:A_KEY",
            "client_kwargs": {"aws_session_token": "env:A_KEY", "region_name": "eu-west-1"},
            "anon": False,
            "endpoint_url": "http://localhost:9000",
        },
        {"key": "value of A_KEY", "client_kwargs": {"aws_session_token": "value of A_KEY", "region_name": "eu-west-1"}},
    ),
    "AWS gets its own unasked": (AWS_KEY, {"key": "value of AWS_ACCESS_KEY_ID"}),
    **{
        f"AWS at {address}": ({**AWS_KEY, "endpoint_url": address}, {"key": "value of AWS_ACCESS_KEY_ID"})
        for address in AWS
    },
    "AWS with TLS": ({**AWS_KEY, "use_ssl": True}, {"key": "value of AWS_ACCESS_KEY_ID"}),
    "a profile": ({"key": "profile:work", "secret": "profile:work"}, {"key": None, "secret": None, "profile": "work"}),
    "nothing": ({}, {}),
    "another address gets none": ({"anon": True, "endpoint_url": MINIO}, {}),
}


@pytest.mark.parametrize(("options", "changed"), RESOLVED.values(), ids=RESOLVED)
def test_what_is_named_is_looked_up(options: dict[str, Any], changed: dict[str, Any]) -> None:
    approve("http://localhost:9000", ["env:A_KEY"])
    before = copy.deepcopy(options)
    expected = {name: value for name, value in {**options, **changed}.items() if value is not None}
    assert resolve(options) == expected
    assert options == before


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("postgresql://tw:env:A_KEY@db/names", "env:A_KEY"),
        # For the driver, all before `:` is the user.
        ("postgresql://tw?:env:A_KEY@db/names", "env:A_KEY"),
        ("postgresql://tw#:env:A_KEY@db/names", "env:A_KEY"),
        ("postgresql://tw:env%3AA_KEY@db/names", "env:A_KEY"),
        ("postgresql://tw@db/names", "env:PGPASSWORD"),
        ("postgresql://tw:@db/names", "env:PGPASSWORD"),
    ],
)
def test_the_password_of_a_database_is_the_one_that_its_driver_reads(
    address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "value of PGPASSWORD")
    with pytest.raises(UsageError, match=f"that {name} may be sent to"):
        check_database(address)
    with pytest.raises(UsageError, match="is sent to no address"):
        check_database("postgresql://tw?:env:TRAINWRIGHT_SIGNING_KEY@db/names")


@pytest.mark.parametrize("name", ["PREFECT_API_AUTH_STRING", "TRAINWRIGHT_SIGNING_KEY"])
@pytest.mark.parametrize("address", ["http://elsewhere", "https://s3.amazonaws.com"])
def test_our_own_variables_and_those_of_prefect_go_nowhere(
    name: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(APPROVED, json.dumps({address: [f"env:{name}"]}))
    with pytest.raises(UsageError, match=f"storage_options.key names {name}, .* is sent to no address"):
        resolve({"key": f"env:{name}", "endpoint_url": address})
    with pytest.raises(UsageError, match="is sent to no address"):
        approve(address, [f"env:{name}"])


def test_an_approval_is_for_its_names_and_its_address() -> None:
    approve(MINIO, ["env:A_KEY"])
    with pytest.raises(UsageError, match="that env:A_SECRET may be sent"):
        resolve(KEYS)
    approve(MINIO, ["env:A_SECRET"])
    assert resolve({**KEYS, "endpoint_url": f"{MINIO}/"})["secret"] == "value of A_SECRET"
    with pytest.raises(UsageError, match="env:A_KEY and env:A_SECRET may be sent to http://other:9000"):
        resolve({**KEYS, "endpoint_url": "http://other:9000"})
    with pytest.raises(UsageError, match="config_kwargs.proxies"):
        resolve({**KEYS, "config_kwargs": {"proxies": {"http": "http://elsewhere"}}})


def test_an_operator_approves_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(APPROVED, json.dumps({MINIO: ["env:A_KEY", "env:A_SECRET"]}))
    assert resolve(KEYS)["key"] == "value of A_KEY"
    monkeypatch.setenv(APPROVED, "env:A_KEY")
    with pytest.raises(UsageError, match="TRAINWRIGHT_APPROVED does not list approved credentials"):
        resolve(KEYS)


def test_a_store_that_was_used_with_an_earlier_version_stays_approved() -> None:
    remember_store("s3://models", KEYS)
    assert resolve(KEYS)["key"] == "value of A_KEY"
    assert not (state_folder() / "approved.json").exists()
