"""The child process that tries a training and what follows it on the first rows, before a node is booked.

Run as `python -m training.shakedown REQUEST ANSWER` by `infra.child`. It takes one step and a validation, saves and
loads a checkpoint in a scratch folder, and scores and exports it as evaluate and promote do. What depends on
values, such as how good a metric is, does not count here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning_utilities.core.apply_func import apply_to_collection

from data_contracts.errors import (
    CorruptError,
    GateNotMet,
    InsufficientEvidence,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.children import SHAKEDOWN, ShakedownRequest, Shaken, StoreAddress
from data_contracts.messages.commands import ExportRequest
from data_contracts.pipeline_spec import EvaluateSpec, TrainSpec
from data_contracts.quoting import describe
from infra import scratch
from infra.processes.child_main import Report, child_main
from infra.store import layout, open_store
from training.checkpoint import load_module_weights
from training.checkpoint.saver import CheckpointTarget, capture, save
from training.fit.failures import classify
from training.fit.guards import shape_lazy, try_capture
from training.fit.measuring import History
from training.fit.resume import WarmStart
from training.fit.strategies import make_strategy
from training.lightning_adapter import call_at_the_end, dump_checkpoint, end_epoch_with_batch
from training.loader import MemoryBudget, OrderedLoader, Shards, Split, stored_order
from training.loader.loaders import CountRows
from training.order import Plan, make_plan
from training.score.evaluate_worker import sets_of
from training.score.metrics import metric_classes
from training.score.outcomes import NotFinite, PredictionTable, Scored, pair_tables
from training.score.scoring import Scorer, perturbations, score
from training.score.team import Progress
from training.user.imports import user_line
from training.user.ready import Mute, batch_transform, build_all, build_module, in_micro_batches, plain_trainer

# A batch has as many rows as fit ROW_BYTES, and at least LEAST_ROWS, if its first shard has them.
ROW_BYTES, LEAST_ROWS, MEMORY_BYTES = 2**16, 4, 2**26
_TRAINING = "trainings/shakedown-0"
# Words of errors that say something about this machine, and nothing about the devices and ranks of the training.
_OF_THE_MACHINE = re.compile(r"cuda|gpu|nvidia|nccl|triton|process group|not implemented for|no kernel", re.IGNORECASE)


def main(request: ShakedownRequest, report: Report) -> Shaken:
    """Try the training of a request.

    Raises:
        UsageError, UserCodeError: what would end the training, or the stages after it, with the user's file and line.
    """
    with scratch.make("shakedown") as folder:
        trial = _Trial(request, report, folder.path)
        try:
            trial.score(trial.train())
        except BaseException as error:
            failure = classify(error, request.project.resolve(), timeout_s=trial.spec.collective_timeout_s)
            alone = not request.elsewhere and trial.spec.world_size == 1
            if isinstance(failure, UserCodeError) and not alone and _OF_THE_MACHINE.search(failure.message):
                return Shaken(remarks=[f"Not all can be tried on this machine: {failure.message}"])
            if isinstance(failure, UsageError | UserCodeError):
                raise trial.with_place(failure, error) from error
            raise failure from error
        return Shaken(columns=trial.columns, remarks=trial.remarks)


@dataclass
class _Trial:
    """One shakedown: its parts in order.

    Attributes:
        columns, remarks: as `Shaken` has them.
    """

    request: ShakedownRequest
    report: Report
    folder: Path
    columns: dict[str, list[str]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    watch: _Watch = field(default_factory=lambda: _Watch())

    def __post_init__(self) -> None:
        request, self.store = self.request, open_store(str(self.folder / "store"))
        trainer = dict(request.train["lightning"].get("trainer") or {})
        loggers = trainer.pop("logger", None) or []  # they would report to their servers
        self.loggers = [Mute(str(self.folder)) for _ in (loggers if isinstance(loggers, list) else [loggers])]
        if request.elsewhere and not torch.cuda.is_available():
            trainer["accelerator"] = "cpu"
        self.settings = {**request.train, "lightning": {**request.train["lightning"], "trainer": trainer}}
        self.spec = TrainSpec.model_validate(self.settings)
        self.dataset_path = "" if request.dataset is None else str(request.path(request.dataset.ref))

    def train(self) -> Checkpoint:
        """Take one step, validate, and save."""
        request, configured = self.request, self.settings["lightning"].get("trainer") or {}
        plan, loaders = self._loaders()
        train = self.spec.model_copy(update={"strategy": "single"})
        owned = {
            "strategy": make_strategy(train, 1, configured.get("accelerator") or "auto"),
            "devices": 1,
            "num_nodes": 1,
            "accumulate_grad_batches": plan.accumulate if plan else 1,
            **(in_micro_batches(configured, plan) if plan else {}),
            "limit_val_batches": 2 if configured.get("limit_val_batches") != 0 else 0,
            "check_val_every_n_epoch": configured.get("check_val_every_n_epoch", 1) and 1,
            "min_epochs": None,
            "min_steps": None,
            "enable_checkpointing": False,
            "default_root_dir": str(self.folder),
            "logger": [*self.loggers, History()],
        }
        self.watch.last = plan.accumulate - 1 if plan else 0
        first, begin = request.first_weights, train.init_from
        warm = WarmStart(Path(first), begin.strict) if first and begin is not None else None
        module, datamodule, trainer = build_all(
            self.settings,
            request.project,
            self.dataset_path,
            owned,
            [CountRows(), self.watch, *([warm] if warm else [])],
        )
        split = loaders["train_dataloaders"].split if loaders else None
        shape_lazy(module, split, train, request.project, _targets(EvaluateSpec.model_validate(request.evaluate)))
        if warm is not None:
            warm.install(module, trainer.precision_plugin.convert_module)
        saved: list[Checkpoint] = []
        call_at_the_end(trainer, lambda: saved.append(self._saved(trainer)))
        trainer.fit(module, datamodule=datamodule, **loaders)
        if not saved:
            raise UsageError(
                "train.lightning: the training ends without a single step.",
                remedy="Raise trainer.max_epochs, max_steps or limit_train_batches.",
            )
        self.watch.batch = ""
        self._refuse_unmeasured(trainer, configured.get("check_val_every_n_epoch", 1))
        return saved[0]

    def _refuse_unmeasured(self, trainer: L.Trainer, every: int | None) -> None:
        """UsageError if a plateau or `train.select` asks for a value that the whole training has not, or not yet.

        Args:
            every: epochs from one validation to the next; None if batches are counted over epochs. Here, the first
                epoch ended with one.
        """
        epoch, last, first = trainer.num_training_batches, _last_batch(trainer), trainer.val_check_batch
        for one in trainer.lr_scheduler_configs:
            asked = one.reduce_on_plateau and one.strict and one.interval == "epoch"
            early = asked and one.frequency < (every or 1) and one.frequency * epoch <= last
            if early and one.monitor in self.watch.validated:
                raise UsageError(
                    f"train.lightning: {type(one.scheduler).__name__} needs {one.monitor} at the end of epoch "
                    f"{one.frequency}, but the first validation is in epoch {every} "
                    "(trainer.check_val_every_n_epoch).",
                    remedy=f"Return the schedule with frequency: {every}, or validate every epoch.",
                )
        if (select := self.spec.select) is None:
            return
        if select.metric not in trainer.callback_metrics:
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise UsageError(
                f"train.select.metric: {select.metric} was not logged by a step and a validation; logged were: "
                f"{logged}.",
                remedy="Log it in the module (validation_step), or name one that is logged. If the module logs it in "
                "later epochs only, run with --no-shakedown.",
            )
        before = (every - 1) * epoch if every and every > 1 else 0
        if select.metric in self.watch.validated and isinstance(first, int) and before + first > last:
            raise UsageError(
                f"train.select.metric: {select.metric} is never measured, because the training ends before its first "
                "validation.",
                remedy="Correct trainer.check_val_every_n_epoch, val_check_interval, max_epochs or max_steps.",
            )

    def score(self, checkpoint: Checkpoint) -> None:
        """Load the checkpoint as evaluate does, compute each metric of each set, and export it."""
        request, weights = self.request, self.store.local(checkpoint.ref)
        self.watch.batch = ""
        wanted, project = EvaluateSpec.model_validate(request.evaluate), request.project
        classes = metric_classes(wanted.metrics, project, project)
        perturbed = perturbations(wanted.sets, project, project)

        def load(built: L.LightningModule) -> None:
            try:
                load_module_weights(built, weights)
            except CorruptError as error:
                raise UsageError(
                    f"train.lightning: what the module saves after a step does not fit a new one. {error.message}",
                    remedy="Make its parameters and buffers in the constructor, setup or configure_model, and save all "
                    "of them: other hooks, such as on_fit_start, are called in a training only.",
                ) from None  # nothing is corrupt

        module = build_module(self.settings, project, self.dataset_path, load=load)
        muted = request.model_copy(update={"train": self.settings})
        for name, batches in sets_of(muted, wanted, None, perturbed, MemoryBudget(MEMORY_BYTES, 0)):
            self._score_set(name, batches, module, wanted, classes)
        for form in request.exports:
            self._export(checkpoint, wanted, form)

    def with_place(self, failure: TrainwrightError, error: BaseException) -> TrainwrightError:
        """A failure with the user's line that raised, and with the types and shapes of the module's last batch."""
        place = user_line(error, self.request.project.resolve())
        batch = f", with a batch of {self.watch.batch}" if self.watch.batch else ""
        message = f"{failure.message.rstrip('.')}; met before the training{place}{batch}."
        return type(failure)(
            message, remedy=failure.remedy, user_traceback=failure.user_traceback, details=failure.details
        )

    def _loaders(self) -> tuple[Plan | None, dict[str, Any]]:
        """The plan of the training and loaders as long as its own, of few rows; (None, {}) with the user's."""
        dataset, train = self.request.dataset, self.spec
        if dataset is None or self.settings["lightning"].get("data"):
            return None, {}
        plan = make_plan(self.request.train_rows, train, train.world_size)

        def few(split: str) -> OrderedLoader:
            rows = Split(
                Shards(Path(self.dataset_path), dataset, split),
                batch=train.batch,
                transform=batch_transform(self.settings, self.request.project),
                loader=stored_order(self.settings),
                room=MemoryBudget(MEMORY_BYTES, 0),
                in_order=True,
            )
            loader = OrderedLoader(rows, plan.micro_batch)
            _shorten(loader, alone=False)
            return loader

        loaders = {"train_dataloaders": few("train")}
        # Schedules count steps by the loader's length.
        loaders["train_dataloaders"].bounds *= plan.steps_per_epoch * plan.accumulate
        if count := dataset.rows("val"):
            loaders["val_dataloaders"] = few("val")
            if self.request.whole and train.world_size == 1 and count % plan.micro_batch == 1:
                loaders["val_dataloaders"].bounds.append((0, 1))
        return plan, loaders

    def _saved(self, trainer: L.Trainer) -> Checkpoint:
        state, step = dump_checkpoint(trainer), trainer.global_step
        try_capture(state, {}, 0)
        facts = {"step": step, "epoch": 0, "world_size": 1, "metrics": {}, "dropped_rows": 0}
        place = CheckpointTarget(self.store, layout.checkpoint(_TRAINING, step, 0), facts, {}, {}, self.folder)
        ref = save(place, capture(state, {}, 0), 1, [])
        return Checkpoint.from_json(
            {"ref": ref.to_json(), "key": "shakedown", "training": _TRAINING, "generation": 0, **facts}
        )

    def _score_set(
        self, name: str, batches: Any, module: L.LightningModule, section: EvaluateSpec, classes: Any
    ) -> None:
        request = self.request
        keeps = request.predictions and not (name in section.sets and section.sets[name].sealed)
        table = PredictionTable(self.folder, name) if keeps else None
        pairs = pair_tables(self.folder, [name], {metric: section.metrics[metric] for metric in request.pairs})[name]
        scorer = _FewBatches(
            self.settings, request.project, Progress(self.report), watch=self.watch, remarks=self.remarks
        )
        predicted = {metric: spec for metric, spec in section.metrics.items() if spec.class_path}
        logged = {metric: spec for metric, spec in section.metrics.items() if spec.logged}
        _shorten(batches, alone=True)
        scores = score(module, batches, predicted, classes, scorer, table, pairs)
        for metric in scores.keys() & pairs.keys():
            pairs[metric].close(metric, scores[metric])
        if table is not None:
            predictions = table.close()
            if predictions.missing:
                place = f"contract.predictions{f' on evaluate.sets.{name}' if name else ''}"
                raise UsageError(
                    f"{place}: {predictions.missing}.", remedy="Return one value or one list for each row."
                )
            self.columns[name] = predictions.columns
        # test_step gets a row alone only if the set's last batch is one.
        ends_alone = request.whole and name in request.sets and request.sets[name].rows % section.batch_size == 1
        _shorten(batches, alone=ends_alone)
        score(module, batches, logged, classes, scorer)

    def _export(self, checkpoint: Checkpoint, section: EvaluateSpec, form: Any) -> None:
        # Only where a gate asks for it: importing ONNX takes long, and an environment may lack it.
        from training.export.worker import main as export

        request = self.request
        with scratch.make("export") as folder:
            export_request = ExportRequest(
                store=StoreAddress(uri=self.store.uri),
                checkpoint=checkpoint,
                train=self.settings,
                dataset=request.dataset,
                split=section.split,
                targets=sorted(_targets(section)),
                format=form,
                folder=str(folder.path),
                code=request.code,
                paths=request.paths,
            )
            try:
                export(export_request, self.report)
            except (GateNotMet, UserCodeError) as error:
                message = f"promote.export: {error.message}"
                if "largest" in error.details:  # of values, which training changes
                    self.remarks.append(message)
                    return
                raise UserCodeError(message, remedy=error.remedy, user_traceback=error.user_traceback) from error


class _Watch(L.Callback):
    """Ends a training with the step that has the micro-batch number `last`, and notes what each batch is made of.

    Attributes:
        batch: types and shapes in the last batch.
        validated: names of the values that only a validation gives.
    """

    def __init__(self) -> None:
        self.last, self.batch = 0, ""
        self.validated: set[str] = set()
        self._trained: set[str] = set()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """End the epoch early, with its schedules and validation: the loader is as long as the whole training's."""
        self.batch = _described(batch)
        if batch_idx >= self.last:
            end_epoch_with_batch(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """End the training with this epoch."""
        trainer.should_stop = trainer.should_stop or trainer.is_last_batch

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.batch = _described(batch)

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._trained = set(trainer.callback_metrics)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.validated |= set(trainer.callback_metrics) - self._trained


@dataclass(frozen=True, kw_only=True)
class _FewBatches(Scorer):
    """Scores two batches at most. A metric that has no value for so few rows is left out."""

    watch: _Watch
    remarks: list[str]

    def value(self, name: str, compute: Callable[[], Scored]) -> Scored | None:
        try:
            return compute()
        except (NotFinite, InsufficientEvidence):
            return None
        except (TrainwrightError, TypeError, AttributeError, NameError):  # it would raise these for any rows
            raise
        except Exception as error:
            raised = f"evaluate.metrics.{name} raised {describe(error, self.project)}"
            self.remarks.append(f"{raised}; it was computed on few rows, and may have a value for more.")
            return None

    def trainer(self, callback: L.Callback) -> L.Trainer:
        limits = {"devices": 1, "limit_predict_batches": 2, "limit_test_batches": 2}
        return plain_trainer(self.train, [self.watch, callback], limits)


def _shorten(batches: Any, *, alone: bool) -> None:
    """Let a loader of ours give its first rows as one batch, and its first row as another if `alone`."""
    if isinstance(batches, OrderedLoader):
        few = min(batches.bounds[0][1], max(LEAST_ROWS, int(ROW_BYTES // max(batches.split.row_bytes, 1))))
        batches.bounds = [(0, few), *([(0, 1)] if alone else [])]


def _targets(section: EvaluateSpec) -> set[str]:
    """The entries of a batch that metrics take for the truth."""
    return {metric.target for metric in section.metrics.values() if metric.target}


def _last_batch(trainer: L.Trainer) -> float:
    """The most batches that a training takes; infinite if that is not known before."""
    ends = [float("inf")]
    if trainer.max_epochs not in (None, -1):
        ends.append(trainer.max_epochs * trainer.num_training_batches)
    # By hand, or with several optimizers, it is not known how many steps a batch takes.
    if trainer.max_steps != -1 and trainer.lightning_module.automatic_optimization:
        ends.append(trainer.max_steps * trainer.accumulate_grad_batches)
    return min(ends)


def _described(batch: Any) -> str:
    """The types and shapes in a batch, of its first parts."""
    leaves: list[Any] = []
    apply_to_collection(batch, (torch.Tensor, str, int, float), leaves.append)
    return ", ".join(
        f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
        if isinstance(leaf, torch.Tensor)
        else type(leaf).__name__
        for leaf in leaves[:6]
    )


if __name__ == "__main__":
    child_main(SHAKEDOWN, main)
