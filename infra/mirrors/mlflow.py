"""An MLflow server, by its REST API 2.0: one run for each of ours, and our versions and aliases in its registry.

MLflow does not install beside our packages, and its client would not be bounded in time. Nothing in MLflow is created
once, so ours are found by tags that they are created with; only one process at a time may use this for a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from data_contracts.errors import StorageUnavailable, UsageError
from infra.mirrors.endpoint import Endpoint, refused_as

RUN_TAG = "trainwright.run_id"
VERSION_TAG = "trainwright.version"
# Limits of one request to MLflow.
_MOST_METRICS, _MOST_PARAMS, _MOST_TAGS = 1000, 100, 100
_EXISTS, _MISSING = "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"
_API = "/api/2.0/mlflow"
# What every user may ask for.
TRIED = f"{_API}/experiments/search?max_results=1"


@dataclass(frozen=True, kw_only=True)
class MlflowRun:
    """What MLflow is to know of a run.

    Attributes:
        metrics: `{"key", "value", "timestamp", "step"}` each; equal ones are one metric, so they may be sent again.
        status: `FINISHED`, `FAILED` or `KILLED`.
        started_ms, ended_ms: Unix times in milliseconds.
    """

    run_id: str
    experiment: str
    name: str
    params: Mapping[str, str]
    metrics: Sequence[Mapping[str, Any]]
    tags: Mapping[str, str]
    status: str
    started_ms: int
    ended_ms: int


@dataclass(frozen=True)
class Kept:
    """A run as MLflow has it: its id there, and where its artifacts are."""

    id: str
    artifact_uri: str

    @property
    def takes_files(self) -> bool:
        """Whether the server itself takes the run's artifacts."""
        return urlsplit(self.artifact_uri).scheme == "mlflow-artifacts"


class Mlflow:
    """The server behind `endpoint`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def put_run(self, run: MlflowRun) -> Kept:
        """Make the run, or bring it up to date. UsageError and StorageUnavailable as `Endpoint.ask`."""
        experiment = self._experiment(run.experiment)
        tags = {**run.tags, RUN_TAG: run.run_id, "mlflow.runName": run.name}
        kept = self._found_or_made(
            lambda: self._find_run(experiment, run.run_id),
            "runs/create",
            {
                "experiment_id": experiment,
                "run_name": run.name,
                "start_time": run.started_ms,
                "tags": _pairs({RUN_TAG: run.run_id}),
            },
        )
        for part in _parts(list(run.metrics), _MOST_METRICS):
            self._post("runs/log-batch", {"run_id": kept.id, "metrics": part})
        for part in _parts(_pairs(run.params), _MOST_PARAMS):
            self._post("runs/log-batch", {"run_id": kept.id, "params": part})
        for part in _parts(_pairs(tags), _MOST_TAGS):
            self._post("runs/log-batch", {"run_id": kept.id, "tags": part})
        self._post("runs/update", {"run_id": kept.id, "status": run.status, "end_time": run.ended_ms})
        return kept

    def put_artifact(self, kept: Kept, path: str, file: Path) -> bool:
        """Store a file beside the run; False if the server does not take artifacts itself."""
        if not kept.takes_files:
            return False
        folder = quote(urlsplit(kept.artifact_uri).path.strip("/"))
        self._endpoint.upload(f"/api/2.0/mlflow-artifacts/artifacts/{folder}/{quote(path)}", file)
        return True

    def put_version(self, model: str, version: int, kept: Kept, tags: Mapping[str, str], description: str) -> str:
        """Register our version `version` of a model, if it is not; returns MLflow's own number."""
        self._model(model)
        asked = {
            "name": model,
            "source": f"{kept.artifact_uri}/model",
            "run_id": kept.id,
            "tags": _pairs({**tags, VERSION_TAG: str(version)}),
            "description": description,
        }
        return str(self._found_or_made(lambda: self.find_version(model, version), "model-versions/create", asked))

    def find_version(self, model: str, version: int) -> str | None:
        """MLflow's number of our version; None if it is not registered."""
        chosen = f"name = '{model}' and tags.`{VERSION_TAG}` = '{version}'"
        answer = self._get("model-versions/search", {"filter": chosen, "max_results": "100"})
        numbers = [int(one["version"]) for one in answer.get("model_versions", [])]
        return str(min(numbers)) if numbers else None

    def put_alias(self, model: str, alias: str, number: str) -> None:
        """Make an alias name a version, by MLflow's number."""
        self._post("registered-models/alias", {"name": model, "alias": alias, "version": number})

    def _experiment(self, name: str) -> str:
        def find() -> str | None:
            try:
                found = self._get("experiments/get-by-name", {"experiment_name": name})["experiment"]
            except UsageError as error:
                if refused_as(error) != _MISSING:
                    raise
                return None
            if found.get("lifecycle_stage") == "deleted":
                raise UsageError(
                    f"The experiment {name} was deleted in MLflow.", remedy="Restore it there, or name another one."
                )
            return str(found["experiment_id"])

        return str(self._found_or_made(find, "experiments/create", {"name": name}))

    def _model(self, name: str) -> None:
        try:
            self._post("registered-models/create", {"name": name})
        except UsageError as error:
            if refused_as(error) != _EXISTS:
                raise

    def _find_run(self, experiment: str, run_id: str) -> Kept | None:
        asked = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{RUN_TAG}` = '{run_id}'",
            "max_results": 1,
            "order_by": ["attributes.start_time ASC", "attributes.run_id ASC"],
        }
        runs = self._post("runs/search", asked).get("runs", [])
        return Kept(runs[0]["info"]["run_id"], runs[0]["info"]["artifact_uri"]) if runs else None

    def _found_or_made(self, find: Callable[[], Any], path: str, asked: Mapping[str, Any]) -> Any:
        """What `find` returns, made if it is None; a request whose answer is lost is not repeated unseen."""
        lost: StorageUnavailable | None = None
        for _ in range(3):
            if (found := find()) is not None:
                return found
            try:
                self._endpoint.ask("POST", f"{_API}/{path}", again=False, json=asked)
            except StorageUnavailable as error:
                lost = error
            except UsageError as error:
                if refused_as(error) != _EXISTS:
                    raise
        raise lost or StorageUnavailable(f"MLflow does not list what it made ({path}).", remedy="Look at its log.")

    def _post(self, path: str, asked: Mapping[str, Any]) -> Any:
        return self._endpoint.ask("POST", f"{_API}/{path}", json=asked)

    def _get(self, path: str, asked: Mapping[str, str]) -> Any:
        return self._endpoint.ask("GET", f"{_API}/{path}", params=asked)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _parts(values: Sequence[Any], most: int) -> list[list[Any]]:
    return [list(values[start : start + most]) for start in range(0, len(values), most)]
