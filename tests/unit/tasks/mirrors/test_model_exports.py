"""A promoted model's files in MLflow; with --slow in a real MLflow."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from data_contracts.errors import GateNotMet, StorageUnavailable, TrainwrightError, UsageError, UserCodeError
from data_contracts.run_report import RunReport
from flows.cli import main
from infra.mirrors import Deadline, Endpoint, Kept, Mlflow
from infra.store import Store, layout
from tasks.export import export
from tasks.mirrors import deliver, updates
from tasks.mirrors.deliver import due, due_of_run
from tasks.mirrors.updates import FILES_TAG, NOT_WANTED, put_version
from tasks.run.report import latest_report
from tests.support.real_mlflow import WHO, environment, served
from tests.support.stub_server import FakeMlflow, serving
from tests.unit.tasks.mirrors.test_deliver import promote_again

pytestmark = pytest.mark.warm

OURS, ELSEWHERE = Kept("r0", "mlflow-artifacts:/1/r0/artifacts"), Kept("r0", "s3://bucket/r0")


def report_in(store: Store) -> RunReport:
    [run_id] = store.list(layout.runs())
    return latest_report(store, run_id)


def registered(store: Store, error: Exception | None, kept: Kept = OURS, files: bool = True) -> FakeMlflow:
    """What MLflow has after a promotion whose export writes two files, or raises."""

    def exported(_store: Any, name: str, target: str, folder: Path, on_poll: Any) -> None:
        assert (name, target) == ("tiny@1", "mlflow")
        on_poll()
        if error is not None:
            raise error
        folder.mkdir()
        (folder / "MLmodel").write_text("a")
        (folder / "model.onnx").write_text("b")

    fake = FakeMlflow()
    with pytest.MonkeyPatch.context() as patch, serving(fake) as (address, got):
        patch.setattr(updates, "export", exported)
        with Endpoint("MLflow", address, {}, Deadline(60)) as endpoint:
            for _ in range(2):
                assert put_version(store, Mlflow(endpoint), kept, report_in(store), Deadline(60), files) == "10"
    order = [one.path.rpartition("/")[2] for one in got if one.method == "PUT" or one.path.endswith("versions/create")]
    assert order == ([*(["MLmodel", "model.onnx"] if fake.files else []), "create"])  # told twice, sent once
    return fake


def test_the_files_are_sent_before_the_version_is_made(store: Store) -> None:
    fake = registered(store, None)
    at = "1/r0/artifacts/model"
    assert fake.files == {f"{at}/MLmodel": b"a", f"{at}/model.onnx": b"b"}
    assert fake.versions[0]["source"] == f"{OURS.artifact_uri}/model"
    assert FILES_TAG not in fake.versions[0]["tags"]


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (UserCodeError("aten::secret 17.5"), "cannot be traced"),
        (GateNotMet("differs by 17.5"), "outputs differ"),
        (UsageError("no onnx, 17.5"), "what is missing"),
    ],
)
def test_a_model_that_cannot_be_exported_is_registered_and_says_why(
    error: TrainwrightError, word: str, store: Store
) -> None:
    fake = registered(store, error)
    assert fake.files == {}
    assert word in fake.versions[0]["tags"][FILES_TAG]
    assert "17.5" not in json.dumps(fake.versions)


def test_files_that_are_not_wanted_or_not_taken_are_not_made(store: Store) -> None:
    never = RuntimeError("exported")
    assert registered(store, never, files=False).versions[0]["tags"][FILES_TAG] == NOT_WANTED
    assert "does not take files" in registered(store, never, ELSEWHERE).versions[0]["tags"][FILES_TAG]


def test_an_export_ends_with_the_time_for_it(store: Store) -> None:
    fake = FakeMlflow()
    report = report_in(store)
    with (
        serving(fake) as (address, _),
        Endpoint("MLflow", address, {}, Deadline(60)) as endpoint,
        pytest.raises(StorageUnavailable, match="not exported in time"),
    ):
        put_version(store, Mlflow(endpoint), OURS, report, Deadline(0), True)
    assert (fake.files, fake.versions) == ({}, [])


PREDICT = """
import json, sys, mlflow, numpy
model = mlflow.pyfunc.load_model("models:/tiny@champion")
rows = {name: numpy.array(values) for name, values in json.loads(sys.argv[1]).items()}
[made] = model.predict(rows).values()
client = mlflow.MlflowClient()
[experiment] = [one for one in client.search_experiments() if one.name == "e"]
print(json.dumps({
    "made": made.tolist(),
    "runs": len(client.search_runs([experiment.experiment_id])),
    "versions": [one.version for one in client.search_model_versions("name = 'tiny'")],
}))
"""


@pytest.mark.slow
def test_mlflow_itself_loads_what_was_promoted(
    store: Store, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = environment(tmp_path_factory)
    (tmp_path / "server").mkdir()
    with served(python, tmp_path / "server") as (address, variables):
        monkeypatch.setattr(
            deliver, "Endpoint", lambda name, _uri, _access, deadline: Endpoint(name, address, {"auth": WHO}, deadline)
        )
        runs: list[Kept] = []

        def with_files(store: Store, server: Mlflow, kept: Kept, report: Any, deadline: Deadline, _: bool) -> str:
            runs.append(kept)
            return put_version(store, server, kept, report, deadline, True)

        monkeypatch.setattr(deliver, "put_version", with_files)
        [left] = due(store)
        assert deliver.tell(store, lambda: [left], Deadline(300)) == []
        again = due_of_run(store, left.about, again=True)
        assert deliver.tell(store, lambda: again, Deadline(300)) == []
        promote_again(store, 2)
        with Endpoint("MLflow", address, {"auth": WHO}, Deadline(300)) as endpoint:
            server = Mlflow(endpoint)
            server.put_alias("tiny", "champion", server.put_version("tiny", 2, runs[0], {}, ""))
        assert main(["rollback", "tiny", "--to", "1", "--store", store.uri]) == 0
        deliver.tell(store, lambda: due(store), Deadline(300))
        rows = {"a": [0.5, -0.5, 0.1], "b": [0.2, 0.3, -0.9], "c": [0.0, 0.7, 0.4]}
        words = [python, "-W", "ignore", "-c", PREDICT, json.dumps(rows)]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["runs"], sorted(map(str, told["versions"]))) == (1, ["1", "2"])
    export(store, "tiny@champion", "safetensors", tmp_path / "tensors")
    weights = load_file(next((tmp_path / "tensors").glob("*.safetensors")))
    hidden = np.stack([rows[name] for name in "abc"], axis=1) @ weights["net.0.weight"].T + weights["net.0.bias"]
    wanted = np.maximum(hidden, 0) @ weights["net.2.weight"].T + weights["net.2.bias"]
    np.testing.assert_allclose(told["made"], wanted, atol=1e-5)
