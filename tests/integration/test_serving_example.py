"""examples/serving serves what the alias names, through a promotion, a rejected night and a rollback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.pool import Site, site_of, until
from tests.support.prometheus import free_port
from tests.support.tiny import promote_tiny, trainwright, write_project

pytestmark = [pytest.mark.slow, pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]

SECRET = "b0b5" * 16
ROWS = {"a": [0.1, 0.9], "b": [0.2, 0.8], "c": [0.9, -0.5]}
# Any model that learned something is promoted, so that the second one is.
GATES = {"promote": {"gates": [{"metric": "accuracy", "min": 0.6}]}}

site = site_of()


class Service:
    """A process of examples/serving/serve.py."""

    def __init__(self, store: Path, environment: dict[str, str], repository: Path, log: Path) -> None:
        self.log, port = log, free_port()
        self.api = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60)
        self.api.headers["Authorization"] = f"Bearer {SECRET}"
        command = [
            sys.executable,
            str(repository / "examples/serving/serve.py"),
            "tiny@champion",
            str(store),
            str(port),
        ]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, env={**os.environ, **environment, "SERVING_SECRET": SECRET}, stderr=file
            )

    def version(self) -> int | None:
        """The version that is served, or None."""
        try:
            answer = self.api.get("/")
        except httpx.TransportError:
            return None
        return int(answer.json()["version"]) if answer.status_code == 200 else None

    def predict(self) -> dict[str, Any]:
        return dict(self.api.post("/predict", json=ROWS).raise_for_status().json())

    def loaded(self) -> list[int]:
        """The versions that were loaded, in their order."""
        lines = [line for line in self.log.read_text().splitlines() if "serving {" in line]
        return [int(line.rpartition(" ")[2].rstrip("}")) for line in lines]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A project whose version 1 was promoted by one verb for each stage, of which no event tells."""
    spec = write_project(tmp_path / "tiny", GATES)
    promote_tiny(spec, tmp_path / "home")
    return spec


@pytest.fixture
def service(spec: Path, site: Site, repository: Path, tmp_path: Path) -> Iterator[Service]:
    service = Service(spec.parent / ".trainwright", site.environment, repository, tmp_path / "serving.log")
    yield service
    service.api.close()
    service.process.kill()
    service.process.wait()


def test_the_served_version_follows_the_champion(service: Service, spec: Path) -> None:
    def serves(version: int) -> None:
        until(lambda: service.version() == version, what=service.log.read_text)

    serves(1)
    first = service.predict()
    refused = [
        httpx.post(service.api.base_url.join(path), json=ROWS, headers=headers, trust_env=False, timeout=60).status_code
        for path in ("/reload", "/predict")
        for headers in ({}, {"Authorization": "Bearer no"})
    ]
    assert refused == [401] * 4

    promoted = trainwright("run", spec, "--set", "train.seed=8", "--json")
    assert promoted.returncode == 0, promoted.stderr
    serves(2)
    second = service.predict()
    assert (first["version"], second["version"]) == (1, 2)
    assert first["outputs"] != second["outputs"]

    rows = (spec.parent / "rows.csv").read_text().splitlines()
    (spec.parent / "bad.csv").write_text("\n".join([rows[0], "2,17.5,0.1,0.1,1", *rows[2:]]) + "\n")
    assert trainwright("run", spec, "--set", "data.source=bad.csv", "--json").returncode == 3
    assert service.predict() == second
    back = trainwright("rollback", "tiny@champion", "--store", spec.parent / ".trainwright", "--reason", "recall fell")
    assert back.returncode == 0, back.stderr
    serves(1)
    assert service.predict() == first
    assert service.loaded() == [1, 2, 1]
    assert service.api.post("/predict", json={"a": [0.1]}).status_code == 400
    assert SECRET not in service.log.read_text()
