"""Finds the training for a run's settings: its reuse key, the attempt to use, and where that attempt resumes.

`trained_with` reads what a checkpoint was trained with, as sealed beside its weights: settings, code and dataset. The
champion may have other code and another architecture than this run; it is always rebuilt from its own settings.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_contracts.canonical import reuse_key
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Checkpoint, Dataset, Ref
from data_contracts.messages.gang import Launch
from data_contracts.run_report import StageResult
from infra.code_bundle import check_bundle
from infra.gang.ledger import at_step, committed, generations, refuse_forged_result, why_from
from infra.records.handoffs import TRAIN, check_against_seal, find_dataset_by_id, read_trained_with, verify_checkpoint
from infra.store import Store, layout
from infra.store.seal import noting_damage
from tasks.run.run import RunInputs

VERSION = 1
log = logging.getLogger("trainwright")


def training_key(run: RunInputs, dataset: Dataset | None) -> str:
    """Reuse key of a training: covers what decides its result, but not where it ran."""
    return key_of(sealed_settings(run, dataset))


def key_of(sealed: Mapping[str, Any], version: int = VERSION) -> str:
    """Reuse key of a training, from the settings sealed in its checkpoints."""
    return reuse_key("train", version, sealed["train"], sealed["dataset_id"], sealed["code_digest"])


def sealed_settings(run: RunInputs, dataset: Dataset | None) -> dict[str, object]:
    """The settings that decide a training's result. They are sealed in every checkpoint, which is rebuilt from them
    alone.
    """
    recipe = run.spec.train.recipe
    settings = {**recipe, "lightning": run.resolved.lightning}
    del settings["init_from"]
    if run.resolved.init_from is not None:
        settings["init_from"] = {"id": run.resolved.init_from.id, "strict": recipe["init_from"]["strict"]}
    if run.resolved.mixture:
        others = {name: other.ref.id for name, other in run.resolved.mixture.items()}
        loader = recipe["loader"]
        settings["loader"] = {**loader, "mixture": {**loader["mixture"], "datasets": others}}
    return {
        "train": settings,
        "code_digest": run.resolved.code_digest,
        "dataset_id": None if dataset is None else dataset.ref.id,
    }


def find_training(run: RunInputs, key: str, *, warn: bool = True) -> tuple[str, Checkpoint | None, bool]:
    """The training to use for a key: its directory, its checkpoint if finished and whole, and whether it was begun.

    Args:
        warn: log why a finished training is not used.
    """
    attempt = max(run.store.attempts("trainings", key), default=0)
    training = layout.attempt("trainings", key, attempt)
    following = layout.attempt("trainings", key, attempt + 1), None, False
    if not run.store.claim(training):
        return following
    begun = bool(run.store.list(training))
    if begun and run.resolved.fresh and _begun_by(run, training) != run.run_id:
        return following
    if run.store.exists(layout.result(training)):
        checkpoint = run.store.read_as(layout.result(training), Checkpoint.from_json)
        refuse_forged_result(run.store, training, checkpoint)
        return (training, checkpoint, True) if usable(run, checkpoint, warn=warn) else following
    return training, None, begun


def _begun_by(run: RunInputs, training: str) -> str | None:
    """The run that began a training: `--new` makes one new training, however often the run is continued."""
    return run.store.find_as(layout.launch(training, 0), _launcher)


def usable(run: RunInputs, checkpoint: Checkpoint, *, warn: bool = True) -> bool:
    """Whether a checkpoint may be handed over or started from: it is whole, and not quarantined."""
    level = logging.WARNING if warn else logging.DEBUG
    uri = checkpoint.ref.uri
    if run.store.exists(layout.quarantined(uri)):
        log.log(level, "the checkpoint %s is quarantined", uri)
        return False
    try:
        verify_checkpoint(run.store, checkpoint)
    except FileNotFoundError:
        log.log(level, "the checkpoint %s is missing", uri)
        return False
    except CorruptError as error:
        log.log(level, "the checkpoint %s is corrupt: %s", uri, error.message)
        return False
    return True


def training_of(run: RunInputs) -> str | None:
    """The training that the run reused, else the newest with its key that it launched, else the newest with its key."""
    trained, sharded = recorded(run, "train"), recorded(run, "shard")
    if trained is not None and trained.reused_from:
        return trained.reused_from
    made = None if run.external or sharded is None else sharded.id
    dataset: Dataset | None = None if made is None else find_dataset_by_id(run.store, made)
    if dataset is None and not run.external:
        return None
    key, attempts = training_key(run, dataset), list[str]()
    while run.store.list(training := layout.attempt("trainings", key, len(attempts))):
        attempts.insert(0, training)
    launched = [training for training in attempts if run.run_id in _launched_by(run.store, training)]
    # `--new` asks for a training of its own.
    return next(iter(launched if run.resolved.fresh else [*launched, *attempts]), None)


def begun_training(run: RunInputs) -> str:
    """The run's training; UsageError if it has not begun, CorruptError if damage keeps it from being found."""
    with noting_damage() as damage:
        training = training_of(run)
    if training is None:
        raise damage[0] if damage else not_begun(run)
    return training


def not_begun(run: RunInputs) -> UsageError:
    """The error for a run that has no training yet, or whose training cannot be found any more."""
    if recorded(run, "train") is not None:
        return UsageError(
            f"The training of the run {run.run_id} cannot be found: its dataset, or the record of it, is gone.",
            remedy="If it was deleted, a file below tombstones/ in the store says why.",
        )
    return UsageError(
        f"The run {run.run_id} has not started training.",
        remedy=f"Continue it with `trainwright resume {run.run_id}`.",
    )


def continuation(store: Store, training: str, from_step: int | None) -> str:
    """Where an unfinished training would continue, and why; UsageError for a step that is not committed."""
    kept, aside = committed(store, training)
    if from_step is not None:
        later = [one.step for one in kept if one.step > at_step(kept, from_step, training).step]
        beyond = f"; step {', '.join(f'{step:,}' for step in later)} will be set aside" if later else ""
        return f"continues from step {from_step:,}, as requested{beyond}"
    if not kept:
        return "starts from step 0: it has no committed checkpoint"
    return f"continues from step {kept[-1].step:,} ({why_from(store, training, kept[-1].step, aside)})"


def _launched_by(store: Store, training: str) -> set[str]:
    """The runs that launched a generation of a training."""
    return {store.read_as(layout.launch(training, number), _launcher) for number in generations(store, training)}


def _launcher(launch: dict[str, object]) -> str:
    """The run that launched a generation."""
    return Launch.from_json(launch).run_id


def recorded(run: RunInputs, stage: str) -> StageResult | None:
    """How a stage of the run ended, if it ended successfully."""
    return run.store.find_as(layout.stage(run.run_id, stage), StageResult.model_validate)


@dataclass(frozen=True)
class TrainedWith:
    """Settings that decide a training's result (the Lightning config inlined), the code, the dataset (None: external).

    Attributes:
        sealed: all content of `train.json`, which the checkpoint's id covers and which keys contain.
    """

    sealed: dict[str, Any]
    code: Ref
    dataset: Ref | None

    @property
    def train(self) -> dict[str, Any]:
        """`train` as JSON, without the settings that do not affect the result."""
        return self.sealed["train"]


def trained_with(store: Store, checkpoint: Checkpoint) -> TrainedWith:
    """Read what is sealed in the checkpoint; CorruptError if it is changed, gone, or not of its training."""
    try:
        manifest = store.manifest(checkpoint.ref)
    except FileNotFoundError as error:
        raise CorruptError(f"The checkpoint {checkpoint.ref.uri} is missing.") from error
    check_against_seal(manifest, checkpoint)
    sealed = read_trained_with(store, manifest)
    try:
        parents = [Ref.model_validate(parent) for parent in manifest.provenance["parents"]]
        code = Ref.model_validate(manifest.provenance["code"]["ref"])
        keys = {key_of(sealed, version) for version in range(1, VERSION + 1)}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{checkpoint.ref.uri} does not say what it was trained with.") from error
    # The digest of these settings names the training's directory: other settings, such as another class, give another
    # name.
    if split_key(checkpoint.training) not in keys:
        raise CorruptError(
            f"{checkpoint.ref.uri}/{TRAIN} holds other settings than {checkpoint.training} was made for."
        )
    _check_code(store, code, str(sealed["code_digest"]))
    dataset = next((parent for parent in parents if parent.id == sealed["dataset_id"]), None)
    return TrainedWith(sealed, code, dataset)


def _check_code(store: Store, code: Ref, code_digest: str) -> None:
    """CorruptError unless a checkpoint's bundle has the code that its settings were sealed with."""
    try:
        check_bundle(store, store.manifest(code), code_digest)
    except FileNotFoundError as error:
        raise CorruptError(f"{code.uri}, the code that a checkpoint was trained with, is missing.") from error


def split_key(training: str) -> str:
    """The reuse key in a training's directory."""
    parts = layout.split_attempt(training.removeprefix("trainings/"))
    return parts[0] if parts else ""
