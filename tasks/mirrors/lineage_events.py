"""OpenLineage events of a run: START and COMPLETE, FAIL or ABORT for the run and for each stage, with facets.

The events are made after the run has ended, from sealed records, so a stage's times follow from the durations of the
stages before it. An error's message is left out, because it may quote a value of the data: the event says which kind
it was, and where to read more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from data_contracts.handoffs import ContractReport, Dataset
from data_contracts.run_report import RunReport, StageResult
from tasks.pages.facts import Facts

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
Facets = dict[str, Any]


def lineage_events(facts: Facts, report: RunReport, namespace: str) -> list[dict[str, Any]]:
    """The events in order of their times."""
    maker = _Maker(facts, report, namespace)
    return sorted(maker.events(), key=lambda one: str(one["eventTime"]))


class _Maker:
    def __init__(self, facts: Facts, report: RunReport, namespace: str) -> None:
        self.facts, self.report, self.namespace = facts, report, namespace
        self.job = report.pipeline
        # An attempt that failed and the one that continues are two runs of the job.
        self.run_id = str(uuid.uuid5(_IDS, f"{report.run_id}/{report.finished}"))

    def events(self) -> Iterator[dict[str, Any]]:
        start, end = _time(self.report.started), _time(self.report.finished)
        facets = {"processing_engine": _facet("ProcessingEngineRunFacet", "1-1-1", **_engine()), **self._error(None)}
        kind = _RUN_TYPES.get(self.report.verdict, "ABORT" if self.report.verdict == "cancelled" else "FAIL")
        job = self._job(self.job, "PIPELINE")
        yield self._event("START", start, self.run_id, job, facets)
        yield self._event(kind, end, self.run_id, job, facets)
        for stage in self.report.stages:
            yield from self._stage(stage, start)
            start += timedelta(seconds=stage.seconds)

    def _stage(self, stage: StageResult, start: datetime) -> Iterator[dict[str, Any]]:
        run_id = str(uuid.uuid5(_IDS, f"{self.run_id}/{stage.name}"))
        parent = {"run": {"runId": self.run_id}, "job": {"namespace": self.namespace, "name": self.job}}
        facets = {"parent": _facet("ParentRunFacet", "1-2-0", **parent), **self._error(stage)}
        job = self._job(f"{self.job}.{stage.name}", "STAGE")
        kind = _TYPES.get(stage.status, "FAIL")
        end = start + timedelta(seconds=stage.seconds)
        data = {"inputs": self._inputs(stage.name), "outputs": self._outputs(stage.name)}
        yield self._event("START", start, run_id, job, facets, **data)
        yield self._event(kind, end, run_id, job, facets, **data)

    def _event(
        self, kind: str, at: datetime, run_id: str, job: Facets, facets: Facets, **data: list[Facets]
    ) -> dict[str, Any]:
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
        owners = [{"name": f"user:{report.actor}", "type": "MAINTAINER"}] if report.actor else []
        if owners:
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
        {"assertion": one.expectation, "success": False, "severity": _severity(one.severity)}
        | ({"column": one.column} if one.column else {})
        for one in contract.failures
    ]
    rest = contract.met
    passed = [{"assertion": f"the other expectations ({rest})", "success": True}] if rest > 0 else []
    return _facet("DataQualityAssertionsDatasetFacet", "1-1-0", assertions=[*failed, *passed])


def _severity(severity: str) -> str:
    return "error" if severity == "critical" else "warn"


def _named(uri: str, root: Path) -> Facets:
    """Namespace and name of a dataset by OpenLineage's rules: `s3://bucket` and key, `file` and path."""
    if "://" in uri:
        scheme, _, rest = uri.partition("://")
        place, _, key = rest.partition("/")
        return {"namespace": f"{scheme}://{place}", "name": key}
    return {"namespace": "file", "name": str(root / uri)}


def _facet(name: str, version: str, /, **fields: Any) -> Facets:
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{version}/{name}.json#/$defs/{name}", **fields}


def _engine() -> Mapping[str, str]:
    return {"version": metadata.version("trainwright"), "name": "Trainwright"}


def _time(stamp: str) -> datetime:
    at = datetime.fromisoformat(stamp)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
