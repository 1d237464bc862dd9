"""A spec that was read, and its checks before anything is packed or booked.

`read_spec` reads a spec once for all that follows in a process. `LoadedSpec.check` reads the files that it names,
before a store is opened or a server is started; it neither imports code nor reads data. `check_layouts` checks how it
spreads its stages over devices.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from data_contracts.contract.suites import load_suite, nearest, own_classes, parameters_of, with_line
from data_contracts.errors import SpecError, UsageError
from data_contracts.handoffs import Suite
from data_contracts.lightning_config import inline_lightning
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import PipelineSpec, SourceSpec, SuiteSpec, TokenizerSpec
from data_contracts.pipeline_spec.base import DaskRunner, Spread, in_same_place
from data_contracts.pipeline_spec.train import SHARDED, TrainSpec, is_hsdp
from data_contracts.yaml_text import FieldPath, dotted, read_document
from infra import code_bundle, prices
from infra.budgets import refuse_by_policy
from infra.environments.packages import Requirements, read_requirements
from infra.prices import LOCAL, VARIABLE
from infra.project import is_in_project, require_class
from infra.settings import CLUSTER, check_approved
from infra.sources import Window, parse_window
from infra.sources.places import Stamp, stamp_of_stat

# A class or a function that the spec names: its field, and its dotted path.
NamedCode = tuple[FieldPath, str]
DATA, FEATURES, PREDICTIONS = "contract.suite", "contract.features.suite", "contract.predictions.suite"
_LIGHTNING: FieldPath = ("train", "lightning")

log = logging.getLogger("trainwright")
# With one of these, the same address names other files in each run.
# Precisions that Lightning's ModelParallelStrategy takes, with their short names.
_SHARDABLE = ("32-true", "bf16-mixed", "bf16-true", "16-true")
_LONG = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed", "64": "64-true"}


@dataclass(frozen=True)
class LoadedSpec:
    """A spec that was read once. Each of the files that it names is read when it is first needed, and then kept.

    What a file holds meanwhile does not count, so a process reads a spec for one run only. Approvals, prices and
    policies are no part of it: they count as they are now.

    Attributes:
        path: the spec's file.
        spec: its content after overrides.
        reading: what was read: the file, the overrides, and the file's stamp before it was read.
    """

    path: Path
    spec: PipelineSpec
    reading: tuple[Path, tuple[str, ...], Stamp | None] | None = None

    @property
    def root(self) -> Path:
        """The spec's folder, from which the names of other files start."""
        return self.path.parent

    @cached_property
    def project(self) -> Path:
        """The root of the user's project."""
        return code_bundle.project_root(self.root)

    @cached_property
    def lightning(self) -> dict[str, object]:
        """The Lightning config; SpecError as `inline_lightning`."""
        return inline_lightning(self.spec, self.root)

    @cached_property
    def suites(self) -> dict[str, Suite]:
        """Every suite, by its field; SpecError as `load_suite`, and for parameters that no suite uses."""
        found = {}
        for field in _written_suites(self.spec):
            found[field] = self.suite(field)
            if field == DATA:
                self._refuse_unused_parameters()
        return found

    def suite(self, field: str) -> Suite:
        """The suite of a field alone; SpecError as `load_suite`."""
        parameters = {} if self.spec.contract is None else self.spec.contract.parameters
        with suite_called(field, self.spec, self.root):
            return load_suite(_written_suites(self.spec)[field], self.root, parameters)

    @cached_property
    def own_expectations(self) -> list[str]:
        """The dotted paths of the user's own expectations, which the suites name."""
        return list(dict.fromkeys(name for suite in self.suites.values() for name in own_classes(suite).values()))

    @cached_property
    def requirements(self) -> Requirements | None:
        """The requirements of the spec's environment; None without an environment, SpecError if they cannot be read."""
        if self.spec.environment is None:
            return None
        return read_requirements(self.root / self.spec.environment.file, self.project)

    @cached_property
    def code(self) -> list[NamedCode]:
        """The user's (or a library's) classes and functions that the spec names, with their fields."""
        return list(_named_code(self.spec, self.lightning))

    def check(self, window: str | None) -> None:
        """Raise UsageError for mistakes in the spec, its Lightning config, its suites, its classes or the window.

        A setting that is valid but unlikely to be meant gives a warning.
        """
        refuse_by_policy(self.spec, self.path)
        check_pool_machine(self.spec)
        run_window(self, window, datetime.now(UTC))
        _refuse_unapproved(self.spec)
        _ = self.lightning, self.suites, self.requirements  # what is wrong in a file is said in this order
        self.refuse_unknown_code()
        self.refuse_unknown_expectations()

    def refuse_unknown_code(self, installed: Path | None = None) -> None:
        """SpecError, with file, line and field, if a class or function that the spec names does not exist.

        Args:
            installed: the folder of packages of the spec's environment. Before it is known, packages are not looked
                into.
        """
        for field, name in self.code:
            if self._is_elsewhere(name, installed):
                continue
            try:
                require_class(self.project, name, installed)
            except UsageError as error:
                where = _place(self.spec, self.path, field, name)
                raise SpecError(f"{where}: {error.message}", remedy=error.remedy) from error

    def refuse_unknown_expectations(self, installed: Path | None = None) -> None:
        """SpecError, with field, if a class that a suite names does not exist.

        Args:
            installed: as in `refuse_unknown_code`.
        """
        for field, suite in self.suites.items():
            for index, name in own_classes(suite).items():
                if self._is_elsewhere(name, installed):
                    continue
                with suite_called(field, self.spec, self.root):
                    try:
                        require_class(self.project, name, installed)
                    except UsageError as error:
                        where = f"{DATA}: expectations.{index}.class_path"
                        raise SpecError(f"{where}: {error.message}", remedy=error.remedy) from error

    def _is_elsewhere(self, name: str, installed: Path | None) -> bool:
        """Whether code is in the spec's environment, which is not known yet."""
        return self.spec.environment is not None and installed is None and not is_in_project(self.project, name)

    def _refuse_unused_parameters(self) -> None:
        contract = self.spec.contract
        if contract is None or not contract.parameters:
            return
        used = set()
        for field, suite in _written_suites(self.spec).items():
            with suite_called(field, self.spec, self.root):
                used |= parameters_of(suite, self.root)
        unused = next((name for name in contract.parameters if name not in used), None)
        if unused is not None:
            hint = nearest(unused, sorted(used)) or (
                f"; they use {', '.join(sorted(used))}." if used else "; they use none."
            )
            raise SpecError(
                f"contract.parameters.{unused}: no suite uses this parameter{hint}",
                remedy="Correct the name, or leave it out.",
            )


# The spec of the run that a flow run of this process is about to open, as it was read last.
SPEC_AT_HAND: ContextVar[LoadedSpec | None] = ContextVar("spec at hand", default=None)


def read_spec(path: str | Path, overrides: Sequence[str] = (), earlier: LoadedSpec | None = None) -> LoadedSpec:
    """Read a spec for a run, with overrides such as `train.seed=3`; SpecError as `load_spec`.

    Args:
        earlier: an earlier reading, which is returned if it is of the same file and overrides and the file is as it
            was.
    """
    path = Path(path).resolve()
    stamp = None
    with contextlib.suppress(OSError):  # `load_spec` reports it
        stamp = stamp_of_stat(path.stat())
    reading = path, tuple(overrides), stamp
    if earlier is not None and earlier.reading == reading:
        return earlier
    return LoadedSpec(path, load_spec(path, overrides), reading)


def _refuse_unapproved(spec: PipelineSpec) -> None:
    """UsageError for a credential that would be sent late in the run to an address for which nobody approved it.

    Stores, sources and weights are opened at the start, which refuses the same.
    """
    for address, fields in spec.mirrors.credentials.items():
        check_approved(fields, address)
    for name in ("contract", "shards"):
        if isinstance(runner := getattr(getattr(spec, name), "runner", None), DaskRunner):
            check_approved({CLUSTER: f"{name}.runner.dask"}, runner.dask)


def check_pool_machine(spec: PipelineSpec) -> None:
    """UsageError for a `train.machine` that is not the machine of the pool: its nodes would have another's price."""
    named, pool = spec.train.machine, spec.train.pool
    if pool is None or named == LOCAL or pool not in (pools := prices.prices().pools):
        return
    if named != pools[pool].machine:
        raise UsageError(
            f"train.machine: {named}, but the nodes of the pool {pool} are {pools[pool].machine} in the price book.",
            remedy=f"Leave train.machine out, or correct pools.{pool} in the file that {VARIABLE} names.",
        )


def _written_suites(spec: PipelineSpec) -> dict[str, str | dict[str, object]]:
    """Every suite of a spec as it is written there, by its field, in the order in which mistakes in them are said."""
    contract = spec.contract
    of_sets = {set_contract_field(name): one.contract for name, one in spec.evaluate.sets.items()}
    suites = {} if contract is None else {DATA: contract.suite}
    suites |= {field: one.suite for field, one in of_sets.items() if isinstance(one, SuiteSpec)}
    if contract is not None and contract.features is not None:
        suites[FEATURES] = contract.features.suite
    if contract is not None and contract.predictions is not None:
        suites[PREDICTIONS] = contract.predictions.suite
    return suites


def set_contract_field(name: str) -> str:
    """The field with the suite of an evaluation set."""
    return f"evaluate.sets.{name}.contract.suite"


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


def run_window(loaded: LoadedSpec, window: str | None, now: datetime) -> Window | None:
    """The window that `--window` names, for a spec that reads one; SpecError if only one of the two is given."""
    path, data = loaded.path, loaded.spec.data
    wanted = not isinstance(data, str) and data.window is not None
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


def _named_code(spec: PipelineSpec, lightning: Mapping[str, Any]) -> Iterator[NamedCode]:
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


def check_layouts(spec: PipelineSpec, lightning: Mapping[str, Any]) -> None:
    """UsageError for devices that the machine lacks, a strategy that the precision rules out, or ranks without batches.

    Args:
        lightning: the Lightning config.
    """
    machine = prices.machine(spec.train.machine)
    prices.check_devices(machine, spec.train.devices, lightning)
    for name, section in (("verify", spec.verify), ("evaluate", spec.evaluate)):
        if in_same_place(section, spec.train):
            prices.check_devices(machine, section.devices or 1, lightning, name)
    precision = str((lightning.get("trainer") or {}).get("precision") or "32-true")
    sharded = [one for one in ("train", "verify", "evaluate") if getattr(spec, one).strategy in SHARDED]
    if sharded and _LONG.get(precision, precision) not in _SHARDABLE:
        field, strategy = f"{sharded[0]}.strategy", getattr(spec, sharded[0]).strategy
        raise UsageError(
            f"{field}: {strategy} cannot compute with precision {precision} of the Lightning config.",
            remedy=f"Set trainer.precision to bf16-mixed or 32-true there, or {field} to ddp.",
        )
    if lightning.get("data") or spec.data == "external":
        _refuse_own_batches(spec)
    else:
        _check_hsdp("evaluate", spec.evaluate, spec.train)
    _check_hsdp("verify", spec.verify, spec.train)


def _check_hsdp(name: str, section: Spread, train: TrainSpec) -> None:
    """UsageError for a section with `hsdp` on too few ranks: its own, else as many as trained."""
    if section.strategy != "hsdp":
        return
    # A gang of nodes elsewhere may not fit this machine.
    as_trained = section.launcher != "local" or train.launcher == "local"
    if section.has_counts:
        enough = is_hsdp(section.nodes or 1, section.devices or 1)
    else:
        enough = as_trained and is_hsdp(train.nodes, train.devices, train.shard_ranks)
    if not enough:
        raise UsageError(
            f"{name}.strategy: hsdp needs at least two nodes of two devices.",
            remedy=f"Use fsdp, or more nodes and devices ({name}.nodes, {name}.devices).",
        )


def _refuse_own_batches(spec: PipelineSpec) -> None:
    """UsageError if several ranks are to score the batches of the user's own data module."""
    if (spec.evaluate.nodes or 1) * (spec.evaluate.devices or 1) > 1:
        raise UsageError(
            "evaluate.devices: your own data module makes its own batches, which one process scores.",
            remedy="Leave evaluate.nodes and evaluate.devices out, or use the sealed shards.",
        )
