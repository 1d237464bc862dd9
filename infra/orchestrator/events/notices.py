"""What people are told of a run: subject and body in fixed sentences, filled with names that Trainwright checked.

A message may leave for a chat, so the text of an error is not in it: it may quote a value of the data.
The run's page has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_contracts.errors import Hung, TrainwrightError, from_json
from data_contracts.run_report import RunReport


def of_report(report: RunReport, page: str | None) -> dict[str, str]:
    """Subject and body about a run's end.

    Args:
        page: address of the run's page; None: unknown.
    """
    about = _about(report)
    return _message(f"{report.pipeline}: {about[0]}", report.run_id, about[1], page)


def sentence_of(report: RunReport) -> str:
    """How a run ended, in fixed sentences that may leave for the public."""
    return _about(report)[1]


def of_crash(pipeline: str, run_id: str, n: int, page: str | None) -> dict[str, str]:
    """Subject and body about a run whose process died, and that is resumed; `n` counts its crashes from 0."""
    happened = f"The process that carried out the run {run_id} of {pipeline} died (crash {n + 1} of this run)."
    return _message(f"{pipeline}: a crashed run is resumed", run_id, f"{happened} The run is resumed.", page)


def of_stall(pipeline: str, run_id: str, page: str | None) -> dict[str, str]:
    """Subject and body about a run that waits for its store."""
    body = f"The store of {pipeline} takes no writes: it is full, read-only or away. The run waits for it."
    return _message(f"{pipeline}: a run waits for its store", run_id, body, page)


def of_surrender(pipeline: str, run_id: str, page: str | None) -> dict[str, str]:
    """Subject and body about a crashed run that is not resumed by itself."""
    happened = f"The process that carried out the run {run_id} of {pipeline} died, and the run is not resumed by itself"
    body = f"{happened}: its budget retry.crashed is used up. To continue it: `trainwright resume {run_id}`."
    return _message(f"{pipeline}: a crashed run is not resumed", run_id, body, page)


def of_restart(pipeline: str, run_id: str, generation: int, cause: str, page: str | None) -> dict[str, str]:
    """Subject and body about a generation of a training that failed, and is followed by another one."""
    happened = f"Generation {generation} of the training ended ({_words(cause)})."
    subject = "a rank hung" if cause == Hung.cause else "a training was restarted"
    return _message(f"{pipeline}: {subject}", run_id, f"{happened} Another generation continues it.", page)


def of_burn(objective: str, store: str, severity: str, sentence: str) -> dict[str, str]:
    """Subject and body about an error budget that is spent too fast; `sentence`: how fast."""
    body = (
        f"The error budget of {objective} in {store} is spent too fast ({sentence}).\nTo read more: `trainwright slo`."
    )
    return {"subject": f"{severity}: the objective {objective}", "body": body}


def of_full_store(store: str, used: float) -> dict[str, str]:
    """Subject and body about a store whose disk is nearly full; `used`: its share."""
    body = f"The disk of the store {store} is {used:.0%} full. To free space: `trainwright gc --dry-run`."
    return {"subject": "a store is nearly full", "body": body}


def of_unopened(pipeline: str, error: Exception, page: str | None) -> dict[str, str]:
    """Subject and body about a flow run that failed before it had a run, such as with a spec that cannot be loaded."""
    kind = type(error) if isinstance(error, TrainwrightError) else TrainwrightError
    body = f"A flow run of {pipeline} failed before it began: {_words(kind.cause)} (exit code {kind.exit_code})."
    return {"subject": f"{pipeline}: a run could not begin", "body": _with_page(body, page)}


def of_drift(pipeline: str, run_id: str, num_columns: int, rejected: bool, page: str | None) -> dict[str, str]:
    """Subject and body about data that differs from earlier data."""
    columns = "1 column differs" if num_columns == 1 else f"{num_columns} columns differ"
    ends = "The run is rejected because of it." if rejected else "The run continues."
    return _message(f"{pipeline}: the data has drifted", run_id, f"{columns} from earlier data. {ends}", page)


def of_rollback(name: str, version: int | None, previous: int | None) -> dict[str, str]:
    """Subject and body about an alias, `MODEL@ALIAS`, that was moved back."""
    now = "names no version" if version is None else f"names version {version}"
    before = "" if previous is None else f", no longer version {previous}"
    return {"subject": f"{name}: rolled back", "body": f"{name} {now}{before}. Why: `trainwright history {name}`."}


def _about(report: RunReport) -> tuple[str, str]:
    """What a run's end is, as a subject and as sentences."""
    about: tuple[str, str] = _OF_VERDICT.get(report.verdict, _other)(report)
    return about


def _failed(report: RunReport) -> tuple[str, str]:
    error = from_json(report.error or {})
    stage = next((one.name for one in report.stages if one.status in ("failed", "rejected")), None)
    where = "" if stage is None else f" in {stage}"
    happened = f"The run failed{where}: {_words(error.cause)} (exit code {report.exit_code})."
    return "a run failed", f"{happened} {type(error).default_remedy}".rstrip()


def _rejected(report: RunReport) -> tuple[str, str]:
    found = from_json(report.error or {}).details
    drifted = any(
        one.get("verdict") in ("warning", "critical") for one in (found.get("drift") or {}).get("columns", [])
    )
    why = "broke its contract"
    if drifted:
        why = f"{why} and has drifted from earlier data" if found.get("failures") else "has drifted from earlier data"
    return "the data was rejected", f"The data {why}, so nothing was trained on it."


def _waiting(report: RunReport) -> tuple[str, str]:
    deadline = question_of(report).get("deadline")
    until = "" if deadline is None else f", until {deadline}"
    answer = f"`trainwright approve {report.run_id} --reason WHY`, or `trainwright refuse {report.run_id} --reason WHY`"
    return "a run waits for an approval", f"A person must decide about the promotion{until}: {answer}."


def _not_promoted(report: RunReport) -> tuple[str, str]:
    error = from_json(report.error or {})
    return "a candidate was not promoted", f"The alias stays where it was: {_words(error.cause)}."


def _promoted(report: RunReport) -> tuple[str, str]:
    return "a version was promoted", f"{_model(report)} was promoted."


def _canary(report: RunReport) -> tuple[str, str]:
    return "a canary stands", f"{_model(report)} stands beside the champion as canary."


def _other(report: RunReport) -> tuple[str, str]:
    return f"a run ended {_words(report.verdict)}", f"The run ended {_words(report.verdict)}."


_OF_VERDICT: Mapping[str, Any] = {
    "failed": _failed,
    "rejected": _rejected,
    "waiting": _waiting,
    "not_promoted": _not_promoted,
    "promoted": _promoted,
    "canary": _canary,
}


def question_of(report: RunReport) -> dict[str, Any]:
    """The question that a run which waits has asked; {} if there is none."""
    details = (report.error or {}).get("details") or {}
    question = details.get("question") if isinstance(details, dict) else None
    return question if isinstance(question, dict) else {}


def _model(report: RunReport) -> str:
    model = report.model
    if model is None or model.version is None:
        return "The candidate"
    return f"Version {model.version} of {model.name}" + (f" (alias {model.alias})" if model.alias else "")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _message(subject: str, run_id: str, body: str, page: str | None) -> dict[str, str]:
    read = f"\nRun: {run_id}. To read more: `trainwright show {run_id}`."
    return {"subject": subject, "body": _with_page(body + read, page)}


def _with_page(body: str, page: str | None) -> str:
    return body if page is None else f"{body}\nPage: {page}"
