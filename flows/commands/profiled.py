"""`run --profile` and `train --profile`: profile a training's steps; the page and the trace are written to files."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.load import load_spec
from data_contracts.run_report import RunReport
from flows.commands.guard import Answer, log
from infra.files import replace_bytes
from infra.settings import state_folder
from infra.store import layout
from tasks.profile import Profiled, profile, profile_page, refuse_elsewhere, sentence
from tasks.run.run import Run, reopen_run
from tasks.stages.stage import EarlierHandoffs
from tasks.stages.train import train


def refuse_spec(arguments: argparse.Namespace) -> None:
    """UsageError, before a run, for a spec that cannot be profiled."""
    refuse_elsewhere(load_spec(Path(arguments.spec).resolve(), arguments.set).train)


def profiled_run(report: RunReport, answer: Answer, arguments: argparse.Namespace) -> Answer:
    """The answer of a run with its profile. The run has ended: whatever is wrong with the profile is a warning."""
    if not any(one.name == "train" and one.status in ("ran", "reused") for one in report.stages):
        log.warning("There is no profile: the run ended before it had trained.")
        return answer
    run = reopen_run(report.run_id, arguments.store)
    try:
        found = _profile(run)
    except TrainwrightError as error:
        log.warning("The run stands, but its training could not be profiled: %s", error.message)
        return answer
    said, value = written(run, found)
    return replace(answer, text=f"{answer.text}\n  profile   {said}", value={**answer.value, "profile": value})


def profiled_stage(run: Run, arguments: argparse.Namespace) -> Answer:
    """The answer of `train --profile`, which trains nothing that stays."""
    if arguments.out or arguments.curves:
        raise UsageError(
            "train: --profile trains nothing that stays, so --out and --curves have nothing to write.",
            remedy="Leave them out, or leave --profile out.",
        )
    said, value = written(run, _profile(run))
    return Answer(said, {"profile": value})


def _profile(run: Run) -> Profiled:
    refuse_elsewhere(run.spec.train)
    return profile(run, *EarlierHandoffs(run).inputs(train))


def written(run: Run, found: Profiled) -> tuple[str, dict[str, Any]]:
    """Write page and trace to the state folder, and beside the run's page; returns where, for people and programs."""
    page = profile_page(run, found).encode()
    folder = state_folder() / "pages"
    folder.mkdir(exist_ok=True)
    shown = {"page": (folder / f"{run.run_id}-profile.html", page)}
    if found.trace:
        shown["trace"] = (folder / f"{run.run_id}-profile.trace.json.gz", found.trace)
    for path, content in shown.values():
        replace_bytes(path, content, mode=0o600)
    if run.recorded:
        number = 0
        while not run.store.create_once(layout.profiled(run.run_id, number, "page"), page):
            number += 1
        if found.trace:
            run.store.create_once(layout.profiled(run.run_id, number, "trace"), found.trace)
    files = {name: str(path) for name, (path, _) in shown.items()}
    trace = f"; trace for ui.perfetto.dev: {files['trace']}" if "trace" in files else ""
    return f"{sentence(found)}\n            page: {files['page']}{trace}", {**found.to_json(), **files}
