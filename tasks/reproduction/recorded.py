"""What is sealed about a model version: everything that it can be made again from, and the ids to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Checkpoint, ModelVersion, Ref
from data_contracts.messages.gang import Segment
from data_contracts.resolved import Recipe
from infra.gang.ledger import list_checkpoints
from infra.gang.recovery import Replay
from infra.models.registry import read_recipe
from infra.records.handoffs import verify_checkpoint
from infra.store import Manifest, Store, layout
from infra.store.records import parsed
from infra.store.seal import passing_over
from tasks.run.resolve import find_version

REMEDY = (
    "It was made by a Trainwright that did not seal this, or it was deleted; train it again with this one, and the new "
    "version can be reproduced."
)


@dataclass(frozen=True)
class Recorded:
    """A model version, as sealed.

    Attributes:
        recipe: of the run that made the version; trained: of the run that launched its training.
        segments: what the generations of the training did.
        steps: step → id of each checkpoint that the training kept or resumed from, in order.
        kept: step → those that still exist.
        contract, dataset: None with `data: external`, and for data without a contract.
        parents: datasets that hold shards of the dataset, or of the other datasets of a mixture: they were appended to.
    """

    version: ModelVersion
    recipe: Recipe
    trained: Recipe
    segments: list[Segment]
    steps: dict[int, str]
    kept: dict[int, Ref]
    contract: Ref | None = None
    dataset: Ref | None = None
    parents: list[Ref] = field(default_factory=list)

    @property
    def replay(self) -> Replay:
        """How the training is made again."""
        return Replay(self.segments, keep_steps=frozenset(self.steps))

    @property
    def copied(self) -> list[Ref]:
        """What is copied from the model's store and not made again."""
        return list({one.uri: one for one in [*copied(self.recipe), *self.parents]}.values())

    @property
    def external(self) -> bool:
        """Whether the user's data module read data of its own."""
        return self.recipe.resolved.spec["data"] == "external"


def read_recorded(store: Store, name: str) -> Recorded:
    """Everything that is sealed about `model`, `model@alias` or `model@3`.

    Raises:
        UsageError: something is missing; all of it is listed, also in `details["missing"]`.
        CorruptError: something is not as sealed.
    """
    version, _ = find_version(store, name)
    checkpoint = version.checkpoint
    try:
        manifest = verify_checkpoint(store, checkpoint)
    except FileNotFoundError as error:
        raise CorruptError(f"The checkpoint {checkpoint.ref.uri} of {name} is missing.") from error
    made = store.manifest(version.ref)
    missing = [] if manifest.provenance.get("generations") else ["the history of its generations"]
    trained = _recipe(store, manifest, missing, "the recipe of its training: lock, inputs and Trainwright's revision")
    recipe = _recipe(store, made, missing, "the recipe of its version") if "recipe" in made.provenance else trained
    needed = [] if recipe is None else copied(recipe)
    missing += [one.uri for one in needed if not store.exists(layout.manifest(one.uri))]
    if missing or recipe is None or trained is None:
        raise UsageError(
            f"{version.name} version {version.version} cannot be reproduced; missing: {', '.join(missing)}.",
            remedy=REMEDY,
            details={"missing": missing},
        )
    segments = _segments(store, manifest, checkpoint)
    kept = _kept(store, checkpoint, segments)
    resumed = {one.first_step: one.resumed_from for one in segments if one.resumed_from is not None}
    steps = {step: ref.id for step, ref in kept.items()} | {step: one for step, one in resumed.items() if one}
    dataset, contract, parents = _data(store, manifest)
    for mixed in recipe.resolved.mixture.values():
        parents += _appended_to(store, store.manifest(mixed.ref))
    return Recorded(version, recipe, trained, segments, dict(sorted(steps.items())), kept, contract, dataset, parents)


def copied(recipe: Recipe) -> list[Ref]:
    """What a run took as it was: its code, and results of other runs."""
    resolved = recipe.resolved
    mixed = [dataset.ref for dataset in resolved.mixture.values()]
    drift = None if resolved.drift is None else resolved.drift.contract
    return [one for one in [resolved.code, resolved.init_from, drift, *mixed] if one is not None]


def _recipe(store: Store, manifest: Manifest, missing: list[str], what: str) -> Recipe | None:
    named = manifest.provenance.get("recipe")
    if named is None:
        missing.append(what)
        return None
    ref = parsed(layout.manifest(manifest.uri), Ref.model_validate, named)
    try:
        return read_recipe(store, ref)
    except FileNotFoundError:
        missing.append(f"{what} ({ref.uri})")
        return None


def _segments(store: Store, manifest: Manifest, checkpoint: Checkpoint) -> list[Segment]:
    """The generations up to the newest checkpoint that continues this one: training went on after it."""
    mine = _segments_in(manifest)
    longest = mine
    for one in list_checkpoints(store, checkpoint.training):
        if one.step <= checkpoint.step or one.state not in ("committed", "verified"):
            continue
        theirs = _segments_in(store.manifest(one.uri))
        if theirs[: len(mine)] == mine and len(theirs) > len(longest):
            longest = theirs
    return longest


def _segments_in(manifest: Manifest) -> list[Segment]:
    def read(value: Any) -> list[Segment]:
        segments = [Segment.model_validate(one) for one in value]
        steps = [one.first_step for one in segments]
        if steps != sorted(steps) or (steps and (steps[0], segments[0].resumed_from) != (0, None)):
            raise ValueError("the generations are not in the order of their steps")
        return segments

    return parsed(layout.manifest(manifest.uri), read, manifest.provenance.get("generations", []))


def _kept(store: Store, checkpoint: Checkpoint, segments: list[Segment]) -> dict[int, Ref]:
    """The checkpoints of the training that lie on the way that its generations took, by step; this one among them."""
    ends = [*(one.first_step for one in segments[1:]), None]
    spans = {(one.training, one.generation): (one.first_step, end) for one, end in zip(segments, ends, strict=True)}
    found = {checkpoint.step: checkpoint.ref}
    for one in list_checkpoints(store, checkpoint.training):
        if one.bytes is None:
            with passing_over():  # which names it if it is damaged
                store.manifest(one.uri)
        first, end = spans.get((checkpoint.training, one.generation), (one.step, one.step))
        if one.state in ("committed", "verified") and first < one.step and (end is None or one.step <= end):
            found.setdefault(one.step, store.manifest(one.uri).ref)
    return dict(sorted(found.items()))


def _data(store: Store, manifest: Manifest) -> tuple[Ref | None, Ref | None, list[Ref]]:
    """The dataset of a checkpoint, its contract report, and the datasets that it was appended to."""
    dataset = manifest.parent_in("datasets")
    if dataset is None:
        return None, None, []
    try:
        made = store.manifest(dataset)
    except FileNotFoundError:
        return dataset, None, []  # deleted; it is made again, and its id is known
    return dataset, made.parent_in("contracts"), _appended_to(store, made)


def _appended_to(store: Store, dataset: Manifest) -> list[Ref]:
    """The datasets that a dataset was appended to, the oldest first; CorruptError if one of them is missing."""
    parents, made = list[Ref](), dataset
    while (older := made.parent_in("datasets")) is not None:
        parents.insert(0, older)
        try:
            made = store.manifest(older)
        except FileNotFoundError as error:
            raise CorruptError(f"{older.uri}, which holds shards of {dataset.uri}, is missing.") from error
    return parents
