"""Loads the LightningCLI config of `train.lightning`, and checks it against the settings that the spec owns.

It imports neither the user's code nor Lightning. A config as LightningCLI prints it, with all defaults written out, is
accepted.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data_contracts.expressions import syntax_tree
from data_contracts.pipeline_spec import DataSpec, PipelineSpec
from data_contracts.pipeline_spec.data import addresses_with_credentials
from data_contracts.yaml_text import Document, FieldPath, Problem, dotted, read_document, shown

_SECTIONS = ("model", "data", "trainer", "optimizer", "lr_scheduler", "seed_everything", "ckpt_path")
_COMMANDS = ("fit", "validate", "test", "predict")
_OWN_BATCHES = "the Lightning config brings a data module, which makes its own batches."
_ACCUMULATION = "train.global_batch_size and train.micro_batch_size"
STORED = "the spec and its Lightning config are stored with each run"
READ_IT = "Read it from the environment in your code."
_KEEPING = "train.checkpoint and train.select of the spec say what is kept"
# Lightning's callbacks that have no place in a training of ours.
_UNUSED_CALLBACKS = {
    "Checkpoint": _KEEPING,
    "ModelCheckpoint": _KEEPING,
    "OnExceptionCheckpoint": _KEEPING,
    "GradientAccumulationScheduler": f"{_ACCUMULATION} of the spec say what is accumulated",
    "BatchSizeFinder": f"{_ACCUMULATION} of the spec say how many rows a step takes",
    "LearningRateFinder": "it trains before the training; find the learning rate in a trial of your own, and set it",
    "BaseFinetuning": "it is the base of others; name one that you have derived from it",
    "Timer": "trainer.max_time is the same, and plan knows it",
    "SpikeDetection": "no training resumes with it; train.spike_factor of the spec says what a spike is",
}
_SHARDED = "it takes parameters for whole, but train.strategy of the spec shards them"
# And why others have none with some strategies.
_LIMITED_CALLBACKS = {
    "BackboneFinetuning": "several ranks would not exchange the gradients of the parameters that it unfreezes",
    "EMAWeightAveraging": _SHARDED,
    "ModelPruning": _SHARDED,
    "StochasticWeightAveraging": _SHARDED,
    "WeightAveraging": _SHARDED,
}
_PROGRESS_BARS = ("ProgressBar", "RichProgressBar", "TQDMProgressBar")


def inline_lightning(spec: PipelineSpec, root: Path) -> dict[str, object]:
    """The config of `train.lightning` as a dictionary; a path is relative to `root`, the spec's folder.

    Raises:
        SpecError: the file is missing or not YAML, an address in it holds a credential, or the config sets what the
            spec owns (with file and line).
    """
    if isinstance(spec.train.lightning, dict):
        return spec.train.lightning
    path = root / spec.train.lightning
    document = read_document(path, "a LightningCLI config", "correct train.lightning in the spec, or write the file")
    # First, because the sentences of the other problems repeat values.
    problems = [
        Problem(field, f"has an address with {what}; {STORED}. {READ_IT}")
        for field, what in addresses_with_credentials(document.value)
    ]
    problems = problems or config_problems(document.value, spec)
    if problems:
        raise document.error(problems)
    return document.value


def check_lightning(config: dict[str, object], spec: PipelineSpec) -> list[str]:
    """Check a config against the spec; returns a sentence for each setting, of either, that has no effect.

    Raises:
        SpecError: the config sets what the spec owns, lacks `model.class_path`, or has an unknown key.
    """
    problems = list(config_problems(config, spec))
    if problems:
        name = spec.train.lightning if isinstance(spec.train.lightning, str) else "train.lightning"
        raise Document(name, config, {}).error(problems)
    return [*_without_effect(config, spec)]


def config_problems(config: dict[str, object], spec: PipelineSpec) -> list[Problem]:
    """The mistakes in a config for this spec, with fields as paths below the config."""
    return [*_shape(config, spec), *_owned(config, spec)]


def _shape(config: dict[str, object], spec: PipelineSpec) -> Iterator[Problem]:
    for key in config:
        if key in _COMMANDS:
            yield Problem((key,), f"is a subcommand's section; move its content one level up, without {key}:")
        elif key not in _SECTIONS:
            yield _unknown((key,), _SECTIONS)
    trainer = config.get("trainer") or {}
    if not isinstance(trainer, dict):
        yield Problem(("trainer",), f"must be a mapping, got {shown(trainer)}")
    else:
        known = trainer_arguments()
        yield from (_unknown(("trainer", key), known) for key in trainer if known and key not in known)
    for section, what in (("model", "LightningModule"), ("data", "LightningDataModule")):
        value = config.get(section)
        if value is None and (section == "data" or any(command in config for command in _COMMANDS)):
            continue
        class_path = value.get("class_path") if isinstance(value, dict) else None
        if not isinstance(class_path, str) or "." not in class_path.strip("."):
            field: FieldPath = (section, "class_path") if isinstance(value, dict) else (section,)
            got = f", got {shown(class_path)}" if class_path is not None else ""
            how = f"must name the {what} as module.Class{got}; write {section}: {{class_path: …}}"
            yield Problem(field, f"{section}.class_path {how}")
    if spec.data == "external" and config.get("data") is None:
        sentence = "data: external of the spec needs the data module that reads it; name it as data.class_path"
        yield Problem(("data",), sentence)
    if spec.data == "external":
        for field in _mentions(config, "${dataset.path}"):
            yield Problem(field, "${dataset.path} names the sealed dataset, but with data: external there is none")


def _owned(config: dict[str, object], spec: PipelineSpec) -> Iterator[Problem]:
    """Fields whose value the spec decides; Lightning's default counts as not set."""
    trainer = config.get("trainer")
    trainer = trainer if isinstance(trainer, dict) else {}
    with_own_data = config.get("data") is not None
    yield from _decided(trainer, spec, with_own_data)
    yield from _kept_off(trainer, with_own_data)
    for place, class_path in _callbacks(trainer.get("callbacks")):
        name = class_path.rpartition(".")[2]
        why = _UNUSED_CALLBACKS.get(name, "")
        if spec.train.sharded or (name == "BackboneFinetuning" and spec.train.world_size > 1):
            why = why or _LIMITED_CALLBACKS.get(name, "")
        if why:
            yield Problem(("trainer", "callbacks", *place), f"{class_path} is not used: {why}; leave it out here")
    if config.get("ckpt_path") is not None:
        sentence = "but a training resumes from its own last committed checkpoint; leave it out here"
        yield Problem(("ckpt_path",), f"is {shown(config['ckpt_path'])}, {sentence}")
    seed = config.get("seed_everything")
    if seed is not None and seed is not True and _unlike(seed, spec.train.seed):
        sentence = f"is {shown(seed)}, but train.seed of the spec is {spec.train.seed}; leave it out here"
        yield Problem(("seed_everything",), sentence)


def _decided(trainer: dict[str, object], spec: PipelineSpec, with_own_data: bool) -> Iterator[Problem]:
    """The trainer's settings that fields of the spec decide."""
    train = spec.train
    micro = min(train.micro_batch_size or train.global_batch_size, train.global_batch_size // train.world_size)
    accumulate = train.global_batch_size // train.world_size // micro
    decided = [
        ("strategy", "train.strategy", train.strategy, "auto"),
        ("devices", "train.devices", train.devices, "auto"),
        ("num_nodes", "train.nodes", train.nodes, 1),
    ]
    if not with_own_data:
        decided.append(("accumulate_grad_batches", _ACCUMULATION, accumulate, 1))
    for name, owner, value, default in decided:
        given = trainer.get(name)
        if given is not None and _unlike(given, value) and _unlike(given, default):
            verb = "make it" if " and " in owner else "is"
            yield Problem(
                ("trainer", name), f"is {shown(given)}, but {owner} of the spec {verb} {value}; leave it out here"
            )


def _kept_off(trainer: dict[str, object], with_own_data: bool) -> Iterator[Problem]:
    """The trainer's settings that have no place in a training of ours."""
    kept_off: list[tuple[str, tuple[Any, ...], str]] = [
        ("enable_checkpointing", (None, True), "train.checkpoint of the spec says when checkpoints are written"),
        ("use_distributed_sampler", (None, True), "the spec decides the sample order (train.seed)"),
        ("default_root_dir", (None,), "store of the spec says where results lie"),
        (
            "overfit_batches",
            (None, 0),
            "train.global_batch_size and train.seed of the spec say which rows a step takes",
        ),
        ("fast_dev_run", (None, False), "it switches off the checkpoints that train.checkpoint of the spec asks for"),
        ("barebones", (None, False), "it switches off the checkpoints that train.checkpoint of the spec asks for"),
    ]
    if with_own_data:
        why = "with a data module of your own each step of train.global_batch_size rows is one batch of it on each rank"
        kept_off.append(("accumulate_grad_batches", (None, 1), why))
    elif isinstance(trainer.get("limit_val_batches"), int | float):
        # In Lightning, 1 means one batch and 1.0 means all batches.
        every = isinstance(trainer["limit_val_batches"], float)
        why = "train.micro_batch_size and train.devices of the spec change how many rows that is; give val fewer rows"
        kept_off.append(("limit_val_batches", (0, 1.0) if every else (0,), why))
    for name, harmless, why in kept_off:
        given = trainer.get(name)
        if all(_unlike(given, value) for value in harmless):
            yield Problem(("trainer", name), f"is {shown(given)}, but {why}; leave it out here")


def _unlike(left: Any, right: Any) -> bool:
    # True equals 1 in Python, but not for a person who reads the config.
    return left != right or isinstance(left, bool) != isinstance(right, bool)


def _callbacks(value: Any) -> Iterator[tuple[FieldPath, str]]:
    entries = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
    for index, entry in entries:
        class_path = entry.get("class_path") if isinstance(entry, dict) else entry
        if isinstance(class_path, str):
            yield (() if index is None else (index,)), class_path


def _mentions(value: Any, text: str, field: FieldPath = ()) -> Iterator[FieldPath]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _mentions(inner, text, (*field, key))
    elif isinstance(value, str) and text in value:
        yield field


def _unknown(field: FieldPath, keys: tuple[str, ...]) -> Problem:
    near = difflib.get_close_matches(str(field[-1]), keys, 1)
    if near:
        return Problem(field, f"unknown key; did you mean {dotted((*field[:-1], near[0]))}?")
    owner = "Lightning's Trainer takes" if len(field) > 1 else "a LightningCLI config has"
    return Problem(field, f"unknown key; {owner} {', '.join(keys)}")


@functools.cache
def trainer_arguments() -> tuple[str, ...]:
    """Names of the Trainer's arguments, from the installed Lightning's source without importing it; () if absent."""
    package = importlib.util.find_spec("lightning")
    if package is None or package.origin is None:
        return ()
    source = Path(package.origin).parent / "pytorch" / "trainer" / "trainer.py"
    if not source.is_file():
        return ()
    trainers = (
        node
        for node in ast.walk(syntax_tree(source.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and node.name == "Trainer"
    )
    makers = (
        item.args
        for trainer in trainers
        for item in trainer.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    )
    return tuple(argument.arg for maker in makers for argument in [*maker.args, *maker.kwonlyargs][1:])


def _without_effect(config: Mapping[str, Any], spec: PipelineSpec) -> Iterator[str]:
    train, trainer = spec.train, config.get("trainer") or {}
    if config.get("data") is not None:
        for name in ("batch", "transform", "micro_batch_size"):
            if getattr(train, name) is not None:
                yield f"train.{name} has no effect: {_OWN_BATCHES}"
        if "batch_size" in spec.evaluate.model_fields_set:
            yield f"evaluate.batch_size has no effect: {_OWN_BATCHES}"
    if all(trainer.get(name) is None for name in ("max_epochs", "max_steps", "max_time")):
        yield "trainer of the Lightning config has neither max_epochs nor max_steps: Lightning trains for 1000 epochs."
    for name in ("limit_test_batches", "limit_predict_batches"):
        if str(trainer.get(name)) not in ("None", "1.0"):
            yield f"trainer.{name} has no effect: evaluate scores every row."
    for _, class_path in _callbacks(trainer.get("callbacks")):
        if class_path.rpartition(".")[2] in _PROGRESS_BARS:
            yield f"trainer.callbacks: {class_path} has no effect: Trainwright reports the progress."
    for _, class_path in _callbacks(trainer.get("plugins")):
        if class_path.rpartition(".")[2].endswith("CheckpointIO"):
            yield f"trainer.plugins: {class_path} has no effect: checkpoints are sealed by Trainwright."
    for name, metric in spec.evaluate.metrics.items():
        for field in ("target", "prediction", "init_args"):
            if metric.logged is not None and getattr(metric, field):
                yield f"evaluate.metrics.{name}.{field} has no effect with logged."
    if dropped := [f"mirrors.{name}" for name in ("gto", "huggingface", "openlineage") if getattr(spec.mirrors, name)]:
        yield (
            f"These mirrors were dropped and get nothing: {' and '.join(dropped)}. docs/mirrors.md says what to use "
            "instead."
        )
    if spec.schedule.within is not None:
        yield "schedule.within was dropped and has no effect: a run starts at its time. Choose it with `deploy --cron`."
    yield from _data_without_effect(spec)


def _data_without_effect(spec: PipelineSpec) -> Iterator[str]:
    if isinstance(spec.data, DataSpec):
        for index, source in enumerate(spec.data.source):
            here = f"data.source.{index}"
            if source.storage_options and not source.uri.startswith("s3://"):
                yield f"{here}.storage_options has no effect: {source.uri} is not an s3:// address."
            if source.columns and source.format in ("jsonl", "parquet", "files", "text"):
                yield f"{here}.columns has no effect: format {source.format} names its own columns."
            if source.pattern and source.format not in ("files", "text"):
                yield f"{here}.pattern has no effect: it needs format files or text."
    if spec.store.storage_options and not spec.store.uri.startswith("s3://"):
        yield f"store.storage_options has no effect: {spec.store.uri} is not an s3:// address."
    begin = spec.train.init_from
    if begin is not None and begin.storage_options and not begin.weights.startswith("s3://"):
        yield f"train.init_from.storage_options has no effect: {begin.weights} is not an s3:// address."
    if spec.shards is not None:
        split = spec.shards.split
        given = split.model_fields_set
        if "fractions" in given and (split.column is not None or split.boundaries):
            yield f"shards.split.fractions has no effect with {'column' if split.column is not None else 'boundaries'}."
        if "seed" in given and (split.column is not None or split.time is not None):
            yield f"shards.split.seed has no effect with {'column' if split.column is not None else 'time'}."
