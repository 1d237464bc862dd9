"""Modules of many kinds, as people write them, train with us exactly as with Lightning alone.

Each is trained twice for 20 steps, by `LightningCLI` and by one rank of ours, with the same config, seed and batches.
What both end with must be equal to the bit: weights, buffers, states of optimizers and schedules, what the module adds
to a checkpoint, what the logger got, and what a callback saw after each batch.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infra.processes.processes import module_command
from tests.support.gang import Gang, answer, start, wait, write_dataset
from tests.zoo import sides
from tests.zoo.rows import table
from training.checkpoint.saver import LEFT_OUT
from training.fit.measuring import finite

pytestmark = pytest.mark.timeout(3600)
MODULES = Path(__file__).parent / "modules"
DEADLINE_S = 480
# Batches.
ONLY_X = {"batch": ["x"]}
XY = {"batch": ["x", "y"]}
TOKENS: dict[str, Any] = {
    "batch": {"tokens": "tokens", "tokens_length": "tokens_length", "label": "label"},
    "loader": {"pad": {"tokens": 0}},
}
# Checkpoints that may be handed over, in the middle of an epoch.
SELECTED = {"select": {"metric": "loss", "mode": "min"}, "checkpoint": {"every_steps": 3}}
OWN_DATA = {"data": "Data"}
DEMOS = "lightning.pytorch.demos.boring_classes"
DEMO_DATA = {"data": f"{DEMOS}.BoringDataModule", "global_batch_size": 1}


def with_callback(name: str, **init_args: Any) -> dict[str, Any]:
    """The small classifier with one of Lightning's callbacks."""
    callback = {"class_path": f"lightning.pytorch.callbacks.{name}", "init_args": init_args}
    return {"model": "base.Classifier", "trainer": {"max_epochs": 3, "callbacks": [callback]}}


# A module's file → what a spec says about it beyond the class `Net` and a batch of x and label. `data`: the class of
# its data module, in the same file.
ZOO: dict[str, dict[str, Any]] = {
    # Kinds after public bug reports.
    "layers_in_setup": {},
    "logger_experiment": {
        "trainer": {"logger": [{"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "csv"}}]}
    },
    "multilabel_metrics": {"batch": ["x", "tags"]},
    "one_logit": {"batch": ["x", "yes"]},
    "onecycle_plateau": {},
    "pretrained_file": {"batch": ["word", "label"]},
    "pretrained_in_setup": {},
    "scaler_in_checkpoint": XY,
    "two_inputs": TOKENS,
    "unused_head": {"batch": ["x", "label", "y"]},
    # Lightning's own.
    "boring": {"model": f"{DEMOS}.BoringModel", **DEMO_DATA},
    "boring_by_hand": {"model": f"{DEMOS}.ManualOptimBoringModel", **DEMO_DATA},
    "boring_without_length": {
        "model": f"{DEMOS}.BoringModel", **DEMO_DATA, "data": f"{DEMOS}.BoringDataModuleNoLen",
        "trainer": {"max_epochs": 1, "limit_train_batches": 30, "limit_val_batches": 5},
    },
    "demo": {"model": f"{DEMOS}.DemoModel", **DEMO_DATA},
    "demo_lstm": {"model": "demo_language_models.Recurrent", **TOKENS, "batch": ["tokens"]},
    "demo_transformer": {"model": "demo_language_models.Shifted", **TOKENS, "batch": ["tokens"]},
    # Patterns.
    "checkpointed": TOKENS,
    "chained_schedules": {},
    "codebook": {**ONLY_X, **SELECTED},
    "compiled": {},
    "complex_numbers": {},
    "contrastive_queue": {**ONLY_X, **SELECTED},
    "detection": {**OWN_DATA, "global_batch_size": 8},
    "diffusion": ONLY_X,
    "distillation": {},
    "ema": {},
    "experts": SELECTED,
    "flow": {**ONLY_X, "trainer": {"precision": "64-true"}},
    "gan": ONLY_X,
    "gradient_penalty": ONLY_X,
    "graph": {**OWN_DATA, "global_batch_size": 8},
    "hidden_parts": SELECTED,
    "integer_buffers": {"batch": ["x", "label", "word"]},
    "lora": {},
    "maml": {},
    "mean_teacher": SELECTED,
    "mixup": {},
    "multi_task": {"batch": {"x": "x", "label": "label", "y": "y"}},
    "packed_lstm": TOKENS,
    "quantiles": XY,
    "reinforcement": {**OWN_DATA, "global_batch_size": 8, "trainer": {"max_epochs": 1, "limit_train_batches": 25}},
    "segmentation": ONLY_X,
    "sharpness": {},
    "sparse_embedding": {"batch": ["word", "label"]},
    "truncated_bptt": {},
    "two_views": {**ONLY_X, **SELECTED},
    "vae": ONLY_X,
    # Hooks and settings.
    "accumulated": {"micro_batch_size": 4, "trainer": {"gradient_clip_val": 0.5}},
    "bf16": {"model": "base.Classifier", "trainer": {"precision": "bf16-mixed"}},
    "accumulation_schedule": with_callback("GradientAccumulationScheduler", scheduling={1: 2}),
    "anomalies": {"model": "base.Classifier", "trainer": {"detect_anomaly": True, "deterministic": True}},
    "bf16_true": {"model": "base.Classifier", "trainer": {"precision": "bf16-true"}},
    "by_steps": {"model": "base.Classifier", "trainer": {"max_epochs": -1, "max_steps": 17}},
    "clipped_by_value": {
        "model": "base.Classifier",
        "trainer": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    },
    "every_second_epoch": {"model": "base.Classifier", "trainer": {"max_epochs": 4, "check_val_every_n_epoch": 2}},
    "learning_rates": with_callback("LearningRateMonitor", logging_interval="step", log_momentum=True),
    "part_of_an_epoch": {"model": "base.Classifier", "trainer": {"max_epochs": 4, "limit_train_batches": 0.5}},
    "early_stopping": with_callback("EarlyStopping", monitor="val_loss", patience=0, min_delta=1.0),
    "ema_callback": with_callback("EMAWeightAveraging", decay=0.9),
    "lazy_layers": {},
    "lbfgs": {},
    "loaders": {**OWN_DATA, "global_batch_size": 8},
    "logs_of_all_kinds": {},
    "normed_weights": {},
    "optimizer_of_the_config": {
        "model": "base.Classifier",
        "lightning": {
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.02}},
            "lr_scheduler": {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1}},
        },
    },
    "own_clipping": {"trainer": {"gradient_clip_val": 0.1}},
    "own_optimizer": {},
    "own_sampler": OWN_DATA,
    "own_schedule": {},
    # The last step is followed by one that ends the epoch early: a checkpoint of just that step would lie within it.
    "skipped_steps": {"checkpoint": {"every_steps": 5}},
    "step_keeps_state": SELECTED,
    "frozen_then_tuned": {},
    "muon": {"model": "wrapped_optimizer.Muon"},
    "only_adapters": {},
    "own_callback": {},
    "own_transfer": {**OWN_DATA, "trainer": {"reload_dataloaders_every_n_epochs": 1}},
    "saves_by_itself": {},
    "scripted": SELECTED,
    "stops_itself": {},
    "survival": {"batch": ["x", "a", "yes"]},
    "swa": with_callback("StochasticWeightAveraging", swa_lrs=0.01, swa_epoch_start=1),
    "workers": OWN_DATA,
    "wrapped_optimizer": {},
    "validation_within_epochs": {"model": "base.Classifier", "trainer": {"val_check_interval": 4}},
}  # fmt: skip
# Keys of Lightning's checkpoint that ours has in another form, or in the spec.
IN_ANOTHER_FORM = {"loops", "callbacks", "pytorch-lightning_version", *LEFT_OUT}

# Modules whose kind another one of the table has, too; with --sweep all are trained.
ALIKE = {
    "anomalies", "bf16_true", "boring_by_hand", "chained_schedules", "clipped_by_value", "codebook", "complex_numbers",
    "demo", "demo_lstm", "demo_transformer", "detection", "diffusion", "distillation", "every_second_epoch", "experts",
    "gradient_penalty", "graph", "hidden_parts", "integer_buffers", "learning_rates", "lora", "maml", "mixup",
    "normed_weights", "one_logit", "only_adapters", "own_optimizer", "part_of_an_epoch", "pretrained_file", "quantiles",
    "reinforcement", "saves_by_itself", "segmentation", "sharpness", "skipped_steps", "survival", "two_views",
    "unused_head", "vae",
}  # fmt: skip
# Modules that are killed by default, three times; with --sweep all are, ten times.
KILLED = ("gan", "layers_in_setup", "packed_lstm")
# What does not resume to the bit, and why; Lightning's own checkpoints do not, either.
ATTRIBUTES = "attributes of a module are in no checkpoint"
SHUFFLED = "a loader without a position shuffles its rows anew"
NOT_RESUMED = {
    "demo_lstm": ATTRIBUTES,
    "detection": SHUFFLED,
    "graph": SHUFFLED,
    "loaders": SHUFFLED,
    "own_transfer": SHUFFLED,
    "reinforcement": ATTRIBUTES,
    "step_keeps_state": ATTRIBUTES,
    "swa": "within an epoch, neither does Lightning's callback resume",
    "truncated_bptt": ATTRIBUTES,
    "workers": SHUFFLED,
}
# They log a value only now and then: a logger gets it again with each later step of the epoch, and does not after a
# resume. The rest of a checkpoint is the same.
LOGS_NOW_AND_THEN = ("gradient_penalty", "logs_of_all_kinds")

Make = Callable[..., Gang]
Side = Callable[[str], None]
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes the training of a module."""
    folder = tmp_path_factory.mktemp("zoo")
    dataset = write_dataset(folder / "rows", {"train": table(160, 1), "val": table(40, 2)})

    def make(name: str, way: str = "") -> Gang:
        lightning, train = lightning_config(name)
        rows = (None, None) if "data" in lightning else (dataset, folder / "rows")
        train = {"lightning": lightning, **train}
        return Gang(folder / f"{name}{way}", train, MODULES, *rows, ranks=1, told={"heartbeat_s": 1.0})

    return make


def lightning_config(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A module's Lightning config, of two epochs of 10 steps, and the rest of its spec's section `train`."""
    entry = dict(ZOO[name])
    lightning: dict[str, Any] = {"model": {"class_path": entry.pop("model", f"{name}.Net")}}
    trainer = {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1, **entry.pop("trainer", {})}
    if data := entry.pop("data", None):
        lightning["data"] = {"class_path": data if "." in data else f"{name}.{data}"}
    train = {
        "strategy": "single",
        "global_batch_size": 16,
        "batch": None if data else ["x", "label"],
        "seed": 7,
        "checkpoint": {"every_steps": 2},
        **entry,
    }
    return {**lightning, "trainer": trainer, **train.pop("lightning", {})}, train


@pytest.fixture(scope="module")
def trained(make: Make, request: pytest.FixtureRequest) -> dict[str, Gang]:
    """The modules that this session's tests name; each side has trained them all in one process."""
    ids = [item.name.partition("[")[2] for item in request.session.items if item.path == request.path]
    names = {test_id.rstrip("]").partition("-")[0] for test_id in ids}
    gangs = {name: make(name) for name in ZOO if name in names}
    environments = {name: {**gang.tell(), **RANK} for name, gang in gangs.items()}
    processes = []
    for side in (sides.plain, sides.ours):
        folders = {name: gang.folder / side.__name__ for name, gang in gangs.items()}
        for folder in folders.values():
            folder.mkdir()
        path = log_of(side, next(iter(gangs.values()))).with_suffix(".json")
        listed = [{"folder": str(folders[name]), "environment": environments[name]} for name in gangs]
        path.write_text(json.dumps(listed))
        command = module_command("tests.zoo.sides", side.__name__, str(path))
        processes.append(start(command, RANK, path.with_suffix(".txt"), path.parent))
    for process in processes:
        wait(process, DEADLINE_S + 30 * len(gangs))
    return gangs


def log_of(side: Side, gang: Gang) -> Path:
    """What the process of a side printed, about all of its modules."""
    return gang.folder.with_name(f"{side.__name__}.txt")


def result(side: Side, gang: Gang) -> dict[str, Any]:
    """What a side ended with."""
    folder = gang.folder / side.__name__
    path = folder / "result.pt"
    if not path.exists():
        pytest.fail(log_of(side, gang).read_text().partition(f"== {folder}\n")[2].partition("\n== ")[0][-6000:])
    return torch.load(path, weights_only=False)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sweep] if name in ALIKE else []) for name in ZOO]
)
def test_a_module_trains_as_with_lightning_alone(name: str, trained: dict[str, Gang]) -> None:
    plain, ours = (result(side, trained[name]) for side in (sides.plain, sides.ours))
    assert plain["checkpoint"]["global_step"] >= 15
    assert plain["logged"] or "demos" in ZOO[name].get("model", ""), "nothing is logged"
    plain["logged"] = [{**finite(record), "step": record["step"]} for record in plain["logged"]]
    for key in IN_ANOTHER_FORM:
        plain["checkpoint"].pop(key, None)
    ours["checkpoint"] = {key: ours["checkpoint"][key] for key in ours["checkpoint"] if key in plain["checkpoint"]}
    found = differences(ours, plain)
    assert not found, "\n".join([f"{len(found)} differ:", *found[:20]])


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        *[(name, 3) for name in KILLED],
        *[pytest.param(name, 10, marks=pytest.mark.sweep) for name in ZOO if name not in NOT_RESUMED],
    ],
)
def test_a_module_that_is_killed_at_random_moments_ends_with_the_same_checkpoint(
    name: str, kills: int, make: Make, trained: dict[str, Gang]
) -> None:
    whole, run = trained[name], make(name, f"-killed-{kills}")
    end = answer(whole.scratch(0), 0)["checkpoints"][-1]
    draw = random.Random(name)
    moments = [draw.randint(1, 25) for _ in range(kills)]
    sealed = None
    for generation, moment in enumerate([*moments, 0]):
        sealed = go_on(run, generation, sealed, moment)
    assert sealed["step"] == end["step"]
    left_out = {"history.json"} if name in LOGS_NOW_AND_THEN else set()
    assert files_of(run, sealed, left_out) == files_of(whole, end, left_out), moments


def files_of(gang: Gang, checkpoint: Any, left_out: set[str]) -> dict[str, str]:
    """The digest of each file of a checkpoint."""
    manifest = gang.store.verify(checkpoint["ref"]["uri"])
    return {file.path: file.blake3 for file in manifest.files if file.path not in left_out}


def go_on(gang: Gang, generation: int, resume: Any, moment: int) -> Any:
    """The newest checkpoint, after a generation that was killed at a moment (0: at none)."""
    environment, scratch = {**gang.tell(generation, resume), **RANK}, gang.scratch(generation)
    process = start(module_command("tests.zoo.sides", "killed", str(moment)), environment, scratch / "log.txt", scratch)
    wait(process, DEADLINE_S)
    assert process.returncode in ((0, -signal.SIGKILL) if moment else (0,)), gang.log(generation)[-6000:]
    written = (answer(scratch, 0) or {}).get("checkpoints", [])
    return written[-1] if written else resume


def differences(ours: Any, plain: Any, path: str = "") -> list[str]:
    """Where two values differ, to the bit; each place with both values."""
    if isinstance(plain, dict) and isinstance(ours, dict):
        if ours.keys() != plain.keys():
            return [f"{path}: {sorted(map(str, ours))}, not {sorted(map(str, plain))}"]
        return [line for key in plain for line in differences(ours[key], plain[key], f"{path}/{key}")]
    if isinstance(plain, list | tuple) and isinstance(ours, list | tuple) and len(ours) == len(plain):
        pairs = enumerate(zip(ours, plain, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{path}/{at}")]
    same = type(ours) is type(plain)
    if isinstance(plain, torch.Tensor):
        same = same and ours.dtype == plain.dtype and torch.equal(as_bytes(ours), as_bytes(plain))
    elif isinstance(plain, np.ndarray):
        same = same and np.array_equal(ours, plain)
    else:
        same = same and repr(ours) == repr(plain)
    return [] if same else [f"{path}: {str(ours)[:60]!r}, not {str(plain)[:60]!r}"]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, in which a value that is not a number equals itself."""
    return tensor.detach().contiguous().flatten().view(torch.uint8) if tensor.numel() else torch.tensor(tensor.shape)
