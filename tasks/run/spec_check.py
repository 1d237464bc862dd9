"""Checks a spec against the files that it names, before a store is opened or a server is started.

It neither imports code nor reads data.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_contracts.contract.suites import load_suite, nearest, own_classes, parameters_of, with_line
from data_contracts.errors import SpecError, UsageError
from data_contracts.lightning_config import inline_lightning
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import ContractSpec, PipelineSpec, SourceSpec, SuiteSpec, TokenizerSpec
from data_contracts.pipeline_spec.base import DaskRunner
from data_contracts.yaml_text import FieldPath, dotted, read_document
from infra import code_bundle
from infra import prices as price_book
from infra.budgets import refuse_by_policy
from infra.environments.packages import Packages, Requirements, read_requirements
from infra.prices import LOCAL, VARIABLE
from infra.project import is_in_project, require_class
from infra.settings import PREFECT_SETTINGS, check_approved
from infra.sources import Window, parse_window
from tasks.run.canary_check import why_no_fresh_rows

# A class or a function that the spec names: its field, and its dotted path.
NamedCode = tuple[FieldPath, str]
DATA, FEATURES, PREDICTIONS = "contract.suite", "contract.features.suite", "contract.predictions.suite"
_LIGHTNING: FieldPath = ("train", "lightning")

log = logging.getLogger("trainwright")


def check_spec(path: Path, overrides: Sequence[str], window: str | None) -> None:
    """Raise UsageError for mistakes in a spec, its Lightning config, its suite, its classes or the window.

    A setting that is valid but unlikely to be meant gives a warning.
    """
    spec, root = load_spec(path, overrides), path.parent
    refuse_by_policy(spec, path)
    check_pool_machine(spec)
    run_window(spec, path, window, datetime.now(UTC))
    _refuse_unapproved(spec)
    lightning = inline_lightning(spec, root)
    named_suites(spec, root)
    read_spec_requirements(spec, path)
    project = code_bundle.project_root(root)
    refuse_unknown_code(spec, path, lightning, project)
    refuse_unknown_expectations(spec, root, project)
    if (why := why_no_fresh_rows(spec)) is not None:
        log.warning("%s", why)


def _refuse_unapproved(spec: PipelineSpec) -> None:
    """UsageError for a credential that would be sent late in the run to an address for which nobody approved it.

    Stores, sources and weights are opened at the start, which refuses the same.
    """
    for address, fields in spec.mirrors.credentials.items():
        check_approved(fields, address)
    for name in ("contract", "shards"):
        if isinstance(runner := getattr(getattr(spec, name), "runner", None), DaskRunner):
            check_approved({PREFECT_SETTINGS: f"{name}.runner.dask"}, runner.dask)


def check_pool_machine(spec: PipelineSpec) -> None:
    """UsageError for a `train.machine` that is not the machine of the pool: its nodes would have another's price."""
    named, pool = spec.train.machine, spec.train.pool
    if pool is None or named == LOCAL or pool not in (pools := price_book.prices().pools):
        return
    if named != pools[pool].machine:
        raise UsageError(
            f"train.machine: {named}, but the nodes of the pool {pool} are {pools[pool].machine} in the price book.",
            remedy=f"Leave train.machine out, or correct pools.{pool} in the file that {VARIABLE} names.",
        )


def read_spec_requirements(spec: PipelineSpec, path: Path) -> Requirements | None:
    """The requirements of the spec's environment; None without an environment, SpecError if they cannot be read."""
    if spec.environment is None:
        return None
    return read_requirements(path.parent / spec.environment.file, code_bundle.project_root(path.parent))


def refuse_without_expectations(packages: Packages, path: Path) -> None:
    """SpecError if an environment lacks what runs the expectations of a user's own.

    Args:
        path: the spec's file.
    """
    lacking = [name for name in ("duckdb", "great-expectations") if name not in packages.versions]
    if lacking:
        raise SpecError(
            f"{path}: contract: a class_path runs in the spec's environment, which lacks {' and '.join(lacking)}.",
            remedy="Add it there, or name no class_path.",
        )


def data_suite(spec: PipelineSpec, root: Path) -> dict[str, Any] | None:
    """The suite of the raw data, loaded; SpecError as `load_suite`, and for parameters that no suite uses."""
    if spec.contract is None:
        return None
    suite = load_suite(spec.contract.suite, root, spec.contract.parameters)
    _refuse_unused_parameters(spec.contract, spec, root)
    return suite


def _refuse_unused_parameters(contract: ContractSpec, spec: PipelineSpec, root: Path) -> None:
    if not contract.parameters:
        return
    used = set()
    for field, suite in _written_suites(spec).items():
        with suite_called(field, spec, root):
            used |= parameters_of(suite, root)
    unused = next((name for name in contract.parameters if name not in used), None)
    if unused is not None:
        hint = nearest(unused, sorted(used)) or (
            f"; they use {', '.join(sorted(used))}." if used else "; they use none."
        )
        raise SpecError(
            f"contract.parameters.{unused}: no suite uses this parameter{hint}",
            remedy="Correct the name, or leave it out.",
        )


def _written_suites(spec: PipelineSpec) -> dict[str, str | dict[str, Any]]:
    """Every suite of a spec as it is written there, by its field."""
    contract, suites = spec.contract, {}
    if contract is not None:
        suites[DATA] = contract.suite
        if contract.features is not None:
            suites[FEATURES] = contract.features.suite
        if contract.predictions is not None:
            suites[PREDICTIONS] = contract.predictions.suite
    of_sets = {name: one.contract for name, one in spec.evaluate.sets.items()}
    return suites | {set_contract_field(name): one.suite for name, one in of_sets.items() if isinstance(one, SuiteSpec)}


def set_suites(spec: PipelineSpec, root: Path) -> dict[str, dict[str, Any]]:
    """The suites that evaluation sets name themselves, loaded, by the set's name; SpecError as `load_suite`."""
    found = {}
    parameters = {} if spec.contract is None else spec.contract.parameters
    for name, one in spec.evaluate.sets.items():
        if isinstance(one.contract, SuiteSpec):
            with suite_called(set_contract_field(name), spec, root):
                found[name] = load_suite(one.contract.suite, root, parameters)
    return found


def features_suite(spec: PipelineSpec, root: Path) -> dict[str, Any] | None:
    """The suite of `contract.features`, loaded; SpecError as `load_suite`."""
    return None if spec.contract is None else _suite(spec.contract.features, FEATURES, spec, root)


def predictions_suite(spec: PipelineSpec, root: Path) -> dict[str, Any] | None:
    """The suite of `contract.predictions`, loaded; SpecError as `load_suite`."""
    return None if spec.contract is None else _suite(spec.contract.predictions, PREDICTIONS, spec, root)


def _suite(wanted: SuiteSpec | None, field: str, spec: PipelineSpec, root: Path) -> dict[str, Any] | None:
    if wanted is None:
        return None
    assert spec.contract is not None
    with suite_called(field, spec, root):
        return load_suite(wanted.suite, root, spec.contract.parameters)


def set_contract_field(name: str) -> str:
    """The field with the suite of an evaluation set."""
    return f"evaluate.sets.{name}.contract.suite"


def named_suites(spec: PipelineSpec, root: Path) -> dict[str, dict[str, Any]]:
    """Every suite of a spec, loaded, by its field; SpecError as `load_suite`."""
    found = {}
    for field, suite in (
        (DATA, data_suite(spec, root)),
        *((set_contract_field(name), suite) for name, suite in set_suites(spec, root).items()),
        (FEATURES, features_suite(spec, root)),
        (PREDICTIONS, predictions_suite(spec, root)),
    ):
        if suite is not None:
            found[field] = suite
    return found


def refuse_unknown_expectations(spec: PipelineSpec, root: Path, project: Path, installed: Path | None = None) -> None:
    """SpecError, with field, if a class that a suite names does not exist.

    Args:
        root: the spec's folder.
        installed: as in `refuse_unknown_code`.
    """
    for field, suite in named_suites(spec, root).items():
        for index, name in own_classes(suite).items():
            if spec.environment is not None and installed is None and not is_in_project(project, name):
                continue
            with suite_called(field, spec, root):
                try:
                    require_class(project, name, installed)
                except UsageError as error:
                    where = f"{DATA}: expectations.{index}.class_path"
                    raise SpecError(f"{where}: {error.message}", remedy=error.remedy) from error


@contextlib.contextmanager
def suite_called(field: str, spec: PipelineSpec, root: Path) -> Iterator[None]:
    """Errors about a suite name this field, or the suite's file and line."""
    try:
        yield
    except SpecError as error:
        message = error.message.replace(DATA, field, 1)
        suite = _written_suites(spec).get(field)
        located = message if suite is None else with_line(message, field, suite, root)
        raise SpecError(located, remedy=error.remedy) from error


def run_window(spec: PipelineSpec, path: Path, window: str | None, now: datetime) -> Window | None:
    """The window that `--window` names, for a spec that reads one; SpecError if only one of the two is given."""
    wanted = not isinstance(spec.data, str) and spec.data.window is not None
    if wanted and window is None:
        raise SpecError(
            f"{path}: data.window: the spec reads a window, but none was given.",
            remedy="Give --window START..END, or a length such as --window 7d.",
        )
    if not wanted and window is not None:
        raise SpecError(
            f"{path}: data.window: --window {window} was given, but the spec has no window.",
            remedy="Add data.window to the spec or leave --window out.",
        )
    return None if window is None else parse_window(window, now)


def named_code(spec: PipelineSpec, lightning: dict[str, Any]) -> Iterator[NamedCode]:
    """The user's (or a library's) classes and functions that a spec names, with their fields."""
    if spec.train.transform:
        yield ("train", "transform"), spec.train.transform.call
    if spec.shards and spec.shards.transform:
        yield ("shards", "transform"), spec.shards.transform.call
    for part in ("model", "data"):
        if (lightning.get(part) or {}).get("class_path"):
            yield (*_LIGHTNING, part, "class_path"), lightning[part]["class_path"]
    for name, metric in spec.evaluate.metrics.items():
        if metric.class_path:
            yield ("evaluate", "metrics", name, "class_path"), metric.class_path
    for name, one in spec.evaluate.sets.items():
        if one.perturb is not None:
            yield ("evaluate", "sets", name, "perturb"), one.perturb
    for field, tokenizer in named_tokenizers(spec):
        yield (*field, "class_path"), tokenizer.class_path


def named_tokenizers(spec: PipelineSpec) -> Iterator[tuple[FieldPath, TokenizerSpec]]:
    """The user's tokenizers that cut documents, with their fields."""
    groups: list[tuple[FieldPath, list[SourceSpec]]] = []
    groups += [] if isinstance(spec.data, str) else [(("data",), spec.data.source)]
    groups += [(("evaluate", "sets", name), one.source or []) for name, one in spec.evaluate.sets.items()]
    for field, sources in groups:
        for index, source in enumerate(sources):
            if source.pieces is not None and source.pieces.tokenizer is not None:
                yield (*field, "source", index, "pieces", "tokenizer"), source.pieces.tokenizer


def refuse_unknown_code(
    spec: PipelineSpec, path: Path, lightning: dict[str, Any], project: Path, installed: Path | None = None
) -> None:
    """SpecError, with file, line and field, if a class or function that the spec names does not exist.

    Args:
        installed: the folder of packages of the spec's environment. Before it is known, packages are not looked into.
    """
    for field, name in named_code(spec, lightning):
        if spec.environment is not None and installed is None and not is_in_project(project, name):
            continue
        try:
            require_class(project, name, installed)
        except UsageError as error:
            where = _place(spec, path, field, name)
            raise SpecError(f"{where}: {error.message}", remedy=error.remedy) from error


def _place(spec: PipelineSpec, path: Path, field: FieldPath, name: str) -> str:
    """`file:line: field` of the class or function `name`; `--set: field` if the file has another value there."""
    file = spec.train.lightning
    if field[:2] == _LIGHTNING and isinstance(file, str):
        path, field = path.parent / file, field[2:]
    document = read_document(path, "a YAML file", "write it")
    at, written = _written(document.value, field)
    return f"{document.place(at) if written == name else '--set'}: {dotted(field)}"


def _written(value: Any, field: FieldPath) -> tuple[FieldPath, Any]:
    """Where a file has a field, and its value: a single source has no number, and a text may stand for a section."""
    at: FieldPath = ()
    for part in field:
        if isinstance(value, str):
            break
        if isinstance(value, dict) and isinstance(part, int):
            continue
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return at, None
        at = (*at, part)
    return at, value.get("call") if isinstance(value, dict) else value
