"""`contract`, `drift`: look at data.

`contract` drafts a suite and a section of a spec from data and keeps what holds for all rows, says what a suite
expects, and writes a run's report as a page of Great Expectations' Data Docs, which opens
offline. `drift` compares a pipeline's raw data with earlier data, without a run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from data_contracts.contract.inference import Draft
from data_contracts.contract.reports import sentence
from data_contracts.contract.suites import load_suite
from data_contracts.errors import ContractRejected, UsageError
from data_contracts.handoffs import SourceFile, Suite
from data_contracts.load import load_spec
from data_contracts.messages.raw_data import CONTRACT, DRAFT, ContractRequest, LookRequest
from data_contracts.pipeline_spec import CsvSpec, SourceSpec, SuiteSpec
from data_contracts.pipeline_spec.data import MEMORY_SHARE
from data_contracts.records import DriftReport
from flows.commands.guard import Answer
from flows.commands.stages import opened, write
from flows.commands.terminal import table
from infra import settings
from infra.child import run_child
from infra.sources import resolve_sources
from infra.store.seal import noting_damage
from infra.written_files import record_written
from tasks.run.run import reopen_run
from tasks.run.spec_check import DATA, FEATURES, PREDICTIONS, LoadedSpec, set_contract_field
from tasks.stages.artifacts import DRIFT_HEAD, drift_cells, own_report, report_results
from tasks.stages.contract_check import drift_rejects
from tasks.stages.validate import contract_key, find_report, make_report

SUITE, SECTION = "suite.json", "contract.yaml"
_UNIQUE = "expect_column_values_to_be_unique"
DOCS_PAGE = "index.html"
# Columns that did not move are counted, not listed; of the others at most so many.
SHOWN_COLUMNS = 20


def contract(arguments: argparse.Namespace) -> Answer:
    """The `contract` command."""
    if len(arguments.names) != 1:
        raise UsageError(
            f"contract {arguments.action} takes one name, got {len(arguments.names)}.",
            remedy="Put quotes around a glob, so that the shell does not expand it.",
        )
    if arguments.out is not None and arguments.action not in ("infer", "docs"):
        raise UsageError(f"contract {arguments.action}: --out has no effect.", remedy="Leave it out.")
    return {"infer": infer, "explain": _explain, "docs": docs}[arguments.action](arguments)


def _explain(arguments: argparse.Namespace) -> Answer:
    """Say each expectation of a suite, or of all suites of a spec, in a sentence."""
    [name] = arguments.names
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        suite = load_suite(name, Path.cwd(), None)
        lines, listed = _in_sentences(suite)
        return Answer(
            "\n".join([f"{suite['name']}: {_count(suite)}", *lines]), {"suite": suite["name"], "expectations": listed}
        )
    loaded = LoadedSpec(path.resolve(), load_spec(path))  # its errors name the file as it was given
    spec = loaded.spec
    if spec.contract is None:
        raise UsageError(f"{name} has no contract: its data is external.", remedy="Name a spec with a contract.")
    suite = loaded.suite(DATA)
    lines, listed = _in_sentences(suite)
    lines.insert(0, f"{suite['name']}: {_count(suite)}; {_fails(spec.contract.fail_on)}")
    value = {"suite": suite["name"], "expectations": listed}
    others = []
    for field, (one, fails) in _other_suites(loaded).items():
        said, listed = _in_sentences(one)
        lines += ["", f"{field}: {one['name']}: {_count(one)}; {_fails(fails)}", *said]
        others.append({"field": field, "suite": one["name"], "expectations": listed})
    same = [one for one, each in spec.evaluate.sets.items() if each.source is not None and each.contract == "same"]
    if same:
        lines += [
            "",
            f"The rows of evaluate.sets.{', evaluate.sets.'.join(same)} must meet the suite of contract, too.",
        ]
    return Answer("\n".join(lines), {**value, **({"others": others} if others else {})})


def _other_suites(loaded: LoadedSpec) -> dict[str, tuple[Suite, str]]:
    """The suites beside that of the raw data, by their field, and what each fails on."""
    contract, sets = loaded.spec.contract, loaded.spec.evaluate.sets
    assert contract is not None
    named: dict[str, object] = {FEATURES: contract.features, PREDICTIONS: contract.predictions}
    named |= {set_contract_field(name): one.contract for name, one in sets.items()}
    return {field: (loaded.suite(field), one.fail_on) for field, one in named.items() if isinstance(one, SuiteSpec)}


def _in_sentences(suite: Mapping[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """Each expectation as a line, and for programs."""
    listed = [
        {"type": one["type"], "severity": one["severity"], "sentence": sentence(one)} for one in suite["expectations"]
    ]
    return [f"- {one['sentence']}" for one in listed], listed


def _count(suite: Mapping[str, Any]) -> str:
    count = len(suite["expectations"])
    return f"{count} expectation{'' if count == 1 else 's'}"


def _fails(fail_on: str) -> str:
    return f"the mildest severity that rejects is {fail_on}"


def infer(arguments: argparse.Namespace) -> Answer:
    """Draft a suite, check it on the same data, and write what holds."""
    out = None if arguments.out is None else Path(arguments.out)
    taken = [out / name for name in (SUITE, SECTION) if (out / name).exists()] if out is not None else []
    if taken:
        raise UsageError(f"{taken[0]} exists already.", remedy="Name another folder with --out.")
    [uri] = arguments.names
    try:
        source = SourceSpec(uri=uri)
    except ValidationError as error:
        raise UsageError(f"{uri}: {error.errors()[0]['msg']}.", remedy="Name a file, a glob or s3://….") from error
    files = resolve_sources(
        [source], root=Path.cwd(), window=None, window_path=None, cache=settings.state_folder(), field="SOURCE"
    )
    drafted = run_child(
        DRAFT, LookRequest(files=files, sources=[source], root=str(Path.cwd())), memory_share=MEMORY_SHARE
    )
    if not drafted.rows:
        raise UsageError(f"{uri} has no rows to learn from.", remedy="Name a source with rows.")
    made = Draft(**drafted.model_dump(exclude={"schema_version", "text_from", "csv"}))
    source = source.model_copy(update={"csv": drafted.csv})
    made.unsure += _words_among_others(drafted.text_from)
    _leave_out_broken(made, files, source)
    suite = {"name": _suite_name(uri), "expectations": made.expectations}
    section = _section(made, _from(uri, out), uri, drafted.csv)
    value = {"suite": suite, "section": yaml.safe_load(section), "unsure": made.unsure, "sensitive": made.sensitive}
    text = f"{section}\n{json.dumps(suite, indent=2)}\n"
    if out is not None:
        text = _write_suite(out, suite, section, made)
    return Answer(text, {**value, "out": None if out is None else str(out)})


def _words_among_others(text_from: dict[str, tuple[str, int]]) -> list[tuple[str, str]]:
    """A note on each column that is text only because of a value that is not like the ones before it."""
    return [
        (
            name,
            f"it is text because of row {row} of {_quoted(Path(uri).name)}; the values before it are of another kind",
        )
        for name, (uri, row) in text_from.items()
    ]


def _leave_out_broken(made: Draft, files: list[SourceFile], source: SourceSpec) -> None:
    """Check the draft on all rows, as validate would, and leave out what does not hold."""
    while True:
        request = ContractRequest(
            suite={"name": "draft", "expectations": made.expectations},
            files=files,
            sources=[source],
            root=str(Path.cwd()),
            window=None,
            window_column=None,
            fail_on="info",
            sensitive=sorted(made.sensitive),
        )
        outcome = run_child(CONTRACT, request, withhold=bool(made.sensitive), memory_share=MEMORY_SHARE)
        broken = {(one.expectation, one.column) for one in outcome.failures}
        if not broken:
            return
        made.expectations = [
            one for one in made.expectations if (one["type"], one["kwargs"].get("column")) not in broken
        ]
        for name, column in sorted(broken, key=str):
            if name == _UNIQUE:  # it was only worth a check
                made.keys.remove(str(column))
                expectations, unsure = made.ranges[str(column)]
                made.expectations += expectations
                made.unsure += unsure
            else:
                made.unsure.append((column or "", f"{name} does not hold for all rows and was left out"))


def _section(made: Draft, source: str, uri: str, csv: CsvSpec | None = None) -> str:
    """The sections `data` and `contract` of a spec as YAML, with comments on what is not certain."""
    lines = [
        f"# Inferred from {_quoted(uri)}: {made.rows:,} rows. It holds for these rows; read it before you rely on it.",
        "data:",
        f"  source: {_quoted(source)}",
    ]
    if csv is not None:
        lines += [
            f"  csv: {csv}",
            "  # how the file is written, guessed from its beginning: compare some values with the file",
        ]
    if made.sensitive:
        lines.append(f"  sensitive: {_quoted(sorted(made.sensitive))}")
        lines += [
            f"  # {_quoted(name)}: {why}, so the suite holds none of its values" for name, why in made.sensitive.items()
        ]
    lines += ["contract:", f"  suite: {SUITE}"]
    lines += [f"  # {f'{_quoted(column)}: ' if column else ''}{note}" for column, note in made.unsure]
    if made.keys:
        lines.append(
            f"# No value occurs twice in {', '.join(map(_quoted, made.keys))}: perhaps a key for shards.split."
        )
    return "\n".join(lines) + "\n"


def _quoted(value: Any) -> str:
    """A name or names as YAML on one line, whatever they hold."""
    for style in (None, '"'):
        dumped = yaml.safe_dump(value, default_style=style, default_flow_style=True, width=math.inf, allow_unicode=True)
        text = dumped.removesuffix("\n...\n").strip()
        if len(text.splitlines()) == 1:
            break  # otherwise the rest of a name would be YAML; in double quotes its line breaks are escaped
    return text


def _write_suite(out: Path, suite: Mapping[str, Any], section: str, made: Draft) -> str:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in ((SUITE, json.dumps(suite, indent=2) + "\n"), (SECTION, section)):
            with (out / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} exists already.", remedy="Name another folder with --out.") from error
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}.", remedy="Name another folder.") from error
    count = len(suite["expectations"])
    return (
        f"{out / SUITE} has {count} expectations, which hold for all {made.rows:,} rows.\n"
        f"{out / SECTION} has the sections data and contract; {len(made.unsure)} comments say what is not certain.\n"
        f"Next: trainwright contract explain {out / SUITE}"
    )


def _suite_name(uri: str) -> str:
    return Path(uri.rstrip("/")).name.partition(".")[0].strip("*?[]") or "data"


def _from(uri: str, out: Path | None) -> str:
    """The source as a spec in the folder `out` names it."""
    local = out is not None and "://" not in uri and not uri.startswith("/")
    return os.path.relpath(uri, out) if local and out is not None else uri


def docs(arguments: argparse.Namespace) -> Answer:
    """Write the page to the folder of `--out`; an existing file is not replaced."""
    [run_id] = arguments.names
    if arguments.out is None:
        raise UsageError("contract docs needs a folder to write to.", remedy="Name it: --out DIR.")
    path = Path(arguments.out) / DOCS_PAGE
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
    # Great Expectations takes seconds to import.
    from data_contracts.contract.great_expectations_engine import data_docs

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


def drift(arguments: argparse.Namespace) -> Answer:
    """The `drift` command: exit code 3 if the data has moved as far as `fail_on` says."""
    spec = load_spec(Path(arguments.spec).resolve(), arguments.set)
    if spec.contract is None:
        raise UsageError("The data is external, so it has no profile.", remedy="Name a spec with data of its own.")
    against = arguments.against or ("champion" if spec.contract.drift is None else None)
    given = {"against": against, "fail_on": arguments.fail_on}
    run = opened(arguments, [f"contract.drift.{name}={json.dumps(value)}" for name, value in given.items() if value])
    key = contract_key(run)
    assert key is not None
    done = find_report(run, key) or make_report(run, key)
    report = done.handoff
    assert report is not None
    assert report.drift is not None
    value = {**report.drift.to_json(), "verdict": report.drift.verdict}
    if arguments.out:
        write(Path(arguments.out), value)
    rejected = drift_rejects(run, report.drift)
    error = done.error if rejected and isinstance(done.error, ContractRejected) else None
    return Answer(drift_text(report.drift), value, 3 if rejected else 0, error, line=_drift_line(report.drift))


def drift_text(report: DriftReport) -> str:
    """The comparison for a person: one sentence, and a table of the columns that moved most."""
    moved = [one for one in report.columns if one.verdict != "same"]
    rows = [drift_cells(one) for one in moved[:SHOWN_COLUMNS]]
    lines = [_drift_line(report)]
    if report.columns:
        lines.append(f"rows then {report.rows[0]:,}, now {report.rows[1]:,}")
    if rows:
        lines += ["", table(DRIFT_HEAD, rows, ("PSI", "KS"))]
    if len(moved) > SHOWN_COLUMNS:
        lines.append(f"… and {len(moved) - SHOWN_COLUMNS} more (all of them with --json)")
    return "\n".join(lines)


def _drift_line(report: DriftReport) -> str:
    return f"{report.head[0].upper()}{report.head[1:]}."
