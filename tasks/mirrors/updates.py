"""What mirrors are sent about a run.

- For MLflow: settings as params, scores and curves as metrics, tags.
- The promoted model's own files, for MLflow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from data_contracts.canonical import canonical
from data_contracts.errors import GateNotMet, StorageUnavailable, UsageError, UserCodeError
from data_contracts.run_report import ModelName, RunReport
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
    "trained": "FINISHED",
    "not_promoted": "FINISHED",
    "cancelled": "KILLED",
}
# A value by MLflow's names.
Metric = dict[str, str | float]
# A tag of a version in MLflow: why it has no files.
FILES_TAG = "trainwright.no_files"
NOT_WANTED = "The spec says that the model's files are not sent."


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
    spec = {name: one for name, one in facts.run.resolved.spec.items() if name not in _LEFT_OUT}
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
    at = datetime.fromisoformat(stamp)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


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
        return "This server does not take files itself, so the model's files are not here."
    with scratch.make("mirror") as own:
        folder = own.path / "model"
        try:
            export(store, f"{model.name}@{model.version}", "mlflow", folder, on_poll=partial(_refuse_late, deadline))
        except GateNotMet:
            return "The exported model's outputs differ from the checkpoint's; `trainwright export` says by how much."
        except UserCodeError:
            return "The model could not be exported; `trainwright export` names the operation that cannot be traced."
        except UsageError:
            return (
                "The model could not be exported where its mirror was told; `trainwright export` says what is missing."
            )
        for file in sorted(folder.iterdir()):
            server.put_artifact(kept, f"model/{file.name}", file)
    return None


def _refuse_late(deadline: Deadline) -> None:
    if not deadline.left_s():
        raise StorageUnavailable(
            "The model was not exported in time.", remedy="`trainwright mirror` has more time for it."
        )
