"""`contract`: write a contract from data, say what one expects, compare two reports, write Data Docs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_contracts.canonical import is_name
from data_contracts.contract.reports import Change, Difference, difference, sentence
from data_contracts.contract.suites import load_suite
from data_contracts.errors import UsageError
from data_contracts.foreign_files import parse_json, read_plain
from data_contracts.handoffs import ContractReport
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import PipelineSpec, SuiteSpec
from data_contracts.resolved import Resolved
from data_contracts.run_report import StageResult
from flows.commands.contract_docs import docs
from flows.commands.contract_infer import infer
from flows.commands.guard import Answer
from infra.records.handoffs import read_handoff
from infra.store import Store, layout
from tasks.run.run import Run, known_store_list
from tasks.run.spec_check import (
    FEATURES,
    PREDICTIONS,
    features_suite,
    predictions_suite,
    set_contract_field,
    set_suites,
)
from tasks.stages.validate import contract_key


def contract(arguments: argparse.Namespace) -> Answer:
    """The `contract` command."""
    wanted = 2 if arguments.action == "diff" else 1
    if len(arguments.names) != wanted:
        what = {"infer": "one source", "explain": "one suite or spec", "diff": "two reports", "docs": "one run"}[
            arguments.action
        ]
        raise UsageError(
            f"contract {arguments.action} takes {what}, got {len(arguments.names)} names.",
            remedy="Put quotes around a glob, so that the shell does not expand it.",
        )
    if arguments.out is not None and arguments.action not in ("infer", "docs"):
        raise UsageError(f"contract {arguments.action}: --out has no effect.", remedy="Leave it out.")
    actions: dict[str, Callable[[argparse.Namespace], Answer]] = {
        "infer": infer,
        "explain": _explain,
        "diff": _diff,
        "docs": docs,
    }
    return actions[arguments.action](arguments)


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
    spec, root = load_spec(path), path.resolve().parent
    if spec.contract is None:
        raise UsageError(f"{name} has no contract: its data is external.", remedy="Name a spec with a contract.")
    suite = load_suite(spec.contract.suite, root, spec.contract.parameters)
    lines, listed = _in_sentences(suite)
    lines.insert(0, f"{suite['name']}: {_count(suite)}; {_fails(spec.contract.fail_on)}")
    value: dict[str, Any] = {"suite": suite["name"], "expectations": listed}
    others = []
    for field, (one, fails) in _other_suites(spec, root).items():
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


def _other_suites(spec: PipelineSpec, root: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """The suites beside that of the raw data, by their field, and what each fails on."""
    found: dict[str, tuple[dict[str, Any], str]] = {}
    features = features_suite(spec, root)
    if features is not None:
        assert spec.contract is not None
        assert spec.contract.features is not None
        found[FEATURES] = features, spec.contract.features.fail_on
    predictions = predictions_suite(spec, root)
    if predictions is not None and spec.contract is not None and spec.contract.predictions is not None:
        found[PREDICTIONS] = predictions, spec.contract.predictions.fail_on
    for name, suite in set_suites(spec, root).items():
        one = spec.evaluate.sets[name].contract
        assert isinstance(one, SuiteSpec)
        found[set_contract_field(name)] = suite, one.fail_on
    return found


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


def _diff(arguments: argparse.Namespace) -> Answer:
    """Compare two reports, the earlier one first."""
    before, after = (_report(name, arguments.store) for name in arguments.names)
    found = difference(before, after)
    value = {
        "rows": [before.rows, after.rows],
        "accepted": [before.accepted, after.accepted],
        "other_suite": found.other_suite,
        "changes": [change.to_json() for change in found.changes],
        "set_aside": list(found.set_aside),
        "drift": [None if one.drift is None else one.drift.verdict for one in (before, after)],
        "moved": [change.to_json() for change in found.moved],
    }
    return Answer("\n".join(_in_words(found)), value)


def _in_words(found: Difference) -> list[str]:
    verdicts = ["accepted" if one.accepted else "rejected" for one in (found.before, found.after)]
    lines = [f"{found.before.rows:,} rows, {verdicts[0]} -> {found.after.rows:,} rows, {verdicts[1]}"]
    if found.other_suite:
        lines.append("The suites differ: an expectation may be new or gone instead of broken or healed.")
    titles = {"broken": "newly broken", "worse": "more rows", "same": "still broken", "better": "fewer rows"}
    for change in found.changes:
        lines.append(f"- {titles.get(change.kind, change.kind)}: {change.sentence}{_was(change)}")
    lines += [] if found.changes else ["Nothing is broken in either."]
    if any(one.quarantine is not None for one in (found.before, found.after)):
        lines.append("Set aside: {:,} -> {:,} rows.".format(*found.set_aside))
    refused = found.after.quarantine.refused if found.after.quarantine is not None else ""
    return [*lines, *([refused] if refused else []), *_drift_in_words(found)]


def _drift_in_words(found: Difference) -> list[str]:
    """How the columns had moved in both reports; nothing without a comparison in either."""
    reports = [one.drift for one in (found.before, found.after)]
    if reports == [None, None]:
        return []
    lines = [f"Drift: {' -> '.join('not compared' if one is None else one.head for one in reports)}."]
    for change in found.moved:
        title = {"broken": "newly moved", "healed": "no longer moved"}.get(change.kind, "moved in both")
        lines.append(f"- {title}: {change.sentence}")
    return lines


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
            return ContractReport.from_json(parse_json(read_plain(path)))
        except (OSError, ValueError) as error:
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
    path = layout.stage(run_id, "validate")
    if store.exists(path):
        known = store.read_as(path, StageResult.model_validate).id
        uris = [f"contracts/{name}" for name in store.list("contracts")]
        return next(
            (uri for uri in uris if store.exists(layout.manifest(uri)) and store.manifest(uri).id == known), None
        )
    # A rejection is not recorded there, and its report may be of an earlier run with the same data.
    key = contract_key(Run(store.read_as(layout.resolved(run_id), Resolved.from_json), store))
    ref = None if key is None else store.newest("contracts", key)
    return None if ref is None else ref.uri
