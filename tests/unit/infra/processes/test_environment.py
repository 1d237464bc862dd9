"""The environment that reaches the user's code: everything but credentials that its process does not need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UserCodeError
from data_contracts.messages import Message, children, raw_data
from data_contracts.messages.children import StoreAddress
from infra.child import run_child
from infra.processes.environment import LEFT_OUT, PASS_ENV, explain, for_user_code, is_credential, without_signing
from infra.processes.processes import find_marked
from tests.support.child_module import CHILD, Ask
from tests.support.nodes import Nodes


def at(uri: str, **more: Any) -> dict[str, Any]:
    return {"store": StoreAddress(uri=uri, **more).to_json()}


S3 = at("s3://models/a")
FOLDER = at("/srv/models")
NAMED = at("s3://models/a", options={"key": "env:STORE_KEY", "secret": "env:STORE_SECRET"})
POSTGRES = at("s3://models/a", pointers="postgresql://trainwright:env:NAMES_PASSWORD@db.internal/names")
DVC = {**FOLDER, "sources": [{"uri": "a.csv", "rev": "v1"}, {"uri": "b.csv", "rev": None}]}
SECRETS = [
    "PREFECT_API_KEY PREFECT_API_AUTH_STRING PREFECT_SERVER_API_AUTH_STRING PREFECT_API_URL PREFECT_HOME",
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_WEB_IDENTITY_TOKEN_FILE",
    "GITHUB_TOKEN GH_TOKEN CI_JOB_JWT CI_JOB_TOKEN HF_TOKEN OPENAI_API_KEY ANTHROPIC_API_KEY WANDB_API_KEY",
    "DATABASE_URL APP_DATABASE_URL SENTRY_DSN PGPASSWORD PGHOST PGUSER PGPASSFILE DB_PASS DB_PASSWORD MYSQL_PWD",
    "SSH_AUTH_SOCK GIT_PAT SLACK_WEBHOOK SLACK_WEBHOOK_URL GOOGLE_APPLICATION_CREDENTIALS AZURE_CLIENT_SECRET SSH_KEY",
    "AZURE_STORAGE_CONNECTION_STRING GITHUB_OUTPUT GITHUB_ENV GITHUB_PATH GITHUB_STATE GITHUB_STEP_SUMMARY",
    "FORGEJO_OUTPUT GITEA_ENV BUILDKITE_ENV_FILE DRONE_OUTPUT HARNESS_OUTPUT BITBUCKET_PIPELINES_VARIABLES_PATH",
    "OTEL_EXPORTER_OTLP_HEADERS OTEL_EXPORTER_OTLP_TRACES_HEADERS TRAINWRIGHT_METRICS_TOKEN_FILE",
    "PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_DEFAULT_INDEX UV_INDEX UV_EXTRA_INDEX_URL PIP_FIND_LINKS UV_FIND_LINKS",
    "GX_CLOUD_ACCESS_TOKEN MLFLOW_TRACKING_PASSWORD STORE_KEY STORE_SECRET NAMES_PASSWORD db_passwd wandb_apikey",
]
NEEDED = [
    "PATH HOME PWD OLDPWD USER LANG LC_ALL TZ TMPDIR SHELL TERM HOSTNAME VIRTUAL_ENV PYTHONPATH PYTHONHASHSEED",
    "LD_LIBRARY_PATH LD_PRELOAD CUDA_HOME CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES NCCL_DEBUG NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME OMP_NUM_THREADS MKL_NUM_THREADS KMP_AFFINITY TORCH_LOGS",
    "PYTORCH_CUDA_ALLOC_CONF HF_HOME HF_HUB_OFFLINE TORCHINDUCTOR_CACHE_DIR TOKENIZERS_PARALLELISM KERAS_BACKEND",
    "OTEL_EXPORTER_OTLP_ENDPOINT OTEL_SERVICE_NAME TRACEPARENT",
    "DBUS_SESSION_BUS_ADDRESS WANDB_MODE WANDB_PROJECT MLFLOW_TRACKING_URI AWS_REGION AWS_DEFAULT_REGION AWS_PROFILE",
    "SLURM_JOB_ID KUBERNETES_SERVICE_HOST SSL_CERT_FILE REQUESTS_CA_BUNDLE NO_PROXY XDG_CACHE_HOME KEYBOARD_LAYOUT",
    "TRAINWRIGHT_HOME TRAINWRIGHT_MARK TRAINWRIGHT_STORE_OPTIONS PREFECT__FLOW_RUN_ID PGO_PROFILE",
    "PIP_NO_INDEX UV_NO_INDEX PIP_CACHE_DIR UV_CACHE_DIR",
]
PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n"


def test_a_credential_stays_behind_and_what_code_and_libraries_read_is_passed_on() -> None:
    secrets, needed = " ".join(SECRETS).split(), " ".join(NEEDED).split()
    assert [name for name in secrets if not is_credential(name, "value")] == []
    left = for_user_code(dict.fromkeys([*secrets, *needed], "value"), FOLDER)
    assert left == {**dict.fromkeys(needed, "value"), LEFT_OUT: " ".join(sorted(secrets))}


@pytest.mark.parametrize(
    ("name", "value", "withheld"),
    [
        ("TRACKING", "https://me:hunter2@tracking.internal", True),
        ("BROKER", "redis://:hunter2@broker:6379/0", True),
        ("DEPLOYMENT", PRIVATE_KEY, True),
        ("TRACKING", "https://tracking.internal:5000/a@b", False),
        ("TRACKING", "https://me@tracking.internal", False),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://token@collector.internal", True),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector.internal/v1/traces?api_key=1", True),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.internal:4318", False),
        ("WAREHOUSE", "jdbc:postgresql://db/sales?user=me&password=hunter2", True),
        ("ROWS", "https://blobs.internal/rows.csv?sv=2024&sig=abc", True),
        ("ROWS", "https://raw.s3.amazonaws.com/rows.csv?X-Amz-Expires=60&X-Amz-Signature=abc", True),
        ("BLOBS", "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=abc==", True),
        ("ODBC", "Driver=x;Server=db;Uid=me;Pwd=hunter2", True),
        ("ROWS", "https://blobs.internal/rows.csv?config=1&token_type=word&design=2", False),
        ("LS_COLORS", "di=01;34:ln=01;36", False),
        # Without its proxy a process reaches nothing.
        ("HTTPS_PROXY", "http://me:hunter2@proxy:3128", False),
        ("https_proxy", "http://me:hunter2@proxy:3128", False),
    ],
)
def test_a_value_that_holds_a_password_stays_behind(name: str, value: str, withheld: bool) -> None:
    assert (name not in for_user_code({name: value}, FOLDER)) is withheld


@pytest.mark.parametrize(
    ("told", "passed"),
    [
        (FOLDER, []),
        (S3, ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"]),
        (NAMED, ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "STORE_KEY", "STORE_SECRET"]),
        (POSTGRES, ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "NAMES_PASSWORD", "PGPASSWORD"]),
        (DVC, ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"]),
        ({**FOLDER, "sources": [{"uri": "a.csv", "rev": None}]}, []),
        ({**FOLDER, "sources": [{"uri": "s3://raw/a", "storage_options": {"key": "env:RAW_KEY"}}]},
         ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "RAW_KEY"]),
        # The arguments of a model do not decide which variables it gets.
        ({**FOLDER, "train": {"lightning": {"key": "env:STORE_KEY", "uri": "s3://a"}}}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_what_a_process_opens_itself_it_gets_the_credentials_of(told: dict[str, Any], passed: list[str]) -> None:
    names = (
        "AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN NAMES_PASSWORD PGPASSWORD PREFECT_API_KEY RAW_KEY STORE_KEY STORE_SECRET"
    )
    environ = dict.fromkeys(names.split(), "x")
    left = for_user_code(environ, told)
    assert sorted(set(left) - {LEFT_OUT}) == passed
    assert left[LEFT_OUT].split() == [name for name in names.split() if name not in passed]


def test_its_owner_passes_more_on_and_a_grandchild_gets_no_more_than_its_parent() -> None:
    environ = {"WANDB_API_KEY": "x", "HF_TOKEN": "y", "GH_TOKEN": "z", PASS_ENV: "WANDB_API_KEY, HF_*"}
    child = for_user_code(environ, FOLDER)
    assert child == {"WANDB_API_KEY": "x", "HF_TOKEN": "y", PASS_ENV: environ[PASS_ENV], LEFT_OUT: "GH_TOKEN"}
    assert for_user_code(child, S3) == child


def test_an_error_that_speaks_of_a_variable_says_how_to_pass_it_on() -> None:
    environ = for_user_code({"WANDB_API_KEY": "x", "HF_TOKEN": "y"}, FOLDER)
    error, other = (UserCodeError(f"The user's code raised KeyError: '{name}'.") for name in ("WANDB_API_KEY", "x"))
    usual = other.remedy
    explain(error, environ)
    explain(other, environ)
    assert error.remedy.endswith(
        "set TRAINWRIGHT_PASS_ENV=WANDB_API_KEY where the pipeline (or its worker) is started."
    )
    assert "HF_TOKEN" not in error.remedy
    assert other.remedy == usual


def test_a_child_gets_no_credential(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secrets = " ".join(SECRETS).split()
    for name in secrets:
        monkeypatch.setenv(name, "canary-5f2b")
    monkeypatch.setenv("HF_HOME", "/models")
    folder = StoreAddress(uri="/srv/models")
    environ = run_child(CHILD, Ask(do="environ", store=folder)).environ
    assert "canary-5f2b" not in json.dumps(environ)
    assert environ["HF_HOME"] == "/models"
    assert set(secrets) <= set(environ[LEFT_OUT].split())
    of_store = run_child(CHILD, Ask(do="environ", store=StoreAddress.model_validate(NAMED["store"]))).environ
    passed = {name for name, value in of_store.items() if value == "canary-5f2b"}
    assert {"STORE_KEY", "STORE_SECRET", "AWS_ACCESS_KEY_ID"} <= passed, "those of its own store"
    assert not {"HF_TOKEN", "NAMES_PASSWORD", "PGPASSWORD"} & passed
    with pytest.raises(UserCodeError) as raised:
        run_child(CHILD, Ask(do="read", name="HF_TOKEN"))
    assert "set TRAINWRIGHT_PASS_ENV=HF_TOKEN where" in raised.value.remedy
    monkeypatch.setenv(PASS_ENV, "HF_TOKEN")
    assert run_child(CHILD, Ask(do="read", name="HF_TOKEN")).environ == {"HF_TOKEN": "canary-5f2b"}


REQUESTS = [kind for kind in Message.__subclasses__() if kind.__module__ in (children.__name__, raw_data.__name__)]


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_every_message_names_its_store_and_sources_where_they_are_looked_for(kind: type[Message]) -> None:
    for name, field in kind.model_fields.items():
        assert ("StoreAddress" in str(field.annotation)) is (name == "store")
        assert ("SourceSpec" in str(field.annotation)) is (name == "sources")


def test_a_process_with_packages_that_a_store_names_cannot_sign() -> None:
    environ = {
        "TRAINWRIGHT_SIGNING_KEY": "/home/ada/signing-key.pem",
        "TRAINWRIGHT_SIGNING_KEY_PASSWORD": "hunter2",
        "OTHER": "-----BEGIN PRIVATE KEY-----\nMIG",
        "AWS_SECRET_ACCESS_KEY": "of the store",
    }
    assert without_signing(environ) == {"AWS_SECRET_ACCESS_KEY": "of the store"}


def test_ranks_and_torchrun_get_no_credential(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in " ".join(SECRETS).split():
        monkeypatch.setenv(name, "canary-5f2b")
    monkeypatch.setenv("HF_HOME", "/models")
    nodes = Nodes(tmp_path, ["127.0.0.1"], devices=1)
    try:
        nodes.train()
        processes = [Path(f"/proc/{pid}") for pid in find_marked(nodes.marks[0])]
        for program in ("training.fit.torchrun_agent", "infra.gang.rank_bootstrap"):
            process = next(one for one in processes if program in (one / "cmdline").read_text())
            environment = (process / "environ").read_text()
            assert "canary-5f2b" not in environment, program
            assert "HF_HOME=/models" in environment, program
        assert nodes.end() == [0]
    finally:
        nodes.close()
