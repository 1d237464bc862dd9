"""Runs a stage's work where its `launcher` says: on this machine, or on nodes elsewhere.

`layout_of` says how many ranks verify or score a checkpoint, and how they hold its parameters. Neither the place nor
the ranks affect the result.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from data_contracts.errors import Hung, UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.children import A, Child, LaidOut, RemoteJob
from data_contracts.messages.gang import Launch, RankLayout
from data_contracts.pipeline_spec.base import Placed, Spread, in_same_place
from data_contracts.pipeline_spec.train import SHARDED, is_hsdp, mesh_of
from data_contracts.resolved import Price
from infra import prices
from infra.child import answer_of, run_child
from infra.gang.members import Progress
from infra.gang.membership import Launcher, Placement
from infra.gang.node import LOCAL
from infra.gang.remote_job import RemoteJobRequest, idle_limit, lay_out, run_remote_job, spent
from infra.launchers.kubernetes import KubernetesLauncher
from infra.launchers.slurm import SlurmLauncher
from infra.launchers.ssh import SshLauncher
from infra.orchestrator.gang import PoolLauncher, launch_secret
from infra.quantities import size
from infra.records.handoffs import num_weight_bytes
from infra.store import layout
from infra.usage import cost
from tasks.budgets import budget_guard
from tasks.policies import run_tags
from tasks.run.meter import follow, used_by_gang
from tasks.run.resolve import slug
from tasks.run.run import Run
from tasks.stages.trainings import trained_with

log = logging.getLogger("trainwright")
RANK = "training.score.rank"
Section = Literal["verify", "evaluate"]
# What starts the nodes of a gang that reports at a URI in the run's store, by the name in the spec.
LAUNCHERS: Mapping[str, Callable[[Run, str, Placement], Launcher]] = {
    "local": lambda run, uri, placement: LOCAL,
    "work-pool": lambda run, uri, placement: PoolLauncher(run.store, uri, placement),
    "slurm": lambda run, uri, placement: SlurmLauncher(placement),
    "ssh": lambda run, uri, placement: SshLauncher(placement),
    "kubernetes": lambda run, uri, placement: KubernetesLauncher(placement),
}


@dataclass(frozen=True)
class ScoringLayout:
    """Nodes, ranks of each, and `settings`: how the ranks share the parameters, as a rank reads it."""

    nodes: int
    devices: int
    settings: RankLayout

    @property
    def is_gang(self) -> bool:
        """Whether there are several ranks."""
        return self.nodes * self.devices > 1

    @property
    def shard_ranks(self) -> int:
        """Ranks over which the parameters are sharded; 1 if each holds them whole."""
        if not self.is_gang:
            return 1
        settings = self.settings
        return mesh_of(settings["strategy"], settings["shard_ranks"] or self.devices, self.nodes * self.devices)[1]

    @property
    def planned(self) -> str:
        """The ranks and nodes, for a plan; "" for one process."""
        ranks, nodes = self.nodes * self.devices, f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        return f"{ranks} ranks on {nodes}, {self.settings['strategy']}" if self.is_gang else ""

    @property
    def used(self) -> str:
        """The ranks, for the sentence about a result, after a space; "" for one process."""
        return f" on {self.nodes * self.devices} ranks ({self.settings['strategy']})" if self.is_gang else ""


def layout_of(
    run: Run,
    section: Section,
    train: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    *,
    champion: bool = False,
) -> ScoringLayout:
    """How to verify or score a checkpoint: as the spec says, else as it was trained if its parameters were sharded.

    A champion always has its own layout. On this machine, a checkpoint of more ranks than this run trains with here is
    left to one process unless the spec says otherwise. A data module of the user's is scored by one process.

    Args:
        train: settings that the checkpoint was trained with.
        checkpoint: default: the one that this run will train.

    Raises:
        UsageError: these ranks cannot score it, or a device cannot hold its part of the parameters.
    """
    spec: Spread = getattr(run.spec, section)
    nodes, devices, strategy = (None, None, None) if champion else (spec.nodes, spec.devices, spec.strategy)
    if section == "evaluate" and (train["lightning"].get("data") or run.external):
        return ScoringLayout(1, 1, {})
    shard_ranks = None
    chosen = strategy or train["strategy"]
    if chosen in SHARDED and nodes is devices is None and _is_placed_as_trained(run, section, checkpoint):
        nodes, devices, shard_ranks = _as_trained(run, checkpoint)
    nodes, devices = nodes or 1, devices or 1
    if chosen == "single" and nodes * devices > 1:
        chosen = "ddp"
    if chosen == "hsdp" and not is_hsdp(nodes, devices, shard_ranks):
        chosen = "fsdp"  # one replica is the same as FSDP; with replicas of one rank, each rank would hold the whole
    found = ScoringLayout(
        nodes,
        devices,
        {
            "strategy": chosen,
            "shard_modules": train.get("shard_modules") if chosen in SHARDED else None,
            "shard_ranks": shard_ranks,
            "collective_timeout_s": run.spec.train.collective_timeout_s,
        },
    )
    if checkpoint is not None:
        memory = _memory_of(run, section, train)
        weights = num_weight_bytes(run.store.manifest(checkpoint.ref)) if memory else 0
        refuse_too_large(section, memory, weights, found, champion=champion)
    return found


def layout_in_plan(run: Run, section: Section, checkpoint: Checkpoint | None) -> str:
    """The ranks that would verify or score a checkpoint, or the one that the run will train; "" for one process."""
    train = run.train_settings() if checkpoint is None else trained_with(run.store, checkpoint).train
    return layout_of(run, section, train, checkpoint).planned


def _is_placed_as_trained(run: Run, section: Section, checkpoint: Checkpoint | None) -> bool:
    """Whether as many ranks as trained can be expected where the section runs: a pool's gang may not fit here."""
    train = run.spec.train
    if getattr(run.spec, section).launcher != "local":
        return True
    return train.launcher == "local" and (checkpoint is None or checkpoint.world_size <= train.world_size)


def _as_trained(run: Run, checkpoint: Checkpoint | None) -> tuple[int, int, int | None]:
    """Nodes, devices and shard_ranks of the generation that wrote a checkpoint; one node if its launch is gone."""
    if checkpoint is None:
        train = run.spec.train
        return train.nodes, train.devices, train.shard_ranks
    path = layout.launch(checkpoint.training, checkpoint.generation)
    launch = run.store.find_as(path, Launch.from_json)
    if launch is None or checkpoint.world_size % launch.devices:
        return 1, checkpoint.world_size, None
    shards = launch.settings.get("shard_ranks")  # no seal covers a launch, so it may be anything
    is_one = type(shards) is int and shards > 0 and checkpoint.world_size % shards == 0
    return checkpoint.world_size // launch.devices, launch.devices, shards if is_one else None


def _memory_of(run: Run, section: Section, train: Mapping[str, Any]) -> int:
    """Bytes of a device's memory where a section runs; 0 if unknown: the spec names the machine of the training."""
    if not in_same_place(getattr(run.spec, section), run.spec.train) or prices.on_cpu(train["lightning"]):
        return 0
    machine = prices.catalogue().get(run.spec.train.machine)
    return machine.memory_bytes if machine is not None else 0


def refuse_too_large(section: Section, memory: int, weights: int, ranks: ScoringLayout, *, champion: bool) -> None:
    """UsageError if a rank's part of the parameters is larger than the memory of its device.

    Args:
        memory: of a device; 0 if unknown.
        weights: bytes of the parameters.
    """
    part = -(-weights // ranks.shard_ranks)
    if not memory or part <= memory:
        return
    what, least = "the champion" if champion else "the checkpoint", -(-weights // memory)
    fields = f"{section}.strategy to fsdp on at least {least} devices ({section}.nodes, {section}.devices)"
    who = f"{ranks.settings['strategy']} on {ranks.nodes * ranks.devices} ranks" if ranks.is_gang else "one process"
    raise UsageError(
        f"{section}.strategy: {who} cannot load {what}: {size(part)} of parameters would lie on each device, which "
        f"has {size(memory)}.",
        remedy="Evaluate elsewhere, where it is scored as it was trained." if champion else f"Set {fields}.",
    )


def placement_of(run: Run, section: str, devices: int = 1) -> Placement:
    """Where the nodes of a section run.

    Args:
        devices: of a node, where the section is not `train`.
    """
    spec: Placed = getattr(run.spec, section)
    pool = spec.pool or ""
    return Placement(
        section=section,
        pool=str(run.root / pool) if spec.launcher == "ssh" else pool,
        queue=spec.queue,
        job_variables=spec.job_variables,
        devices=run.spec.train.devices if section == "train" else devices,
        needs_gpus=not prices.on_cpu(run.resolved.lightning),
        labels=run.spec.tags,
        tags=("trainwright", f"pipeline:{slug(run.spec.name)}", f"stage:{section}", *run_tags(run.spec.tags)),
        timeout_s=run.spec.train.rollcall_timeout_s,
    )


def launcher_of(run: Run, section: str, uri: str, devices: int = 1) -> Launcher:
    """What starts the nodes of a section's gang, which reports at `uri` in the store; `devices` as `placement_of`."""
    name = getattr(run.spec, section).launcher
    return LAUNCHERS[name](run, uri, placement_of(run, section, devices))


def refuse_unready(run: Run) -> None:
    """UsageError if a section's nodes cannot be started from here, such as without Slurm or a cluster."""
    for section in ("train", "verify", "evaluate"):
        if getattr(run.spec, section).launcher in ("slurm", "ssh", "kubernetes"):
            launcher_of(run, section, "")


def queued_as(run: Run) -> str:
    """For a plan: how the nodes of a training are asked for in Slurm or Kubernetes; "" with another launcher."""
    train, placement = run.spec.train, placement_of(run, "train")
    if train.launcher == "slurm":
        options = SlurmLauncher(placement).options(train.least_nodes, train.nodes)
        return shlex.join(["sbatch", *(f"--{name}={value}" for name, value in options.items())])
    if train.launcher == "kubernetes":
        return KubernetesLauncher(placement).in_words(train.nodes)
    return ""


def done_by_child(
    run: Run, section: str, name: str, child: Child[Any, A], request: LaidOut, gang: ScoringLayout | None = None
) -> A:
    """A child process's answer to a request; the child runs here, or on a node elsewhere.

    Args:
        name: of this piece of work in the run; the same when the run continues.
        gang: the ranks that share the work; default one process.
    """
    uri = layout.remote_job(run.run_id, name)
    local = getattr(run.spec, section).launcher == "local"
    if local and (gang is None or not gang.is_gang):
        here = request.at(lay_out(run.store, request.needs, run.project))
        return run_here(run, child, here, project=here.project)

    follow(run, section, uri, local=local)

    def show(progress: Progress) -> None:
        if progress.sentence:
            log.info("  %s: %s", section, progress.sentence)

    remote = RemoteJobRequest(
        uri=uri,
        job=RemoteJob.of(child.module, request),
        holder=run.run_id,
        retry=run.spec.retry,
        rollcall_timeout_s=run.spec.train.rollcall_timeout_s,
        withhold=run.withholds,
        secret=launch_secret(),
        hang_s=run.spec.train.hang_timeout_s,
        on_progress=_once(show),
        on_spent=lambda seconds: run.live.add_cost(cost(seconds, _price(run, section))),
        on_usage=lambda usage: used_by_gang(run, section, usage),
        budget_guard=budget_guard(run, section, local=local),
        launcher=launcher_of(run, section, uri, 1 if gang is None else gang.devices),
    )
    if gang is not None and gang.is_gang:
        remote = replace(remote, nodes=gang.nodes, devices=gang.devices, entry=RANK, layout=gang.settings)
    return answer_of(child, run_remote_job(run.store, remote))


def _price(run: Run, section: str) -> Price:
    """What a node of a section costs. An earlier Trainwright recorded one price for all nodes of a run."""
    return run.resolved.price_of(section) or run.resolved.price


def run_here(
    run: Run, child: Child[Any, A], request: Any, *, project: Path | None = None, memory_share: float | None = None
) -> A:
    """Run the child on this machine, again after a hang while `retry.hung` lasts; see `infra.processes.environment`.

    Args:
        project, memory_share: as for `run_child`.
    """
    work = partial(run_child, child, request, project=project, withhold=run.withholds, memory_share=memory_share)
    return again_after_hangs(run, work)


def again_after_hangs(run: Run, work: Callable[..., A]) -> A:
    """What `work` returns, given the `limit` of a child's idle time; again after a hang while `retry.hung` lasts."""
    left = run.spec.retry.hung
    while True:
        try:
            return work(limit=idle_limit(run.store, run.spec.train.hang_timeout_s))
        except Hung as error:
            if not left:
                raise spent(error, run.spec.retry.hung) from error
            left -= 1
            log.warning("tried again (%s): %s", error.cause, error.message)


def _once(show: Any) -> Any:
    """Calls `show` only when the sentence changes."""
    last = ""

    def once(progress: Progress) -> None:
        nonlocal last
        if progress.sentence != last:
            last = progress.sentence
            show(progress)

    return once
