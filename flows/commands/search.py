"""The command `search`: trains with other values, and promotes the best like any candidate."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import OverBudget, SpecError, UsageError
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.search import Value
from flows.commands.guard import Answer, log, run_answer
from flows.commands.run import run_line
from flows.commands.server import connect
from flows.commands.terminal import table
from infra.store import Store
from infra.store.layout import name_part
from tasks.run.resolve import RunOptions
from tasks.run.run import open_spec_store
from tasks.run.spec_check import LoadedSpec, read_spec, run_window
from tasks.search.page import keep_page, short
from tasks.search.search import (
    Search,
    SearchResult,
    Trial,
    TrialProcess,
    begin,
    holding,
    key_of,
    overrides_of,
    refusal,
    trial_command,
)


def search(arguments: argparse.Namespace) -> Answer:
    """The `search` command: continues a search of the same name; the exit code is that of the best trial's run."""
    loaded = read_spec(arguments.spec, arguments.set)
    spec, path = loaded.spec, str(loaded.path)
    if spec.search is None:
        raise SpecError(f"{path}: search: is missing, so there is nothing to try.", remedy="Add it (docs/search.md).")
    loaded.check(arguments.window)
    refuse_without_rungs(path, spec, loaded.lightning)
    refuse_without_effect(loaded, arguments.set)
    store = open_spec_store(spec, loaded.root, arguments.store)
    name = name_part(arguments.name or spec.name)
    connect("cli")  # one server for all of them
    window = run_window(loaded, arguments.window, datetime.now(UTC))
    with holding(store, name) as keeper:
        decides = digest(_what_decides(path, arguments.set))
        record = begin(store, spec, name, None if window is None else str(window), decides)

        def start(trial: Trial) -> TrialProcess:
            command = trial_command(path, store, record, trial, arguments.set)
            return TrialProcess(command, store, key_of(record, trial.number))

        def refused(settings: Mapping[str, Value]) -> str:
            return refusal(path, [*arguments.set, *overrides_of(settings)], record.window)

        carried_out = Search(store, record, start, refused, _show)
        log.info("  page  %s", keep_page(carried_out.result, carried_out.importance))
        result = carried_out.carry_out(keeper)
    return promoted(result, path, store, arguments)


def promoted(result: SearchResult, spec: str, store: Store, arguments: argparse.Namespace) -> Answer:
    """Run the whole line with the best trial's values: its training is reused, and the gate knows how many there were.

    Raises:
        OverBudget: the budget was used before a trial was finished.
        UsageError: no trial was finished.
    """
    best = result.best
    if best is None:
        sentence = f"No trial of the search {result.record.name} was finished"
        if result.over:
            raise OverBudget(f"{sentence}: {result.over}", remedy="Raise search.budget, and give the command again.")
        why = next((f": {trial.sentence}" for trial in reversed(result.trials) if trial.sentence), ".")
        raise UsageError(f"{sentence}{why}")
    log.info("  trial %d is the best of %d and goes through the whole line", best.number, len(result.trials))
    overrides = [*arguments.set, *overrides_of(best.settings), f"promote.candidates={result.num_compared}"]
    # Whoever corrects a gate, and searches again, has it decided anew.
    gates = digest(read_spec(spec, overrides).spec.model_dump(mode="json"))[:12]
    key = f"search/{result.record.name}/{result.record.identity}/best-{gates}"
    options = RunOptions(key=key, window=result.record.window)
    report = run_line(spec, overrides=overrides, store=store.uri, options=options)
    if any(stage.name == "train" and stage.status == "ran" for stage in report.stages):
        log.warning("The best trial was trained again: code, data or spec have changed since then.")
    answer = run_answer(report, arguments)
    value = {**result.to_json(), "run": report.to_json()}
    return dataclasses.replace(answer, text=f"{text_of(result)}\n\n{answer.text}", value=value)


def refuse_without_effect(loaded: LoadedSpec, overrides: list[str]) -> None:
    """SpecError for a field of the space that the spec cannot have, or that does not change what is trained."""
    path, spec = str(loaded.path), loaded.spec
    assert spec.search is not None
    for name, parameter in spec.search.space.items():
        decided = [_what_decides(path, overrides)]
        faults = []
        for value in parameter.choices or parameter.bounds:
            try:
                decided.append(_what_decides(path, [*overrides, *overrides_of({name: value})]))
            except SpecError as error:
                faults.append(error)
        if len(decided) == 1:
            raise faults[0]
        written = _written(loaded, name)
        if isinstance(written, float) and parameter.choices is None and parameter.is_whole:
            raise SpecError(
                f"{path}: search.space.{name}: has whole numbers alone, and the spec has {written:g} there.",
                remedy="Write 0.0 and 1.0 for all numbers from 0 to 1.",
            )
        if all(one == decided[0] for one in decided):
            raise SpecError(
                f"{path}: search.space.{name}: does not decide what is trained, so every trial would be the same.",
                remedy="Leave it out; search fields of train (not where it runs), shards, contract or data.",
            )


def _what_decides(path: str, overrides: list[str]) -> list[object]:
    """What of a spec decides the result of a training, as JSON."""
    loaded = read_spec(path, overrides)
    whole = loaded.spec.model_dump(mode="json")
    return [whole["data"], whole["contract"], whole["shards"], loaded.spec.train.recipe, loaded.lightning]


def _written(loaded: LoadedSpec, field: str) -> object:
    """The value of a field in the spec; None if it is not written there."""
    value: Any = loaded.spec.model_dump(mode="json")
    value["train"]["lightning"] = loaded.lightning
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def refuse_without_rungs(path: str, spec: PipelineSpec, lightning: Mapping[str, Any]) -> None:
    """SpecError if no trial comes as far as the first validation at which trials are compared."""
    trainer = lightning.get("trainer") or {}
    epochs = trainer.get("max_epochs")
    one_an_epoch = not {"val_check_interval", "check_val_every_n_epoch"} & trainer.keys()
    if spec.search is None or spec.search.prune is None or not isinstance(epochs, int) or not one_an_epoch:
        return
    if 0 < epochs <= spec.search.prune.first:
        raise SpecError(
            f"{path}: search.prune.first: {spec.search.prune.first}, but a trial ends after {epochs} epochs, so none "
            "would end early.",
            remedy="Give a smaller number, or leave search.prune out.",
        )


def text_of(result: SearchResult) -> str:
    """The trials as a table, and the best."""
    names = list(result.record.spec.space)
    metric = result.record.select.metric
    rows = [
        [str(trial.number), trial.state, _number(trial.value), *(str(trial.settings.get(name, "")) for name in names)]
        for trial in result.trials
    ]
    lines = [table(["trial", "state", metric, *map(short, names)], rows)]
    if result.over:
        lines.append(f"No further trial: {result.over}")
    if result.best is not None:
        lines.append(f"The best is trial {result.best.number}: {metric} {_number(result.best.value)}.")
    return "\n".join(lines)


def _show(trial: Trial, search: Search) -> None:
    """Log what changed, and bring the page up to date."""
    if trial.state == "running":
        text = ", ".join(f"{short(name)} {value}" for name, value in trial.settings.items())
        at = f"validation {len(trial.values)}: {_number(trial.values[-1])}" if trial.values else text
        log.info("  trial %d  %s", trial.number, at)
    else:
        log.info("  trial %d  %s  %s", trial.number, trial.state, _number(trial.value) or trial.sentence)
        keep_page(search.result, search.importance)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
