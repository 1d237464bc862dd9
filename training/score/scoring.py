"""Scores a module on one set: Lightning's Trainer runs its `predict_step` and `test_step`, and the metrics are computed
from the predictions and from the logged values.

A set may be scored on batches changed by a function of the user's, to see how robust a model is, and the time that a
model takes for one batch is measured meanwhile. What `test_step` logs on several ranks is kept per batch, and rank 0
logs it again in the batches' order. So Lightning adds the values up as in a process that scores alone. What a rank
accumulates over its own batches alone cannot be logged in such a way, and is refused.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.apply_func import apply_to_collection
from torch.utils.data import DataLoader
from torchmetrics import Metric

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.pipeline_spec import MetricSpec, SetSpec
from training.lightning_adapter import weigh_logged_by
from training.loader import OrderedLoader
from training.loader.loaders import rows_of
from training.score.metrics import LoggedScore, PredictionScore
from training.score.outcomes import PairTable, PredictionTable, RowDigest, Scored, prediction_of, target_of, tensors_of
from training.score.team import CountBatches, Dealt, Progress, Team
from training.user.imports import borrowed, load_callable, user_code
from training.user.ready import call_forward, plain_trainer

Perturbation = Callable[[Any], Any]
# The first batches also pay for memory, compilation and caches.
_WARM_UP = 3
# Arguments of `self.log` about ranks: a process alone ignores them.
_OF_RANKS = {"sync_dist", "sync_dist_group", "rank_zero_only"}
_REDUCTIONS = {torch.mean: "mean", torch.sum: "sum", torch.max: "max", torch.min: "min"}
_ONE_DEVICE = "Set evaluate.devices and evaluate.nodes to 1, or name a torchmetrics class over predict_step instead."


@dataclass(frozen=True)
class Scorer:
    """How a module is scored.

    Attributes:
        train: settings that it was trained with.
        project: root of its code.
        progress: gets each batch.
        team: the ranks that score together; None: this process alone.
        latency: times the batches, if that is asked for.
        kinds: by metric, `logits` or `probabilities`: what its scores were on the sets before.
    """

    train: Mapping[str, Any]
    project: Path
    progress: Progress
    team: Team | None = None
    latency: Latency | None = None
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        """Whether this process has the outcomes of all ranks."""
        return self.team is None or self.team.rank == 0

    def value(self, name: str, compute: Callable[[], Scored]) -> Scored | None:
        """A metric's value; None if it may be left out."""
        return compute()

    def trainer(self, callback: L.Callback) -> L.Trainer:
        """A Trainer for this process."""
        ranks = None if self.team is None else self.team.trainer_settings()
        timed = [self.latency] if self.latency is not None else []
        return plain_trainer(self.train, [*timed, callback, CountBatches(self.progress)], ranks)


def score(
    module: L.LightningModule,
    batches: Any,
    metrics: dict[str, MetricSpec],
    classes: dict[str, type[Metric]],
    scorer: Scorer,
    table: PredictionTable | None = None,
    pairs: Mapping[str, PairTable] | None = None,
) -> dict[str, Scored]:
    """Compute every metric over the batches: a loader, or a data module whose test loader is used.

    Args:
        classes: the torchmetrics class of each metric that names one.
        table: gets the predictions of each row, on rank 0.
        pairs: by metric: gets the truth and the prediction of each row, on rank 0.

    Returns: the metrics by name; on a rank other than 0, nothing.
    """
    found: dict[str, Scored] = {}
    predicted = {name: metric for name, metric in metrics.items() if metric.class_path}
    logged = {name: metric for name, metric in metrics.items() if metric.logged}
    if table is not None and not predicted and not is_overridden("predict_step", module, L.LightningModule):
        table.file.refuse(
            f"{type(module).__name__} has no predict_step, and no metric says what the truth in a batch is"
        )
        table = None
    if predicted or table is not None:
        # The id of a dataset of ours stands for its rows; a data module of the user's may read anything.
        digest = RowDigest if isinstance(batches, L.LightningDataModule) else lambda: None
        kept = pairs or {}
        scores = {
            name: PredictionScore(name, one, classes[name], digest(), kept.get(name), scorer.kinds.get(name))
            for name, one in predicted.items()
        }
        found |= _predict(module, batches, _Predictions(scores, predicted, scorer, table))
    if logged:
        found |= _test(module, batches, logged, scorer)
    return {name: found[name] for name in metrics if name in found}


def rows_named(batches: Any) -> AbstractContextManager[None]:
    """Name the rows of the current batch in an error from inside, if the batches are those of a loader of ours."""
    return batches.rows_named() if isinstance(batches, OrderedLoader) else nullcontext()


class _Predictions(L.Callback):
    """Passes each batch's predictions to the scores and to the table."""

    def __init__(
        self,
        scores: dict[str, PredictionScore],
        specs: dict[str, MetricSpec],
        scorer: Scorer,
        table: PredictionTable | None,
    ) -> None:
        self.scores, self.specs, self.scorer, self.table = scores, specs, scorer, table

    def on_predict_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, loader: int = 0
    ) -> None:
        columns, team, dealt = self.scorer.train["batch"], self.scorer.team, trainer.predict_dataloaders
        pairs: list[torch.Tensor] = []
        for name, spec in self.specs.items():
            pairs += [prediction_of(name, spec, outputs), target_of(name, spec, batch, columns)]
        tensors: dict[str, torch.Tensor] = {}
        facts: list[Any] = [[], ""]
        if self.table is not None:
            tensors, reason = tensors_of(outputs, rows_of(batch, dealt, batch_idx, loader))
            facts = [list(tensors), reason]
        sent = [*pairs, *tensors.values()]
        if team is None:
            self._update(facts, sent)
            return
        assert isinstance(dealt, Dealt)
        for said, received in team.in_order(dealt.is_real(batch_idx), facts, sent):
            self._update(said, received)

    def _update(self, facts: list[Any], sent: list[torch.Tensor]) -> None:
        """Take a batch: `facts` are the names of the table's tensors and why there are none."""
        for at, (name, one) in enumerate(self.scores.items()):
            with user_code(f"evaluate.metrics.{name}", self.scorer.project):
                one.update(sent[2 * at], sent[2 * at + 1])
        if self.table is None:
            return
        names, reason = facts
        if reason:
            self.table.file.refuse(reason)
        else:
            self.table.add(dict(zip(names, sent[2 * len(self.scores) :], strict=True)))


def _predict(module: L.LightningModule, batches: Any, predictions: _Predictions) -> dict[str, Scored]:
    scorer = predictions.scorer
    if not is_overridden("predict_step", module, L.LightningModule):
        targets = {spec.target for spec in predictions.specs.values()}

        def predict_step(batch: Any, *_: Any) -> Any:
            return call_forward(module, batch, targets, scorer.train["batch"])

        module.predict_step = predict_step  # type: ignore[method-assign]
    trainer = scorer.trainer(predictions)
    with rows_named(batches), user_code("the module's predict_step", scorer.project):
        if isinstance(batches, L.LightningDataModule):
            with _predicting_tests(batches):
                trainer.predict(module, datamodule=batches, return_predictions=False)
        else:
            trainer.predict(module, dataloaders=batches, return_predictions=False)
    found: dict[str, Scored] = {}
    for name, one in predictions.scores.items() if scorer.is_first else ():
        try:
            with user_code(f"evaluate.metrics.{name}", scorer.project):
                value = scorer.value(name, one.result)
            if value is not None:
                found[name] = value
            if one.scores.is_decided:
                scorer.kinds[name] = one.scores.kind
        except InsufficientEvidence as error:
            if predictions.table is None:
                raise
            # The contract on the predictions comes first: it names the rows.
            predictions.table.undecided = predictions.table.undecided or error.message
    return found


class _Logged(L.Callback):
    """Records the number of rows of each batch, for outcomes captured at `self.log`."""

    def __init__(
        self, scores: dict[str, LoggedScore], digest: RowDigest | None, team: Team | None, log: Callable[..., None]
    ) -> None:
        """`log` is the module's own `self.log`."""
        self._scores, self._team, self._log = scores, team, log
        self.calls = None if team is None else LoggedCalls(log)
        self._digest = digest
        self.num_rows = 0
        self.logged_size: int | None = None  # the batch_size that the current step gave

    def on_test_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int, loader: int = 0
    ) -> None:
        if self.calls is not None:
            self.calls.in_step = True
        size = rows_of(batch, trainer.test_dataloaders, batch_idx, loader)
        if size is not None:
            weigh_logged_by(trainer, size)
        if self._digest is not None:
            self._digest.update(batch)

    def on_test_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, loader: int = 0
    ) -> None:
        size = rows_of(batch, trainer.test_dataloaders, batch_idx, loader)
        size = self.logged_size if size is None else size
        if size is None:
            raise UsageError(
                f"evaluate: batch {batch_idx} of your test_dataloader does not say how many rows it has.",
                remedy="Give batch_size to self.log in test_step, or let all tensors of a batch have an entry per row.",
            )
        if self._team is None:
            self._end_batch(size)
        else:
            self._end_round(trainer, module, batch_idx, size)

    def _end_batch(self, size: int) -> None:
        self.num_rows += size
        self.logged_size = None
        for one in self._scores.values():
            one.end_batch(size)

    def _end_round(self, trainer: L.Trainer, module: L.LightningModule, batch_idx: int, size: int) -> None:
        """Log on rank 0 what each rank's batch logged."""
        dealt, calls = trainer.test_dataloaders, self.calls
        assert isinstance(dealt, Dealt)
        assert calls is not None
        assert self._team is not None
        calls.in_step = False
        logged, values = calls.take_calls()
        for (rows, sent), tensors in self._team.in_order(dealt.is_real(batch_idx), [size, logged], values):
            left = iter(tensors)
            weigh_logged_by(trainer, rows)
            for call in sent:
                value = next(left).to(module.device) if call["value"] is None else call["value"]
                self.capture(call["name"], value, call["more"])
                self._log(call["name"], value, **call["more"])
            self._end_batch(rows)

    def capture(self, name: str, value: Any, more: Mapping[str, Any]) -> None:
        """Take a logged value for the metrics that name it; `more` are the keyword arguments of `self.log`."""
        for one in self._scores.values():
            if one.spec.logged == name:
                one.capture(value, more.get("reduce_fx", "mean"))


def _test(
    module: L.LightningModule,
    batches: Any,
    metrics: dict[str, MetricSpec],
    scorer: Scorer,
) -> dict[str, Scored]:
    if not is_overridden("test_step", module, L.LightningModule):
        raise UsageError(
            f"evaluate.metrics.{next(iter(metrics))}.logged: {type(module).__name__} has no test_step.",
            remedy="Write one that logs the metric, or name a torchmetrics class.",
        )
    scores = {name: LoggedScore(name, spec) for name, spec in metrics.items()}
    digest = RowDigest() if isinstance(batches, L.LightningDataModule) else None
    original, counter = module.log, _Logged(scores, digest, scorer.team, module.log)
    calls = counter.calls

    def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if calls is not None and (calls.in_step or any(one.spec.logged == name for one in scores.values())):
            calls.keep(name, value, args, kwargs)
            return
        counter.logged_size = kwargs.get("batch_size", counter.logged_size)
        counter.capture(name, value, kwargs)
        original(name, value, *args, **kwargs)

    module.log = log  # type: ignore[method-assign]
    trainer = scorer.trainer(counter)
    try:
        with rows_named(batches), user_code("the module's test_step", scorer.project):
            source = "datamodule" if isinstance(batches, L.LightningDataModule) else "dataloaders"
            trainer.test(module, **{source: batches}, verbose=False)
    finally:
        del module.log
    if not scorer.is_first:
        return {}
    values = {
        name: scorer.value(name, partial(one.result, counter.num_rows, trainer.callback_metrics))
        for name, one in scores.items()
    }
    found = {name: value for name, value in values.items() if value is not None}
    if digest is not None:
        for one in found.values():
            one.rows = {"of": "batches", "digest": digest.hexdigest()}
    return found


class _AsMade:
    """A DataLoader that `predict` iterates as `test` does.

    Of a DataLoader, `predict` makes another, to note which rows are in a batch. That fails for arguments given by
    position, and for classes that do not take those of a DataLoader.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        vars(self)["loader"] = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.loader, name, value)


@contextmanager
def _predicting_tests(datamodule: L.LightningDataModule) -> Iterator[None]:
    """Make a data module answer `predict` with its test rows; all its other hooks stay as they are."""
    setup, loaders = datamodule.setup, datamodule.test_dataloader

    def as_made() -> Any:
        return apply_to_collection(loaders(), DataLoader, _AsMade)

    datamodule.setup = lambda stage: setup("test")  # type: ignore[method-assign]
    datamodule.predict_dataloader = as_made  # type: ignore[method-assign]
    try:
        yield
    finally:
        del datamodule.setup, datamodule.predict_dataloader


def perturbations(sets: Mapping[str, SetSpec], project: Path, other: Path) -> dict[str, Perturbation]:
    """The perturbation of each set that has one; they come from the current code, also when the champion is scored.

    Args:
        project: root of the code that they are taken from.
        other: root of the code that the module is taken from, which may have modules of the same names.

    Raises: as `load_callable`.
    """
    wanted = {name: one.perturb for name, one in sets.items() if one.perturb is not None}
    if not wanted:
        return {}
    with borrowed(project, other):
        return {
            name: _kept_rows(name, load_callable(path, {}, f"evaluate.sets.{name}.perturb", project.resolve()))
            for name, path in wanted.items()
        }


def then(first: Callable[[Any], Any] | None, second: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Both functions one after the other; None if there are none."""
    if first is None or second is None:
        return first or second
    return lambda batch: second(first(batch))


def _kept_rows(name: str, call: Perturbation) -> Perturbation:
    def perturb(batch: Any) -> Any:
        before = rows_of(batch, None, 0)
        changed = call(batch)
        after = rows_of(changed, None, 0) if type(changed) is type(batch) else None
        if after is None or after != before:
            returned = type(changed).__name__ if after is None else f"{after} rows"
            raise UsageError(
                f"evaluate.sets.{name}.perturb: for a {type(batch).__name__} of {before} rows it returns {returned}.",
                remedy="Return a batch of the same form with the same rows.",
            )
        return changed

    return perturb


class Latency(L.Callback):
    """Times each call of `predict_step` or `test_step`; the first callback of a Trainer, so that no other is timed."""

    def __init__(self) -> None:
        self._since = 0.0
        self._taken_s: list[float] = []

    @property
    def median_ms(self) -> float | None:
        """The median over the batches but the first ones and the last, which may be smaller.

        The fastest of the others where there are so few; None if there were none.
        """
        full = self._taken_s[:-1] or self._taken_s
        if not full:
            return None
        return 1e3 * (statistics.median(full[_WARM_UP:]) if len(full) > _WARM_UP else min(full))

    def on_predict_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any) -> None:
        """Begin to time a batch."""
        self._since = _now(pl_module)

    def on_predict_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any) -> None:
        """Take its time."""
        self._taken_s.append(_now(pl_module) - self._since)

    on_test_batch_start, on_test_batch_end = on_predict_batch_start, on_predict_batch_end


def size_bytes(module: L.LightningModule) -> int:
    """The bytes of the module's parameters and buffers."""
    return sum(
        one.numel() * one.element_size() for one in module.state_dict().values() if isinstance(one, torch.Tensor)
    )


def _now(module: L.LightningModule) -> float:
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    return time.perf_counter()


class LoggedCalls:
    """The calls of `self.log` in one batch.

    Attributes:
        in_step: whether a test step runs.
    """

    def __init__(self, log: Callable[..., None]) -> None:
        self._signature = inspect.signature(log)
        self.in_step = False
        self._calls: list[dict[str, object]] = []
        self._values: list[torch.Tensor] = []

    def keep(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> None:
        """Keep a call; UsageError for what cannot be logged again on rank 0."""
        if isinstance(value, Metric):
            raise _refused(name, "a metric object, which accumulates on each rank")
        if not self.in_step:
            raise _refused(name, "a value outside of test_step, where each rank knows its own batches alone")
        given = dict(self._signature.bind(name, value, *args, **kwargs).arguments)
        call = {key: one for key, one in given.items() if key not in _OF_RANKS | {"name", "value"}}
        how = call.get("reduce_fx", "mean")
        if not isinstance(how, str):
            if how not in _REDUCTIONS:
                raise _refused(name, "a value with a reduce_fx of its own")
            call["reduce_fx"] = _REDUCTIONS[how]
        tensor = isinstance(value, torch.Tensor)
        self._calls.append({"name": name, "value": None if tensor else float(value), "more": call})
        if tensor:
            self._values.append(value)

    def take_calls(self) -> tuple[list[dict[str, object]], list[torch.Tensor]]:
        """The calls of the batch, and the tensors among their values in order; the next batch begins without any."""
        taken = self._calls, self._values
        self._calls, self._values = [], []
        return taken


def _refused(name: str, what: str) -> UsageError:
    return UsageError(
        f"evaluate: test_step logs {name} as {what}, which several ranks cannot score.", remedy=_ONE_DEVICE
    )
