"""Runs, versions and aliases in MLflow: once each, whatever is lost or repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.mirrors import Deadline, Endpoint, Kept, Mlflow, MlflowRun
from tests.support.stub_server import FakeMlflow, serving

RUN = MlflowRun(
    run_id="20261125-000000-abcdef",
    experiment="e",
    name="n",
    params={f"p{number}": "v" for number in range(250)},
    metrics=[{"key": "loss", "value": 1.0 / (1 + step), "timestamp": 5, "step": step} for step in range(2100)],
    tags={"trainwright.verdict": "promoted"},
    status="FINISHED",
    started_ms=1,
    ended_ms=2,
)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_one_run_and_one_version_though_answers_are_lost(lost: int, tmp_path: Path) -> None:
    fake = FakeMlflow(lose=lost)
    page = tmp_path / "a page.html"
    page.write_bytes(b"x" * 3_000_000)
    with serving(fake) as (address, got), Endpoint("MLflow", address, {}, Deadline(60)) as endpoint:
        server = Mlflow(endpoint)
        for _ in range(2):
            kept = server.put_run(RUN)
            assert server.put_artifact(kept, "report.html", page)
            number = server.put_version("m", 3, kept, {}, "a sentence")
            server.put_alias("m", "champion", number)
    assert kept == Kept("r0", "mlflow-artifacts:/1/r0/artifacts")
    [run], [version] = fake.runs, fake.versions
    assert (len(run["params"]), len(run["metrics"]), run["status"]) == (250, 2100, "FINISHED")
    assert run["tags"]["trainwright.run_id"] == RUN.run_id
    assert (version["tags"], version["source"]) == ({"trainwright.version": "3"}, f"{kept.artifact_uri}/model")
    assert fake.aliases == {"m@champion": "10"}
    assert fake.files == {"1/r0/artifacts/report.html": page.read_bytes()}
    largest = max(len(one.json.get("metrics", [])) for one in got if one.method == "POST")
    assert largest == 1000


def test_a_server_that_keeps_artifacts_elsewhere_gets_none(tmp_path: Path) -> None:
    with Endpoint("MLflow", "http://127.0.0.1:9", {}, Deadline(1)) as endpoint:
        assert not Mlflow(endpoint).put_artifact(Kept("r", "s3://bucket/r"), "f", tmp_path)
