"""Where a training step's time goes, what bounds it, and whether the change most worth trying helps; with its page.

Profiles the training of a run: a short training in scratch, then another one with the change. Neither takes a lease,
writes a checkpoint or a hand-off, or has a place in a reuse key. What bounds a step and which change to try are pure
functions: of the seconds of the step's parts, and of the settings. The page loads nothing.
"""

from __future__ import annotations

import copy
import logging
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.handoffs import Dataset
from data_contracts.messages.commands import PROFILE, TRACE, ProfileRequest, StepProfile
from data_contracts.pipeline_spec import TrainSpec
from infra import scratch
from infra.child import run_child
from infra.machine import num_cores
from infra.records.handoffs import local_dataset, mixed
from tasks.charts.picture import BLUE
from tasks.charts.plots import Bar, bars
from tasks.pages.html import page
from tasks.run.run import Run
from tasks.stages.train import REMEDIES

Bound = Literal["data", "transfer", "communication", "checkpoint", "callbacks", "compute", "memory", "calls"]
# The parts of a step in the order in which they happen, each with what it is called on a page.
PARTS = {
    "data": "waiting for data",
    "transfer": "host to device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "synchronisation": "synchronisation",
    "checkpoint": "checkpoint",
    "callbacks": "callbacks, logging, rest",
}
_WORK = ("forward", "backward", "optimizer")
# What bounds a step, as people read it.
NAMES: dict[Bound, str] = {
    "data": "data",
    "transfer": "copies to the device",
    "communication": "communication",
    "checkpoint": "checkpoints",
    "callbacks": "callbacks and logging",
    "compute": "compute",
    "memory": "memory",
    "calls": "many small operations",
}
SENTENCES: dict[Bound, str] = {
    "data": "Steps wait for data longer than for anything else.",
    "transfer": "Copying batches to the device takes longer than anything else.",
    "communication": "Ranks wait for each other's gradients or parameters longer than for anything else.",
    "checkpoint": "Checkpoints hold the steps longer than anything else does.",
    "callbacks": "Callbacks and logging take longer than anything else.",
    "compute": "Matrix products, convolutions and attention take most of the module's own time.",
    "memory": "Operations that mostly read and write memory take most of the module's own time.",
    "calls": "Most of the module's own time goes into calling operations: they are many and short.",
}
_FULL = ("", "32", "32-true", "None")
_MOST_WORKERS = 8
_SAME = "The model stays the same."
# Steps before the first that is timed, and timed steps.
WARMUP, STEPS = 10, 20
MOST_S = 1800.0
log = logging.getLogger("trainwright")
_COLOURS = {
    "data": "var(--orange,#d9681d)",
    "transfer": "var(--orange,#d9681d)",
    "synchronisation": "var(--violet,#8454cc)",
    "checkpoint": "var(--teal,#127f8b)",
    "callbacks": "var(--pink,#c43d7d)",
}


def parts_of(profile: StepProfile, checkpoint: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each part of a mean step, in the order of `PARTS`.

    What the exchange of gradients adds to a backward pass is synchronisation.

    Args:
        checkpoint: `train.checkpoint` as JSON, which says how many steps share a checkpoint.
    """
    steps = max(len(profile.step_s), 1)
    found = dict.fromkeys(PARTS, 0.0)
    for part, seconds in profile.phases.items():
        found[part if part in PARTS else "callbacks"] += seconds / steps
    if profile.exchange_s is not None:
        exposed = min(profile.exchange_s, found["backward"])
        found["backward"] -= exposed
        found["synchronisation"] += exposed
    between = steps_between(checkpoint, profile.steps_per_epoch, sum(found.values()))
    if profile.checkpoint_s is not None and between:
        found["checkpoint"] = profile.checkpoint_s / between
    return found


def steps_between(checkpoint: Mapping[str, Any], steps_per_epoch: int, step_s: float) -> float:
    """Steps from one checkpoint to the next; 0 if unknown."""
    every_s, chosen = checkpoint.get("every_s"), []
    if checkpoint.get("every_steps"):
        chosen.append(float(checkpoint["every_steps"]))
    if isinstance(every_s, int | float) and step_s > 0:
        chosen.append(max(every_s / step_s, 1.0))
    return min(chosen, default=float(steps_per_epoch))


def bound_by(profile: StepProfile, parts: Mapping[str, float]) -> Bound:
    """What bounds a step: the largest of its parts, or for the module's own work, what takes most of that."""
    waits: dict[Bound, float] = {
        "data": parts["data"],
        "transfer": parts["transfer"],
        "communication": parts["synchronisation"],
        "checkpoint": parts["checkpoint"],
        "callbacks": parts["callbacks"],
    }
    longest = max(waits, key=lambda name: waits[name])
    work = sum(parts[part] for part in _WORK)
    if waits[longest] > work:
        return longest
    if 2 * profile.busy_s < work * profile.traced:
        return "calls"
    return "compute" if 2 * profile.products_s >= profile.busy_s else "memory"


@dataclass(frozen=True)
class SpeedComparison:
    """Samples per second before and after a change.

    Attributes:
        helps: whether it is faster beyond the spread of steps; None: the difference is within it.
    """

    before: float
    after: float
    helps: bool | None

    @property
    def gain(self) -> float:
        """How much faster it is, as a share."""
        return self.after / self.before - 1 if self.before > 0 else 0.0


def compare(before: StepProfile, after: StepProfile, checkpoint_s: tuple[float, float] = (0.0, 0.0)) -> SpeedComparison:
    """Compare two profiles by the seconds of a row. A difference counts if the middle halves of the steps are apart.

    Args:
        checkpoint_s: seconds that checkpoints add to a step, before and after.
    """
    first, second = (
        [(seconds + wait) / one.rows for seconds in one.step_s]
        for one, wait in zip((before, after), checkpoint_s, strict=True)
    )
    (low, high), (low_after, high_after) = _middle(first), _middle(second)
    helps = True if high_after < low else False if low_after > high else None
    return SpeedComparison(_per_second(first), _per_second(second), helps)


def _per_second(row_s: list[float]) -> float:
    """Rows per second of the middle step: one slow step of a busy machine must not decide."""
    middle = statistics.median(row_s) if row_s else 0.0
    return 1 / middle if middle > 0 else 0.0


def _middle(row_s: list[float]) -> tuple[float, float]:
    """The first and third quartile."""
    if len(row_s) < 2:
        return (row_s[0], row_s[0]) if row_s else (0.0, 0.0)
    low, _, high = statistics.quantiles(row_s, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True)
class Change:
    """A change of a training's settings.

    Attributes:
        what: the change in words, as what one does.
        effect: what it does to the model that is trained.
        train: the settings with the change.
        batches_ready, compiled: as a `ProfileRequest` has them.
        note: what the measurement stands for, if it is not the change itself.
    """

    what: str
    effect: str
    train: Mapping[str, Any] = field(default_factory=dict)
    batches_ready: bool = False
    compiled: bool = False
    note: str = ""


def change_for(bound: Bound, profile: StepProfile, train: Mapping[str, Any], cores: int) -> Change | None:
    """The change for what bounds a step; None if none is known.

    Args:
        train: the settings that were profiled, with the Lightning config inlined.
        cores: processor cores of this machine.
    """
    if bound == "data":
        return _workers(train, cores) or _ready(profile, train)
    if bound == "communication":
        return _larger_batch(profile, train)
    if bound == "checkpoint":
        return _rarer_checkpoints(profile, train)
    if bound == "callbacks":
        return _less_logging(train)
    if bound == "transfer":
        return None
    if bound == "compute":
        return _half_precision(train) or _compiled(train)
    return _larger_micro_batch(profile, train) or _compiled(train)


def _ready(profile: StepProfile, train: Mapping[str, Any]) -> Change:
    remedy = REMEDIES.get(profile.data_cause, "preparing batches takes longest.")
    what = f"Make batches cheaper: {remedy}"
    note = "Measured with batches that were prepared before the steps: no change of the loader gives more than that."
    return Change(what, _SAME, dict(train), batches_ready=True, note=note)


def _workers(train: Mapping[str, Any], cores: int) -> Change | None:
    """More workers for the user's own data module, where it takes their number."""
    changed = copy.deepcopy(dict(train))
    arguments = (changed["lightning"].get("data") or {}).get("init_args") or {}
    now = arguments.get("num_workers")
    most = min(cores, _MOST_WORKERS)
    if type(now) is not int or now >= most:
        return None
    arguments["num_workers"] = most
    return Change(f"Set data.init_args.num_workers of train.lightning to {most} (it is {now}).", _SAME, changed)


def _larger_batch(profile: StepProfile, train: Mapping[str, Any]) -> Change:
    rows = train["global_batch_size"]
    micro = rows // profile.world_size // profile.accumulate
    changed = {**train, "global_batch_size": 2 * rows, "micro_batch_size": micro}
    what = f"Exchange gradients half as often: train.global_batch_size {2 * rows}, train.micro_batch_size {micro}."
    return Change(what, "Another training: its optimizer takes half as many steps, with twice the rows.", changed)


def _rarer_checkpoints(profile: StepProfile, train: Mapping[str, Any]) -> Change:
    now = dict(train.get("checkpoint") or {})
    every_s, every_steps = now.get("every_s"), now.get("every_steps")
    if isinstance(every_s, int | float):
        now["every_s"], said = 4 * every_s, f"train.checkpoint.every_s {4 * every_s:g}"
        now["every_steps"] = None
    else:
        steps = 4 * (every_steps or profile.steps_per_epoch or 1)
        now["every_steps"], said = steps, f"train.checkpoint.every_steps {steps}"
    effect = "The model stays the same; after a failure, up to four times as many steps are done again."
    return Change(f"Save a quarter as often: {said}.", effect, {**train, "checkpoint": now})


def _less_logging(train: Mapping[str, Any]) -> Change:
    steps = 10 * int((train["lightning"].get("trainer") or {}).get("log_every_n_steps") or 10)
    what = f"Log less often: trainer.log_every_n_steps {steps} in train.lightning."
    return Change(what, _SAME, _with_trainer(train, log_every_n_steps=steps))


def _half_precision(train: Mapping[str, Any]) -> Change | None:
    precision = str((train["lightning"].get("trainer") or {}).get("precision") or "")
    if precision not in _FULL:
        return None
    what = "Compute in half precision: trainer.precision bf16-mixed in train.lightning."
    return Change(what, "Another training: compare its metrics as well.", _with_trainer(train, precision="bf16-mixed"))


def _larger_micro_batch(profile: StepProfile, train: Mapping[str, Any]) -> Change | None:
    if profile.accumulate < 2:
        return None
    rows = train["global_batch_size"] // profile.world_size
    what = f"Take the whole batch at once: train.micro_batch_size {rows}, which needs more memory."
    return Change(what, "The model stays the same; the training gets no new key.", {**train, "micro_batch_size": rows})


def _compiled(train: Mapping[str, Any]) -> Change:
    what = "Compile the module's parts: call `.compile()` on each submodule in the module's configure_model."
    return Change(what, "The model stays the same but for rounding.", dict(train), compiled=True)


def _with_trainer(train: Mapping[str, Any], **settings: Any) -> Mapping[str, Any]:
    lightning = train["lightning"]
    return {**train, "lightning": {**lightning, "trainer": {**(lightning.get("trainer") or {}), **settings}}}


@dataclass(frozen=True)
class Profiled:
    """What a profile found.

    Attributes:
        parts: part of a step → seconds of a mean step.
        change: what is most worth trying, and `comparison`: what it gave; `failed`: why that is not known.
        trace: compressed, in Chrome's format.
    """

    profile: StepProfile
    parts: dict[str, float]
    bound: Bound
    change: Change | None
    comparison: SpeedComparison | None
    after: StepProfile | None
    failed: str
    trace: bytes

    def to_json(self) -> dict[str, object]:
        """The figures, for a program."""
        compared = self.comparison
        return {
            "bound": self.bound,
            "seconds": self.parts,
            "change": None if self.change is None else self.change.what,
            "samples_per_s": None if compared is None else {"before": compared.before, "after": compared.after},
            "helps": None if compared is None else compared.helps,
            "steps": len(self.profile.step_s),
        }


def refuse_elsewhere(train: TrainSpec) -> None:
    """UsageError for a training on a work pool: a profile's steps run here."""
    if train.pool is not None:
        raise UsageError(
            f"train.launcher: a profile runs on this machine, but the training runs elsewhere ({train.launcher}).",
            remedy="Leave --profile out, or profile on a node: --set train.pool=null --set train.launcher=local.",
        )


def profile(run: Run, dataset: Dataset | None) -> Profiled:
    """Profile the training of a run's settings on its dataset.

    Raises:
        UsageError: the training ends before a step could be timed.
        UserCodeError: the module raised.
    """
    settings = run.train_settings()
    with scratch.make("profile") as folder:
        log.info("profile: %s timed steps after %s of warm-up", STEPS, WARMUP)
        before = _measure(run, dataset, settings, folder.path)
        trace = (folder.path / TRACE).read_bytes()
        parts = parts_of(before, settings["checkpoint"])
        bound = bound_by(before, parts)
        change = change_for(bound, before, settings, num_cores())
        after, failed = None, ""
        if change is not None:
            log.info("profile: bound by %s; measuring the change: %s", NAMES[bound], change.what)
            after, failed = _try(run, dataset, change, folder.path)
    comparison = None if change is None or after is None else _compared(before, after, settings, change)
    return Profiled(before, parts, bound, change, comparison, after, failed, trace)


def _try(run: Run, dataset: Dataset | None, change: Change, folder: Path) -> tuple[StepProfile | None, str]:
    """The same steps with a change; or None, and why they cannot be taken."""
    try:
        return _measure(run, dataset, change.train, folder, change), ""
    except TrainwrightError as error:
        return None, error.message


def _measure(
    run: Run,
    dataset: Dataset | None,
    train: Mapping[str, Any],
    folder: Path,
    change: Change | None = None,
) -> StepProfile:
    mixture = run.resolved.mixture
    spec = run.spec.train
    request = ProfileRequest(
        train=dict(train),
        project=str(run.project()),
        dataset=dataset,
        dataset_path="" if dataset is None else str(local_dataset(run.store, mixed(dataset, mixture))),
        mixture=mixture,
        nodes=spec.nodes,
        devices=spec.devices,
        warmup=WARMUP,
        steps=STEPS,
        folder=str(folder),
        batches_ready=change is not None and change.batches_ready,
        compiled=change is not None and change.compiled,
    )
    return run_child(PROFILE, request, project=run.project(), withhold=run.withholds, limit=MOST_S)


def _compared(before: StepProfile, after: StepProfile, settings: Mapping[str, Any], change: Change) -> SpeedComparison:
    def added_s(checkpoint: Mapping[str, Any]) -> float:
        mean_s = sum(before.step_s) / len(before.step_s)
        between = steps_between(checkpoint, before.steps_per_epoch, mean_s)
        return (before.checkpoint_s or 0.0) / between if between else 0.0

    return compare(before, after, (added_s(settings["checkpoint"]), added_s(change.train["checkpoint"])))


def profile_page(run: Run, profiled: Profiled) -> str:
    """The page."""
    profile = profiled.profile
    return page(
        "profile",
        title=f"{run.spec.name}: profile",
        eyebrow=f"{run.spec.name} · profile of {run.run_id}",
        bound=NAMES[profiled.bound],
        why=SENTENCES[profiled.bound],
        change=profiled.change,
        result=result(profiled),
        figures=_figures(profiled),
        parts=_parts(profiled),
        before_and_after=_before_and_after(profiled.comparison),
        operations=_operations(profile),
        steps=len(profile.step_s),
        on_cuda=profile.device == "cuda",
        overlaps=profile.world_size > 1 and profile.exchange_s is None,
    )


def sentence(profiled: Profiled) -> str:
    """What bounds a step, and what the change gave, in one line."""
    bound = f"bound by {NAMES[profiled.bound]}"
    if profiled.change is None:
        return bound
    return f"{bound}; {profiled.change.what} {result(profiled)}"


def result(profiled: Profiled) -> str:
    """What the change gave."""
    if profiled.comparison is None:
        return f"It could not be measured: {profiled.failed}"
    compared, steps = profiled.comparison, len(profiled.after.step_s if profiled.after else ())
    figures = (
        f"{compared.before:,.0f} → {compared.after:,.0f} samples/s ({len(profiled.profile.step_s)} and {steps} steps)"
    )
    if compared.helps is None:
        return f"Whether it helps is open: {figures}, but single steps differ more than that."
    return f"{'It helps' if compared.helps else 'It does not help'}: {figures}, {compared.gain:+.0%}."


def _figures(profiled: Profiled) -> list[tuple[str, str]]:
    profile = profiled.profile
    total = sum(profiled.parts.values())
    ranks = f"{profile.world_size} ranks" if profile.world_size > 1 else "1 rank"
    rate = profiled.comparison.before if profiled.comparison else profile.rows / total if total else 0.0
    return [
        ("a step", _time(total)),
        ("samples/s of the middle step", f"{rate:,.0f}"),
        ("rows of a step", f"{profile.rows:,}"),
        ("micro-batches", f"{profile.accumulate}" if profile.accumulate > 1 else ""),
        ("on", f"{ranks}, {profile.device}"),
        ("timed steps", f"{len(profile.step_s)}"),
    ]


def _parts(profiled: Profiled) -> str:
    total = sum(profiled.parts.values()) or 1.0
    drawn = [
        Bar(PARTS[part], seconds, f"{_time(seconds)}, {seconds / total:.1%}", _COLOURS.get(part, BLUE))
        for part, seconds in profiled.parts.items()
    ]
    return bars(drawn, "Seconds of a mean step by part")


def _before_and_after(compared: SpeedComparison | None) -> str:
    if compared is None:
        return ""
    drawn = [("before", compared.before, BLUE), ("after", compared.after, "var(--good,#1a7a45)")]
    made = [Bar(name, rate, f"{rate:,.0f} samples/s", colour) for name, rate, colour in drawn]
    return bars(made, "Samples per second before and after the change")


def _operations(profile: StepProfile) -> list[tuple[str, str, str]]:
    """The operations of a traced step: name, calls and time."""
    steps = profile.traced
    return [
        (operation.name, f"{operation.calls / steps:,.1f}", _time(operation.seconds / steps))
        for operation in profile.operations
    ]


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} µs"
