"""MLflow itself, in an environment of its own: it does not install beside our packages."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infra.processes.processes import end, marked_env, new_mark

PACKAGES = ["mlflow[auth]==3.17.*", "onnx", "onnxruntime"]
WHO = ("admin", "a-password-of-a-test")
READY_S = 300.0
_made: dict[Path, Path] = {}


def environment(factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with MLflow; made once for each process of the tests."""
    root = factory.getbasetemp()
    if root not in _made:
        folder = factory.mktemp("mlflow") / "environment"
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        python = folder / "bin/python"
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, *PACKAGES], check=True)
        _made[root] = python
    return _made[root]


@contextlib.contextmanager
def served(python: Path, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A server that keeps everything in `folder` and asks for `WHO`: its address, and the variables of its client."""
    settings = {
        "default_permission": "READ",
        "database_uri": f"sqlite:///{folder}/auth.db",
        "admin_username": WHO[0],
        "admin_password": WHO[1],
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
    }
    (folder / "auth.ini").write_text("[mlflow]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address, mark = f"http://127.0.0.1:{port}", new_mark()
    own = {
        "MLFLOW_AUTH_CONFIG_PATH": f"{folder}/auth.ini",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "of-a-test",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a dozen more processes
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--app-name", "basic-auth"]
    places = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/files"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "mlflow", "server", *words, *places],
            env=marked_env(mark, own),
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait(address, process, folder / "log.txt")
        client = {
            "MLFLOW_TRACKING_URI": address,
            "MLFLOW_TRACKING_USERNAME": WHO[0],
            "MLFLOW_TRACKING_PASSWORD": WHO[1],
        }
        yield address, {**os.environ, **client, "MLFLOW_DISABLE_TELEMETRY": "true"}
    finally:
        end(mark, process)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{address}/health", timeout=120).status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"MLflow did not start: {log.read_text()[-3000:]}")
