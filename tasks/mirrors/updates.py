"""What mirrors are sent about a run.

- For MLflow: settings as params, scores and curves as metrics, tags.
- The promoted model's own files, for MLflow.
- OpenLineage events: START and COMPLETE, FAIL or ABORT for the run and for each stage, with facets. They are made after
  the run has ended, from sealed records, so a stage's times follow from the durations of the stages before it. An
  error's message is left out, because it may quote a value of the data: the event says which kind it was, and where to
  read more.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from data_contracts.canonical import canonical
from data_contracts.errors import GateNotMet, StorageUnavailable, UsageError, UserCodeError
from data_contracts.handoffs import ContractReport, Dataset
from data_contracts.run_report import ModelName, RunReport, StageResult
from infra import scratch
from infra.mirrors import Deadline, Kept, Mlflow, MlflowRun
from infra.store import Store
from tasks.export import export
from tasks.pages.facts import Facts

# A curve is thinned to this many points; the first and the last stay.
MOST_POINTS = 10_000
_MOST_KEY, _MOST_PARAM, _MOST_TAG = 250, 500, 5000
_LEFT_OUT = ("version", "store", "mirrors", "tags")
_STATUS = {
    "promoted": "FINISHED",
    "canary": "FINISHED",
    "unchanged": "FINISHED",
    "not_promoted": "FINISHED",
    "cancelled": "KILLED",
}
# A value by MLflow's names.
Metric = dict[str, str | float]
# A tag of a version in MLflow: why it has no files.
FILES_TAG = "trainwright.no_files"
NOT_WANTED = "The spec says that the model's files are not sent."
_ELSEWHERE = "This server does not take files itself, so the model's files are not here."
_UNTRACEABLE = "The model could not be exported; `trainwright export` names the operation that cannot be traced."
_DIFFERENT = "The exported model's outputs differ from the checkpoint's; `trainwright export` says by how much."
_NOT_HERE = "The model could not be exported where its mirror was told; `trainwright export` says what is missing."
# A name and not an address: which server has the sources of this installation is not known.
PRODUCER = "urn:trainwright:mirror:v1"
_SPEC = "https://openlineage.io/spec"
_IDS = uuid.UUID("7d0c9c6e-54f5-4f5a-9c62-6b8cf2a2a9a1")
_TYPES = {"ran": "COMPLETE", "reused": "COMPLETE", "skipped": "COMPLETE", "waiting": "RUNNING", "cancelled": "ABORT"}
_RUN_TYPES = {
    "promoted": "COMPLETE",
    "canary": "COMPLETE",
    "unchanged": "COMPLETE",
    "not_promoted": "COMPLETE",
    "waiting": "RUNNING",
}
Facets = dict[str, object]


def mlflow_run(facts: Facts, report: RunReport, experiment: str) -> MlflowRun:
    """The run as MLflow keeps it."""
    ended = _ms(report.finished)
    return MlflowRun(
        run_id=report.run_id,
        experiment=experiment,
        name=report.run_id,
        params=params(facts),
        metrics=[*_curves(facts, ended), *_scores(facts, report, ended)],
        tags=tags(report),
        status="RUNNING" if report.verdict == "waiting" else _STATUS.get(report.verdict, "FAILED"),
        started_ms=_ms(report.started),
        ended_ms=ended,
    )


def params(facts: Facts) -> dict[str, str]:
    """The resolved spec with dotted names, the Lightning config inlined; long values are cut."""
    resolved = facts.run.resolved
    spec = {name: one for name, one in resolved.spec.items() if name not in _LEFT_OUT}
    spec["train"] = facts.run.train_settings()
    return {_key(name): value[:_MOST_PARAM] for name, value in _flat("", spec) if name}


def tags(report: RunReport) -> dict[str, str]:
    """Verdict, ids, revision, who started it, and the cost tags under `cost.`."""
    model = report.model
    named = {
        "trainwright.pipeline": report.pipeline,
        "trainwright.verdict": report.verdict,
        "trainwright.trigger": report.trigger,
        "trainwright.dataset_id": report.dataset_id,
        "trainwright.checkpoint_id": report.checkpoint_id,
        "trainwright.dirty": str(report.dirty).lower() if report.commit else None,
        "trainwright.model": None if model is None or model.version is None else f"{model.name}:{model.version}",
        "trainwright.cost_usd": None if report.cost.usd is None else f"{report.cost.usd:.6f}",
        "mlflow.source.git.commit": report.commit,
        "mlflow.user": report.actor,
        **{f"cost.{name}": value for name, value in report.tags.items()},
    }
    return {_key(name): value[:_MOST_TAG] for name, value in named.items() if value}


def _scores(facts: Facts, report: RunReport, at_ms: int) -> Iterator[Metric]:
    step = 0 if facts.checkpoint is None else facts.checkpoint.step
    for name, value in report.metrics.items():
        yield _metric(f"evaluate/{name}", value, at_ms, step)


def _curves(facts: Facts, at_ms: int) -> Iterator[Metric]:
    points: dict[str, list[Metric]] = {}
    for record in facts.history:
        for name, value in record.items():
            if name not in ("step", "epoch") and isinstance(value, int | float):
                points.setdefault(name, []).append(_metric(name, float(value), at_ms, int(record.get("step", 0))))
    for curve in points.values():
        stride = math.ceil(len(curve) / MOST_POINTS)
        yield from curve[:-1:stride] if stride > 1 else curve[:-1]
        yield curve[-1]


def _metric(name: str, value: float, at_ms: int, step: int) -> Metric:
    said: float | str = value
    if not math.isfinite(value):  # JSON has no such numbers; MLflow takes them by these names
        said = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return {"key": _key(name), "value": said, "timestamp": at_ms, "step": step}


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif value is not None:
        yield name, value if isinstance(value, str) else canonical(value).decode()


def _key(name: str) -> str:
    """A name with the characters that MLflow takes."""
    return re.sub(r"[^\w.:/ -]", "_", name)[:_MOST_KEY].strip("/ ") or "_"


def _ms(stamp: str) -> int:
    return int(_time(stamp).timestamp() * 1000)


def put_version(store: Store, server: Mlflow, kept: Kept, report: RunReport, deadline: Deadline, files: bool) -> str:
    """Register the version that a run promoted, with its files if it can have them; returns MLflow's own number.

    The files are sent first, so a version that is registered is whole.
    """
    model = report.model
    assert model is not None
    assert model.version is not None
    number = server.find_version(model.name, model.version)
    if number is not None:
        return number
    why = _put_files(store, server, kept, model, deadline) if files else NOT_WANTED
    told = {**tags(report), **({FILES_TAG: why} if why else {})}
    return server.put_version(model.name, model.version, kept, told, report.sentence)


def _put_files(store: Store, server: Mlflow, kept: Kept, model: ModelName, deadline: Deadline) -> str | None:
    """Send the version's files as MLflow reads them; returns why there are none, without a text of the user's code."""
    if not kept.takes_files:
        return _ELSEWHERE
    with scratch.make("mirror") as own:
        folder = own.path / "model"
        try:
            export(store, f"{model.name}@{model.version}", "mlflow", folder, on_poll=_until(deadline))
        except GateNotMet:
            return _DIFFERENT
        except UserCodeError:
            return _UNTRACEABLE
        except UsageError:
            return _NOT_HERE
        for file in sorted(folder.iterdir()):
            server.put_artifact(kept, f"model/{file.name}", file)
    return None


def _until(deadline: Deadline) -> Callable[[], None]:
    def check() -> None:
        if not deadline.left_s():
            raise StorageUnavailable(
                "The model was not exported in time.", remedy="`trainwright mirror` has more time for it."
            )

    return check


def lineage_events(facts: Facts, report: RunReport, namespace: str) -> list[Facets]:
    """The events in order of their times."""
    maker = _Maker(facts, report, namespace)
    return sorted(maker.events(), key=lambda one: str(one["eventTime"]))


class _Maker:
    def __init__(self, facts: Facts, report: RunReport, namespace: str) -> None:
        self.facts, self.report, self.namespace = facts, report, namespace
        self.job = report.pipeline
        # An attempt that failed and the one that continues are two runs of the job.
        self.run_id = str(uuid.uuid5(_IDS, f"{report.run_id}/{report.finished}"))

    def events(self) -> Iterator[Facets]:
        start, end = _time(self.report.started), _time(self.report.finished)
        engine = _facet(
            "ProcessingEngineRunFacet", "1-1-1", version=metadata.version("trainwright"), name="Trainwright"
        )
        facets = {"processing_engine": engine, **self._error(None)}
        kind = _RUN_TYPES.get(self.report.verdict, "ABORT" if self.report.verdict == "cancelled" else "FAIL")
        job = self._job(self.job, "PIPELINE")
        yield self._event("START", start, self.run_id, job, facets)
        yield self._event(kind, end, self.run_id, job, facets)
        for stage in self.report.stages:
            yield from self._stage(stage, start)
            start += timedelta(seconds=stage.seconds)

    def _stage(self, stage: StageResult, start: datetime) -> Iterator[Facets]:
        run_id = str(uuid.uuid5(_IDS, f"{self.run_id}/{stage.name}"))
        parent = {"run": {"runId": self.run_id}, "job": {"namespace": self.namespace, "name": self.job}}
        facets = {"parent": _facet("ParentRunFacet", "1-2-0", **parent), **self._error(stage)}
        job = self._job(f"{self.job}.{stage.name}", "STAGE")
        kind = _TYPES.get(stage.status, "FAIL")
        end = start + timedelta(seconds=stage.seconds)
        data = {"inputs": self._inputs(stage.name), "outputs": self._outputs(stage.name)}
        yield self._event("START", start, run_id, job, facets, **data)
        yield self._event(kind, end, run_id, job, facets, **data)

    def _event(self, kind: str, at: datetime, run_id: str, job: Facets, facets: Facets, **data: list[Facets]) -> Facets:
        return {
            "eventType": kind,
            "eventTime": at.isoformat(timespec="milliseconds"),
            "producer": PRODUCER,
            "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
            "run": {"runId": run_id, "facets": facets},
            "job": job,
            "inputs": data.get("inputs", []),
            "outputs": data.get("outputs", []),
        }

    def _job(self, name: str, kind: str) -> Facets:
        report = self.report
        types = {"processingType": "BATCH", "integration": "TRAINWRIGHT", "jobType": kind}
        facets = {"jobType": _facet("JobTypeJobFacet", "2-0-4", **types)}
        if report.actor:
            owners = [{"name": f"user:{report.actor}", "type": "MAINTAINER"}]
            facets["ownership"] = _facet("OwnershipJobFacet", "1-0-1", owners=owners)
        if report.tags:
            tags = [{"key": key, "value": value, "source": "TRAINWRIGHT"} for key, value in report.tags.items()]
            facets["tags"] = _facet("TagsJobFacet", "1-0-0", tags=tags)
        if report.commit:
            # The revision; which server has it is not sealed with the run.
            place = {"type": "git", "url": Path(self.facts.run.resolved.root).as_uri(), "version": report.commit}
            facets["sourceCodeLocation"] = _facet("SourceCodeLocationJobFacet", "1-1-0", **place)
        return {"namespace": self.namespace, "name": name, "facets": facets}

    def _error(self, stage: StageResult | None) -> Facets:
        failed = self.report.error is not None if stage is None else stage.status in ("failed", "rejected")
        if not failed:
            return {}
        cause = str((self.report.error or {}).get("cause", "failed"))
        said = f"{cause} (exit code {self.report.exit_code}); read why with `trainwright show {self.report.run_id}`"
        facet = _facet("ErrorMessageRunFacet", "1-0-1", message=said, programmingLanguage="PYTHON")
        return {"errorMessage": facet}

    def _inputs(self, stage: str) -> list[Facets]:
        facts = self.facts
        checkpoint = None if facts.checkpoint is None else facts.checkpoint.ref.uri
        evaluation = None if facts.evaluation is None else facts.evaluation.ref.uri
        match stage:
            case "validate" | "shard":
                return [self._raw(index, uri) for index, uri in self._sources()]
            case "train":
                return self._dataset(facts.dataset)
            case "verify":
                return self._result(checkpoint)
            case "evaluate":
                return self._dataset(facts.dataset) + self._result(checkpoint)
            case "promote":
                return self._result(evaluation)
        return []

    def _outputs(self, stage: str) -> list[Facets]:
        facts, report = self.facts, self.report
        checkpoint = None if facts.checkpoint is None else facts.checkpoint.ref.uri
        evaluation = None if facts.evaluation is None else facts.evaluation.ref.uri
        match stage:
            case "shard":
                return self._dataset(facts.dataset, written=True)
            case "train":
                return self._result(checkpoint)
            case "evaluate":
                return self._result(evaluation)
            case "promote" if report.verdict == "promoted" and report.model is not None:
                return self._result(f"models/{report.model.name}/{report.model.version}")
        return []

    def _sources(self) -> Iterator[tuple[int, str]]:
        data = self.facts.run.spec.data
        for index, source in enumerate([] if isinstance(data, str) else data.source):
            yield index, source.uri

    def _raw(self, index: int, uri: str) -> Facets:
        resolved = self.facts.run.resolved
        files = [one for one in resolved.files if one.source == index]
        facets: Facets = {}
        counts: Facets = {"size": sum(one.bytes for one in files), "fileCount": len(files)}
        contract = self.facts.contract
        if contract is not None and index == 0:
            facets["dataQualityAssertions"] = _assertions(contract)
            facets["dataQualityMetrics"] = _facet(
                "DataQualityMetricsInputDatasetFacet", "1-0-3", rowCount=contract.rows, columnMetrics={}
            )
        facets["inputStatistics"] = _facet("InputStatisticsInputDatasetFacet", "1-0-0", **counts)
        return {**_named(uri, Path(resolved.root)), "facets": {}, "inputFacets": facets}

    def _dataset(self, dataset: Dataset | None, written: bool = False) -> list[Facets]:
        if dataset is None:
            return []
        fields = [{"name": name, "type": kind} for name, kind in dataset.columns.items()]
        facets = {
            "schema": _facet("SchemaDatasetFacet", "1-2-0", fields=fields),
            "version": _facet("DatasetVersionDatasetFacet", "1-0-1", datasetVersion=dataset.ref.id),
        }
        found: Facets = {**self._stored(dataset.ref.uri), "facets": facets}
        if written:
            shards = [shard for split in dataset.splits.values() for shard in split]
            counts = {
                "rowCount": sum(one.rows for one in shards),
                "size": sum(one.bytes for one in shards),
                "fileCount": len(shards),
            }
            statistics = _facet("OutputStatisticsOutputDatasetFacet", "1-0-2", **counts)
            found["outputFacets"] = {"outputStatistics": statistics}
        return [found]

    def _result(self, uri: str | None) -> list[Facets]:
        return [] if uri is None else [{**self._stored(uri), "facets": {}}]

    def _stored(self, uri: str) -> Facets:
        return _named(f"{self.facts.run.store.uri.rstrip('/')}/{uri}", Path(self.facts.run.resolved.root))


def _assertions(contract: ContractReport) -> Facets:
    """Which expectations did not hold, without values; and that the others did."""
    failed = [
        {"assertion": one.expectation, "success": False, "severity": "error" if one.severity == "critical" else "warn"}
        | ({"column": one.column} if one.column else {})
        for one in contract.failures
    ]
    rest = contract.met
    passed = [{"assertion": f"the other expectations ({rest})", "success": True}] if rest > 0 else []
    return _facet("DataQualityAssertionsDatasetFacet", "1-1-0", assertions=[*failed, *passed])


def _named(uri: str, root: Path) -> Facets:
    """Namespace and name of a dataset by OpenLineage's rules: `s3://bucket` and key, `file` and path."""
    if "://" in uri:
        scheme, _, rest = uri.partition("://")
        place, _, key = rest.partition("/")
        return {"namespace": f"{scheme}://{place}", "name": key}
    return {"namespace": "file", "name": str(root / uri)}


def _facet(name: str, version: str, /, **fields: Any) -> Facets:
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{version}/{name}.json#/$defs/{name}", **fields}


def _time(stamp: str) -> datetime:
    at = datetime.fromisoformat(stamp)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
