"""`contract`: write a contract from data, say what one expects, compare two reports."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from data_contracts.canonical import is_name
from data_contracts.contract.inference import Draft, draft, look
from data_contracts.contract.report_diff import Change, Difference, difference
from data_contracts.contract.sentences import sentence
from data_contracts.contract.suites import load_suite
from data_contracts.errors import UsageError
from data_contracts.handoffs import ContractReport, SourceFile
from data_contracts.load import load_spec
from data_contracts.messages.raw_data import CONTRACT, ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.run_report import StageResult
from flows.commands.guard import Answer
from infra import settings
from infra.child import run_child
from infra.handoffs import read_handoff
from infra.sources import read_batches, resolve_sources
from infra.store import Store, layout
from tasks.run.run import known_store_list

SUITE, SECTION = "suite.json", "contract.yaml"


def contract(arguments: argparse.Namespace) -> Answer:
    """The `contract` command."""
    wanted = 2 if arguments.action == "diff" else 1
    if len(arguments.names) != wanted:
        what = {"infer": "one source", "explain": "one suite or spec", "diff": "two reports"}[arguments.action]
        raise UsageError(
            f"contract {arguments.action} takes {what}, got {len(arguments.names)} names.",
            remedy="Put quotes around a glob, so that the shell does not expand it.",
        )
    if arguments.out is not None and arguments.action != "infer":
        raise UsageError(f"contract {arguments.action}: --out has no effect.", remedy="Leave it out.")
    actions: dict[str, Callable[[argparse.Namespace], Answer]] = {"infer": _infer, "explain": _explain, "diff": _diff}
    return actions[arguments.action](arguments)


def _infer(arguments: argparse.Namespace) -> Answer:
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
    columns = look(read_batches(files, [source], root=Path.cwd()))
    if not columns or not columns[0].rows:
        raise UsageError(f"{uri} has no rows to learn from.", remedy="Name a source with rows.")
    made = draft(columns)
    _leave_out_broken(made, files, source)
    suite = {"name": _name(uri), "expectations": made.expectations}
    section = _section(made, _from(uri, out), uri)
    value = {"suite": suite, "section": yaml.safe_load(section), "unsure": made.unsure, "sensitive": made.sensitive}
    text = f"{section}\n{json.dumps(suite, indent=2)}\n"
    if out is not None:
        text = _written(out, suite, section, made)
    return Answer(text, {**value, "out": None if out is None else str(out)})


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
        outcome = run_child(CONTRACT, request, withhold=bool(made.sensitive))
        broken = {(one.expectation, one.column) for one in outcome.failures}
        if not broken:
            return
        made.expectations = [
            one for one in made.expectations if (one["type"], one["kwargs"].get("column")) not in broken
        ]
        for name, column in sorted(broken, key=str):
            made.keys = [key for key in made.keys if key != column or name != "expect_column_values_to_be_unique"]
            if name != "expect_column_values_to_be_unique":  # it was only worth a check
                made.unsure.append((column or "", f"{name} does not hold for all rows and was left out"))


def _section(made: Draft, source: str, uri: str) -> str:
    """The sections `data` and `contract` of a spec as YAML, with comments on what is not certain."""

    def quoted(value: Any) -> str:
        for style in (None, '"'):
            dumped = yaml.safe_dump(
                value, default_style=style, default_flow_style=True, width=math.inf, allow_unicode=True
            )
            text = dumped.removesuffix("\n...\n").strip()
            if len(text.splitlines()) == 1:
                break  # otherwise the rest of a name would be YAML; in double quotes its line breaks are escaped
        return text

    lines = [
        f"# Inferred from {quoted(uri)}: {made.rows:,} rows. It holds for these rows; read it before you rely on it.",
        "data:",
        f"  source: {quoted(source)}",
    ]
    if made.sensitive:
        lines.append(f"  sensitive: {quoted(sorted(made.sensitive))}")
        lines += [
            f"  # {quoted(name)}: {why}, so the suite holds none of its values" for name, why in made.sensitive.items()
        ]
    lines += ["contract:", f"  suite: {SUITE}"]
    lines += [f"  # {f'{quoted(column)}: ' if column else ''}{note}" for column, note in made.unsure]
    if made.keys:
        lines.append(f"# No value occurs twice in {', '.join(map(quoted, made.keys))}: perhaps a key for shards.split.")
    return "\n".join(lines) + "\n"


def _written(out: Path, suite: dict[str, Any], section: str, made: Draft) -> str:
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


def _name(uri: str) -> str:
    return Path(uri.rstrip("/")).name.partition(".")[0].strip("*?[]") or "data"


def _from(uri: str, out: Path | None) -> str:
    """The source as a spec in the folder `out` names it."""
    local = out is not None and "://" not in uri and not uri.startswith("/")
    return os.path.relpath(uri, out) if local and out is not None else uri


def _explain(arguments: argparse.Namespace) -> Answer:
    """Say each expectation of a suite, or of a spec's suite, in a sentence."""
    [name] = arguments.names
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        spec = load_spec(path)
        if spec.contract is None:
            raise UsageError(f"{name} has no contract: its data is external.", remedy="Name a spec with a contract.")
        suite, fails = (
            load_suite(spec.contract.suite, path.resolve().parent, spec.contract.parameters),
            spec.contract.fail_on,
        )
    else:
        suite, fails = load_suite(name, Path.cwd()), None
    told = [sentence(one) for one in suite["expectations"]]
    count = f"{len(told)} expectation{'' if len(told) == 1 else 's'}"
    head = f"{suite['name']}: {count}" + (f"; the mildest severity that rejects is {fails}" if fails else "")
    listed = [
        {"type": one["type"], "severity": one["severity"], "sentence": words}
        for one, words in zip(suite["expectations"], told, strict=True)
    ]
    return Answer(
        "\n".join([head, *(f"- {words}" for words in told)]), {"suite": suite["name"], "expectations": listed}
    )


def _diff(arguments: argparse.Namespace) -> Answer:
    """Compare two reports, the earlier one first."""
    before, after = (_report(name, arguments.store) for name in arguments.names)
    found = difference(before, after)
    value = {
        "rows": [before.rows, after.rows],
        "accepted": [before.accepted, after.accepted],
        "other_suite": found.other_suite,
        "changes": [change.to_json() for change in found.changes],
    }
    return Answer("\n".join(_told(found)), value)


def _told(found: Difference) -> list[str]:
    verdicts = ["accepted" if one.accepted else "rejected" for one in (found.before, found.after)]
    lines = [f"{found.before.rows:,} rows, {verdicts[0]} -> {found.after.rows:,} rows, {verdicts[1]}"]
    if found.other_suite:
        lines.append("The suites differ: an expectation may be new or gone instead of broken or healed.")
    titles = {"broken": "newly broken", "worse": "more rows", "same": "still broken", "better": "fewer rows"}
    for change in found.changes:
        lines.append(f"- {titles.get(change.kind, change.kind)}: {change.sentence}{_was(change)}")
    return lines if found.changes else [*lines, "Nothing is broken in either."]


def _was(change: Change) -> str:
    both = change.kind in ("worse", "better")
    return (
        f" (was {change.before:,} row{'' if change.before == 1 else 's'})" if both and change.before is not None else ""
    )


def _report(name: str, store: str | None) -> ContractReport:
    """A report: a file that validate --out wrote, an address in a store (contracts/…), or a run's id."""
    path = Path(name)
    if path.is_file():
        try:
            return ContractReport.from_json(json.loads(path.read_text()))
        except (ValueError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{name} is not a contract report.", remedy="Write one: trainwright validate SPEC --out FILE."
            ) from error
    for one in known_store_list(store):
        uri = name if name.startswith("contracts/") else _of_run(one, name)
        if uri is not None and one.exists(layout.manifest(uri)):
            return read_handoff(one, one.manifest(uri).ref, ContractReport)
    raise UsageError(
        f"There is no report {name}.",
        remedy="Name a file that validate --out wrote, a run, or contracts/… in a store (--store).",
    )


def _of_run(store: Store, run_id: str) -> str | None:
    """The address of the report of a run's validate; None if the store does not have it."""
    if not is_name(run_id) or not store.exists(layout.resolved(run_id)):
        return None
    path = layout.stage(run_id, "validate")  # a rejection is not recorded there
    known = store.read_as(path, StageResult.model_validate).id if store.exists(path) else None
    for name in store.list("contracts"):
        uri = f"contracts/{name}"
        if store.exists(layout.manifest(uri)):
            manifest = store.manifest(uri)
            by_run = manifest.provenance.get("run_id") == run_id and "suite" in manifest.settings
            if manifest.id == known if known is not None else by_run:
                return uri
    return None
