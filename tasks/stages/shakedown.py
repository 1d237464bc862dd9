"""Tries a training and what follows it on its first rows, before a node is booked.

A shakedown that passed is kept on this machine, by code, data and settings, and is not repeated.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from data_contracts.canonical import reuse_key
from data_contracts.errors import Hung, OutOfMemory, UsageError
from data_contracts.handoffs import Dataset
from data_contracts.messages.children import SHAKEDOWN, ScoredSet, ShakedownRequest, Shaken
from data_contracts.quoting import absent_name
from infra import prices
from infra.child import run_child
from infra.files import replace_json
from infra.processes.environment import NO_SHAKEDOWN
from infra.records.handoffs import beginning, local_split, mixed
from infra.settings import state_folder
from tasks.run.run import Run
from tasks.stages.memory_check import first_weights
from tasks.stages.predictions import asked_of
from tasks.stages.scored_rows import pairs_of, sets_to_score
from tasks.stages.trainings import sealed_settings

SHAKEDOWN_VERSION = 1
# A module that takes longer, or more of this machine's memory, is trained untried.
SHAKEDOWN_MOST_S, SHAKEDOWN_MEMORY_SHARE = 600.0, 0.5
KEPT, MOST_KEPT = "shakedowns.json", 500
log = logging.getLogger("trainwright")


def shake_down(run: Run, dataset: Dataset | None) -> None:
    """Try the training of a run, and what follows it, in a child process, unless it has passed before.

    Raises:
        UsageError, UserCodeError: what would end the run later, with the user's file and line.
    """
    if os.environ.get(NO_SHAKEDOWN) or run.replay is not None:
        return
    elsewhere = run.spec.train.pool is not None
    if dataset is None and (elsewhere or not run.external):
        why = "its data module may read what this machine does not have" if run.external else "no shards exist yet"
        log.info("no shakedown of the training now: %s", why)
        return
    try:
        request = _shakedown_request(run, dataset)
    except UsageError as error:  # in a plan: the dataset of another set is not made
        log.info("no shakedown of the training now: %s", error.message)
        return
    key = _shakedown_key(run, request)
    if key in _passed():
        return
    try:
        with _laid_out(run, request) as local_request:
            shaken = run_child(
                SHAKEDOWN,
                local_request,
                project=run.project(),
                withhold=run.withholds,
                limit=SHAKEDOWN_MOST_S,
                memory_share=SHAKEDOWN_MEMORY_SHARE,
            )
    except (Hung, OutOfMemory) as error:
        log.warning("the shakedown did not end, so the training begins untried: %s", error.message)
        return
    for sentence in shaken.remarks:
        log.warning("shakedown: %s", sentence)
    _refuse_unknown_columns(run, shaken)
    replace_json(state_folder() / KEPT, [*_passed(), key][-MOST_KEPT:])


def _shakedown_request(run: Run, dataset: Dataset | None) -> ShakedownRequest:
    spec, resolved, whole = run.spec, run.resolved, run.store.is_local
    sets = {
        name: ScoredSet(dataset=scored if whole else beginning(scored), split=split)
        for name, (scored, split) in sets_to_score(run, dataset).items()
    }
    return ShakedownRequest(
        train=run.train_settings(),
        dataset=dataset if dataset is None or whole else beginning(dataset),
        train_rows=0 if dataset is None else mixed(dataset, resolved.mixture).rows("train"),
        whole=whole,
        evaluate=spec.evaluate.result,
        sets=sets,
        predictions=asked_of(run) is not None,
        pairs=pairs_of(run),
        exports=[gate.to for gate in spec.promote.export],
        elsewhere=spec.train.pool is not None and not prices.on_cpu(resolved.lightning),
        code=resolved.code,
    )


def _shakedown_key(run: Run, request: ShakedownRequest) -> str:
    """What a shakedown depends on: code, environment, settings, and the ids of the datasets."""
    settings = {
        **sealed_settings(run, request.dataset),
        "lock": run.resolved.lock_digest,
        "predictions": run.resolved.predictions,
        **request.model_dump(mode="json", include={"evaluate", "pairs", "exports", "elsewhere"}),
    }
    inputs = {name: scored.dataset.ref.id for name, scored in request.sets.items()}
    return reuse_key("shakedown", SHAKEDOWN_VERSION, settings, inputs, run.resolved.code_digest)


def _passed() -> list[str]:
    """The keys of the shakedowns that passed on this machine, the latest last."""
    with contextlib.suppress(OSError, ValueError):
        keys = json.loads((state_folder() / KEPT).read_text())
        return keys if isinstance(keys, list) else []
    return []


@contextlib.contextmanager
def _laid_out(run: Run, request: ShakedownRequest) -> Iterator[ShakedownRequest]:
    """The request with the folders of what it needs; shards of a remote store are copied here meanwhile."""
    paths = {request.code.id: str(run.project())}
    with contextlib.ExitStack() as stack:
        for need in request.needs:
            if isinstance(need, Dataset) and need.ref.id not in paths:
                paths[need.ref.id] = str(stack.enter_context(local_split(run.store, need, *need.splits)))
        weights = first_weights(run) if request.whole else ""
        yield request.at(paths).model_copy(update={"first_weights": weights})


def _refuse_unknown_columns(run: Run, shaken: Shaken) -> None:
    """UsageError if the suite of `contract.predictions` names a column that the predictions do not have."""
    suite = run.resolved.predictions or {}
    for name, columns in shaken.columns.items() if asked_of(run) is not None else ():
        for column in _columns(suite):
            if column not in columns:
                place = f" on evaluate.sets.{name}" if name else ""
                raise UsageError(
                    f"contract.predictions{place}: the predictions have no column {absent_name(column, columns)}.",
                    remedy=f"They have {', '.join(columns)}.",
                )


def _columns(suite: Mapping[str, Any]) -> Iterator[str]:
    """The columns that the critical expectations of a suite name."""
    for expectation in suite.get("expectations", []):
        kwargs = expectation.get("kwargs") or {}
        if (expectation.get("severity") or "critical") == "critical" and isinstance(kwargs.get("column"), str):
            yield kwargs["column"]
