"""`contract docs`: the contract report of a run as a page of Great Expectations' Data Docs, which opens offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from data_contracts.errors import UsageError
from flows.commands.guard import Answer
from infra.store.seal import noting_damage
from infra.written_files import record_written
from tasks.run.run import reopen_run
from tasks.stages.artifacts import own_report, report_results

PAGE = "index.html"


def docs(arguments: argparse.Namespace) -> Answer:
    """Write the page to the folder of `--out`; an existing file is not replaced."""
    [run_id] = arguments.names
    if arguments.out is None:
        raise UsageError("contract docs needs a folder to write to.", remedy="Name it: --out DIR.")
    path = Path(arguments.out) / PAGE
    if path.exists():
        raise UsageError(f"{path} exists already.", remedy="Name another folder with --out.")
    run = reopen_run(run_id, arguments.store, None)
    with noting_damage() as damage:
        report = own_report(run)
        results = None if report is None else report_results(run, report)
    if damage:
        raise damage[0]
    if report is None or results is None:
        raise UsageError(f"{run_id} has no contract report.", remedy="Name a run that got as far as validate.")
    from data_contracts.contract.data_docs import data_docs  # Great Expectations takes seconds to import

    assert run.resolved.suite is not None
    page = data_docs(results, report, run.resolved.suite["name"], run.run_id, run.resolved.started)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(page)
        record_written(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", remedy="Name another folder.") from error
    verdict = "accepted" if report.accepted else "rejected"
    return Answer(
        f"{path} shows {len(results)} expectations: {verdict}.", {"page": str(path), "accepted": report.accepted}
    )
