"""What share of a long training's time is effective: two papers' clusters, and our own policy with their failures.

    python benchmarks/effective.py [--quick]

A training is simulated event by event: failures come at random (exponential, by cause, seeded), are detected, a person
is waited for where our code ends the run, the gang restarts, and the work since the last checkpoint is done again. The
two papers are simulated with their own figures only; nothing is fitted. Our policy is the code that trains: `Recovery`
decides with real errors, its limits are the defaults of `Launch`, and `infra.usage` chooses the checkpoint interval.
Nothing here was observed on GPUs or on several machines; what is assumed stands beside each constant.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Protocol

from common import machine

from data_contracts.errors import (
    CorruptError,
    GangIncomplete,
    Hung,
    NodeLost,
    Preempted,
    TrainwrightError,
    UserCodeError,
)
from data_contracts.messages.gang import Launch
from data_contracts.pipeline_spec import RetrySpec
from infra.gang.conductor import REGATHER_S, SETTLE_S, STACKS_S
from infra.gang.members import SLOWEST_TIMES, fitting
from infra.gang.recovery import Recovery
from infra.usage import expected_loss, interval, node_mtbf
from tasks.run.resolve import DEFAULT_S, LEAST_S

DAY_S, HOUR_S = 86_400.0, 3_600.0
DEVICES = 8


# ---- the simulation


@dataclass(frozen=True)
class Cause:
    """A cause of interruptions.

    Attributes:
        per_day: interruptions in a day, of the whole gang.
        kind: how it shows: rank, gpu, machine, hang, bug, corrupt, planned.
        stays: whether the machine fails again at once if it trains again.
    """

    name: str
    per_day: float
    kind: str
    stays: bool = False


@dataclass(frozen=True)
class Stop:
    """What one interruption costs until the first new step, in seconds.

    Attributes:
        again_s: generations that a broken machine ended again.
        person_s: until a person has resumed the run.
        saves_first: whether a checkpoint is saved before the gang ends, so that no work is lost.
    """

    detection_s: float
    restart_s: float
    again_s: float = 0.0
    person_s: float = 0.0
    saves_first: bool = False


class Policy(Protocol):
    """What follows an interruption."""

    def stop(self, cause: Cause, now: float, draw: random.Random) -> Stop:
        """Decide what follows an interruption at `now`, in seconds since the start."""

    @property
    def share(self) -> float:
        """The share of the asked nodes that trains."""

    def grows_at(self) -> float:
        """When the gang can grow next; infinite if it cannot."""

    def grow(self, now: float) -> Stop:
        """Take in the nodes that are back."""


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        every_s: from the start of a checkpoint to that of the next; stall_s: how long the steps wait for one.
        behind_s: from a checkpoint's start until a restart can use it.
    """

    length_s: float
    causes: tuple[Cause, ...]
    every_s: float
    stall_s: float
    behind_s: float = 0.0


@dataclass
class Outcome:
    """Seconds of a simulated training, or of several: effective ones, and lost ones by cause and kind.

    Attributes:
        shares: the effective share of each training.
    """

    effective_s: float = 0.0
    lost_s: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    interruptions: int = 0
    shares: list[float] = field(default_factory=list)

    @property
    def all_s(self) -> float:
        """All time."""
        return self.effective_s + sum(self.lost_s.values())

    @property
    def effective(self) -> float:
        """Effective time as a share of all time."""
        return self.effective_s / self.all_s

    def lost(self, place: int) -> dict[str, float]:
        """Lost time as a share of all time, largest first, by cause (`place` 0) or by kind (1)."""
        shares: dict[str, float] = defaultdict(float)
        for key, seconds in self.lost_s.items():
            shares[key[place]] += seconds / self.all_s
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


def simulate(job: Job, policy: Policy, seed: int) -> Outcome:
    """Simulate a training to the end of its length; a stop that begins before the end is counted whole."""
    draw, outcome, now = random.Random(seed), Outcome(), 0.0
    names, rates = [cause.name for cause in job.causes], [cause.per_day for cause in job.causes]
    causes = dict(zip(names, job.causes, strict=True))
    per_s = sum(rates) / DAY_S
    while now < job.length_s:
        fails_s, grows_s, ends_s = draw.expovariate(per_s), policy.grows_at() - now, job.length_s - now
        trains_s = max(min(fails_s, grows_s, ends_s), 0.0)
        now += trains_s
        if trains_s == ends_s:
            train(outcome, job, trains_s, policy.share, loses_to="")
        elif trains_s < fails_s:
            train(outcome, job, trains_s, policy.share, loses_to="")
            now += charge(outcome, "gang grows", policy.grow(now), math.inf)
        else:
            cause = causes[draw.choices(names, rates)[0]]
            share = policy.share
            stop = policy.stop(cause, now, draw)
            train(outcome, job, trains_s, share, loses_to="" if stop.saves_first else cause.name)
            # Machines fail while the gang restarts, too; then it restarts again.
            while (fails_s := draw.expovariate(per_s)) < stop.restart_s:
                now += charge(outcome, cause.name, stop, fails_s)
                cause = causes[draw.choices(names, rates)[0]]
                stop = policy.stop(cause, now, draw)
            now += charge(outcome, cause.name, stop, math.inf)
    return outcome


def train(outcome: Outcome, job: Job, seconds: float, share: float, *, loses_to: str) -> None:
    """Count a generation's training until it ends, without the work that is lost to a cause ("": none is)."""
    saves = int(seconds / job.every_s)
    stalled_s = min(saves * job.stall_s, seconds)
    worked_s, kept_s = seconds - stalled_s, seconds - stalled_s
    if loses_to:
        usable = max(int((seconds - job.behind_s) / job.every_s), 0)
        kept_s = usable * (job.every_s - job.stall_s)
        outcome.lost_s[loses_to, "lost work"] += worked_s - kept_s
    outcome.lost_s["checkpoints", "checkpoints"] += stalled_s
    outcome.lost_s["fewer nodes", "fewer nodes"] += kept_s * (1 - share)
    outcome.effective_s += kept_s * share


def charge(outcome: Outcome, cause: str, stop: Stop, until_s: float) -> float:
    """Count a stop, whose restart is cut off after `until_s`; returns its length in seconds."""
    parts = {
        "detection": stop.detection_s,
        "broken machine again": stop.again_s,
        "person": stop.person_s,
        "restart": min(stop.restart_s, until_s),
    }
    for kind, seconds in parts.items():
        outcome.lost_s[cause, kind] += seconds
    outcome.interruptions += 1
    return sum(parts.values())


def repeated(job: Job, policy: Callable[[], Policy], seeds: int) -> Outcome:
    """The sum of simulations with different seeds."""
    whole = Outcome()
    for seed in range(seeds):
        one = simulate(job, policy(), seed)
        whole.effective_s += one.effective_s
        for key, seconds in one.lost_s.items():
            whole.lost_s[key] += seconds
        whole.interruptions += one.interruptions
        whole.shares.append(one.effective)
    return whole


# ---- the two papers


class Stated:
    """The policy of a paper: each kind of interruption costs what the paper says.

    Args:
        stops: by kind.
    """

    share = 1.0

    def __init__(self, stops: Mapping[str, Stop]) -> None:
        self._stops = stops

    def stop(self, cause: Cause, now: float, draw: random.Random) -> Stop:
        """The stated cost of this kind."""
        return self._stops[cause.kind]

    def grows_at(self) -> float:
        """Never: spare machines are assumed."""
        return math.inf

    def grow(self, now: float) -> Stop:
        """Never called."""
        raise AssertionError("a stated gang does not grow")


@dataclass(frozen=True)
class BackTest:
    """One reading of a paper.

    Attributes:
        reported: effective share; is_bound: whether the paper only says that it is more.
        is_main: whether this is the reading that counts, chosen before any of them was simulated.
    """

    paper: str
    reading: str
    job: Job
    stops: dict[str, Stop]
    reported: float
    is_bound: bool = False
    is_main: bool = False

    def error(self, simulated: float) -> float:
        """Difference to the reported share, in percentage points; 0 if the reported bound holds."""
        points = 100 * (simulated - self.reported)
        return max(-points, 0.0) if self.is_bound else abs(points)


# ByteRobust (arXiv 2509.16293), the dense job: three months, 9,600 GPUs. Table 4: incidents by how they were resolved.
# Of the 27 implicit ones (15 by the analyzer, 12 by rollback), as many are taken to be losses that are not a number as
# in Table 2 (jobs of more than 2,000 GPUs): 4 of 30. The paper does not say so of this job.
BYTEROBUST_DAYS = 90.0
LONG = 27 * 4 / 30
BYTEROBUST = (
    Cause("explicit failures", 128 / BYTEROBUST_DAYS, "rank"),
    Cause("hangs and slow-downs", (27 - LONG) / BYTEROBUST_DAYS, "hang"),
    Cause("loss not a number", LONG / BYTEROBUST_DAYS, "corrupt"),
    Cause("updates by hand", 20 / BYTEROBUST_DAYS, "planned"),
)
# Detection: a crash 60 s (section 2.2; Table 3 says 2 to 60 s), a hang 10 minutes (section 4.1) and five stacks in
# 50 s (section 5.1). To the restart: Table 6, means; it has no row for hangs, so theirs is that of CUDA errors.
BYTEROBUST_STOPS = {
    "rank": Stop(60.0, 93.0),
    "hang": Stop(650.0, 93.0),
    "corrupt": Stop(60.0, 4_289.0),
    "planned": Stop(0.0, 57.0, saves_first=True),
}
# Section 8.1.1 says about 30 minutes where the caption of Table 3 says about 10.
BYTEROBUST_SLOW_HANG = {**BYTEROBUST_STOPS, "hang": Stop(1_850.0, 93.0)}
# Sections 2.2 and 2.3, practice before ByteRobust: 60 s to detect, 2 to 15 minutes to localise, more than 10 to start.
BYTEROBUST_PRACTICE = {
    **BYTEROBUST_STOPS,
    "rank": Stop(60.0, 510.0 + 600.0),
    "hang": Stop(650.0, 510.0 + 600.0),
}
# A checkpoint at every step: Table 8 has a stall of 0.03 s and 0.71 % less speed in the text, which makes a step of
# about 4.2 s. Of another cluster (L20); the step of this job is not stated.
BYTEROBUST_JOB = Job(BYTEROBUST_DAYS * DAY_S, BYTEROBUST, every_s=0.03 / 0.0071, stall_s=0.03)

# Llama 3 (arXiv 2407.21783), Table 5: unexpected interruptions in 54 days on 16,384 GPUs, and 47 planned ones. `stays`
# is our assumption: a faulty GPU fails again, and so does what silently computes wrong numbers. The kind `machine` is
# gone and must be replaced. Everything else works again after a restart.
LLAMA_DAYS, LLAMA_NODES = 54.0, 16_384 // DEVICES
LLAMA_COUNTS = (
    ("faulty GPU", 148, "gpu", True),
    ("HBM3 memory", 72, "gpu", False),
    ("software bug", 54, "bug", False),
    ("network switch or cable", 35, "hang", False),
    ("host maintenance", 32, "machine", False),
    ("GPU SRAM", 19, "gpu", False),
    ("GPU system processor", 17, "gpu", False),
    ("NIC", 7, "hang", False),
    ("NCCL watchdog", 7, "hang", False),
    ("silent data corruption", 6, "corrupt", True),
    ("GPU thermal or sensor", 6, "gpu", False),
    ("SSD", 3, "machine", False),
    ("power supply", 3, "machine", False),
    ("chassis, IO board", 4, "machine", False),
    ("dependency", 2, "bug", False),
    ("CPU, system memory", 4, "machine", False),
    ("planned", 47, "planned", False),
)
LLAMA = tuple(Cause(name, count / LLAMA_DAYS, kind, stays) for name, count, kind, stays in LLAMA_COUNTS)
LLAMA_MTBF_S = LLAMA_DAYS * DAY_S / sum(count for _, count, _, _ in LLAMA_COUNTS)
# The paper states no time of a restart, of detection or between checkpoints. The nearest stated elsewhere: a restart of
# 16,384 GPUs by the same company (FT-HSDP, arXiv 2602.00277, its figure 2, read by eye), 60 s to detect a crash and ten
# minutes for a hang (ByteRobust), ten minutes for a restart and 2 to 15 to localise (ByteRobust, sections 2.2, 2.3).
LLAMA_RESTART_S, SLOW_RESTART_S, LOCALISE_S = 200.0, 600.0, 510.0
# The pause: 405e9 parameters of 14 bytes (weights in two, optimizer and master weights in twelve) at the paper's
# 2 TB/s; at most 4 GB of each GPU. How much of it the steps wait for is not stated: all of it.
STORE_BYTES_PER_S, GPU_BYTES = 2e12, 4e9
PAUSE_S, LONGEST_PAUSE_S = 405e9 * 14 / STORE_BYTES_PER_S, 16_384 * GPU_BYTES / STORE_BYTES_PER_S


def llama_stops(restart_s: float) -> dict[str, Stop]:
    """The stops of Llama 3 with one time for every restart."""
    crash, hang = Stop(60.0, restart_s), Stop(600.0, restart_s)
    planned = Stop(0.0, restart_s, saves_first=True)
    return {
        "gpu": crash, "bug": crash, "machine": crash, "hang": hang, "corrupt": hang, "planned": planned,
    }  # fmt: skip


def llama_job(pause_s: float, every_s: float | None = None) -> Job:
    """The training of Llama 3 405B; without `every_s`, its checkpoints come at the interval that loses least."""
    chosen_s = interval(pause_s, LLAMA_MTBF_S) if every_s is None else every_s
    return Job(LLAMA_DAYS * DAY_S, LLAMA, chosen_s, pause_s)


def back_tests() -> list[BackTest]:
    """Every reading of the two papers."""
    byterobust = BackTest("ByteRobust", "tables 3 to 8", BYTEROBUST_JOB, BYTEROBUST_STOPS, reported=0.97, is_main=True)
    llama = BackTest(
        "Llama 3", "restart 200 s, pause 2.8 s", llama_job(PAUSE_S), llama_stops(LLAMA_RESTART_S),
        reported=0.90, is_bound=True, is_main=True,
    )  # fmt: skip
    slow = llama_stops(LOCALISE_S + SLOW_RESTART_S)
    return [
        byterobust,
        replace(byterobust, is_main=False, reading="checkpoints not counted", job=replace(BYTEROBUST_JOB, stall_s=0.0)),
        replace(byterobust, is_main=False, reading="hangs seen after 30 min", stops=BYTEROBUST_SLOW_HANG),
        replace(byterobust, is_main=False, reading="practice of section 2", stops=BYTEROBUST_PRACTICE),
        llama,
        replace(llama, is_main=False, reading="pause 33 s", job=llama_job(LONGEST_PAUSE_S)),
        replace(llama, is_main=False, reading="restart 1,110 s", stops=slow),
        replace(llama, is_main=False, reading="and hourly checkpoints", stops=slow, job=llama_job(PAUSE_S, HOUR_S)),
    ]


# ---- our policy

# A killed rank was noticed within 1.2 s on a game day (docs/log/2026-11-26.md), and the first step came at most 27 s
# after the fault: two nodes, two busy cores, a small module.
NOTICED_S, START_S = 1.2, 27.0
# "A Prefect worker polls every 10 s" (`REGATHER_S`).
POLL_S = 10.0
# Nodes that have joined: benchmarks/results/2026-11-30-membership.txt, by the number of nodes up to which it counts.
JOINED_S = {256: 2.0, 1_250: 4.5}
# NCCL between more than 10,000 GPUs: MegaScale (NSDI '24), section 3.5. Ours was never tried.
CONNECT_S = 30.0
# 4 GB of a GPU, the most that Llama 3 states: 500 MB are loaded and verified in 0.6 s, stop the steps for 23 ms and are
# sealed in 0.28 s (benchmarks/results/2026-11-29-checkpoint.txt: two cores). The store that all share is Llama 3's.
LOAD_S, STALL_S, SEALED_S = (seconds * GPU_BYTES / 500e6 for seconds in (0.597, 0.023, 0.282))
# 16 million tokens at 400 TFLOP/s of each of 16,384 GPUs.
STEP_S = 5.9
# Until a person has resumed a run that ended or drained a machine, and until a machine is repaired. Nobody states them.
PERSON_S, REPAIR_S = 1_800.0, DAY_S
# Machines beyond the nodes, as a share of them. Nobody states it: Llama 3's cluster had half as many again.
SPARES = 0.01
ROLLCALL_S = 120.0
ENDLESS = 1_000_000
RAISED = RetrySpec(preempted=ENDLESS, node_lost=ENDLESS, hung=ENDLESS, storage=ENDLESS)


@dataclass(frozen=True)
class Setting:
    """A cluster, a spec, and what is assumed of both.

    Attributes:
        retry: budgets of the spec.
        least_nodes: `train.min_nodes`.
        spares: machines beyond the nodes, as a share of them. A broken one is back after REPAIR_S.
        raises: whether an error of a GPU is taken for the user's, as "CUDA error: unspecified launch failure" is. Else
            it is the machine's, as "CUDA error: uncorrectable ECC error encountered" is (`training.fit.failures`), or
            the rank's process ends without an answer, as when NCCL's watchdog aborts it.
        withdraws: whether CUDA says of a broken device that it is broken, so that another machine is asked for.
        restarts_bugs: whether a software bug ends the process without an answer, so that it is retried.
    """

    nodes: int
    retry: RetrySpec = RAISED
    least_nodes: int | None = None
    spares: float = SPARES
    raises: bool = False
    withdraws: bool = True
    restarts_bugs: bool = False
    person_s: float = PERSON_S
    stall_s: float = STALL_S
    restart_times: float = 1.0


class Ours:
    """Our policy: `Recovery` decides after each error, and the limits are those of `Launch`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        # A global batch that the most and the least nodes share evenly; numbers between them hardly ever do.
        least = setting.least_nodes or setting.nodes
        batch = DEVICES * math.lcm(setting.nodes, least)
        self.launch = Launch(
            training="trainings/simulated-0", nodes=setting.nodes, min_nodes=least, devices=DEVICES,
            train={"global_batch_size": batch},
        )  # fmt: skip
        spares = math.ceil(setting.nodes * setting.spares)
        self.machines = [f"machine-{number}" for number in range(setting.nodes + spares)]
        self.repaired: list[tuple[float, str]] = []
        self._begin()

    @property
    def share(self) -> float:
        """The share of the asked nodes that trains."""
        return self._size() / self.setting.nodes

    def stop(self, cause: Cause, now: float, draw: random.Random) -> Stop:
        """What follows an interruption: detection, a person where the run ends, and the next generation."""
        self._return_repaired(now)
        number = draw.randrange(self._size())
        host = self._available()[number]
        error, detection_s = self._error(cause.kind, number), self.detection_s(cause.kind, draw)
        restart_s, again_s, goes_on = self.restart_s(), 0.0, self._goes_on(error)
        # A broken machine joins again and fails at its first step, until it is left out or a person drains it.
        while cause.stays and goes_on and host not in self.left_out and again_s < self.setting.person_s:
            again_s += restart_s + self.detection_s(cause.kind, draw)
            goes_on = self._goes_on(error)
        if cause.stays or cause.kind == "machine":
            self._replace(host, now)
        person_s = 0.0 if goes_on else self._resumed(now)
        if goes_on and not self._size():
            again_s += ROLLCALL_S
            missing = GangIncomplete("Too few machines are left.")
            person_s = 0.0 if self._goes_on(missing) and self._size() else self._resumed(now)
        planned = isinstance(error, Preempted)
        return Stop(detection_s, restart_s, again_s, person_s, saves_first=planned)

    def grows_at(self) -> float:
        """When as many machines are repaired as make a larger gang; infinite if that is not to be expected."""
        size = self._size()
        for count, (at, _) in enumerate(sorted(self.repaired), 1):
            if self._size(count) > size:
                return at
        return math.inf

    def grow(self, now: float) -> Stop:
        """The next generation, after a checkpoint, with the machines that are repaired."""
        self._goes_on(Preempted("Nodes that were missing have come.", details={"grows": True}))
        self._return_repaired(now)
        return Stop(0.0, self.restart_s(), saves_first=True)

    @property
    def left_out(self) -> list[str]:
        """Hosts that `Recovery` has left out."""
        return [*self.recovery.retries.left_out, *self.recovery.withdrawn]

    def _begin(self) -> None:
        self.recovery = Recovery(self.setting.retry, self.launch, [])

    def _available(self) -> list[str]:
        """The machines that may train."""
        left_out = set(self.left_out)
        return [host for host in self.machines if host not in left_out] if left_out else self.machines

    def _size(self, more: int = 0) -> int:
        """How many machines train, if there were so many more."""
        most = min(len(self._available()) + more, self.recovery.nodes)
        return fitting(self.launch, most, self.launch.least_nodes)

    def _goes_on(self, error: TrainwrightError) -> bool:
        """Whether another generation follows by itself."""
        try:
            self.recovery.after(error, dict(enumerate(self._available())), micro_batch=0)
        except TrainwrightError:
            return False
        return True

    def _resumed(self, now: float) -> float:
        """Let a person resume the run with new budgets, once there are machines; returns the time until then."""
        # This also lets those take part again that were left out.
        self._begin()
        until = now + self.setting.person_s
        while len(self.machines) < self.launch.least_nodes:
            at, host = min(self.repaired)
            self.repaired.remove((at, host))
            self.machines.append(host)
            until = max(until, at)
        return until - now

    def _replace(self, host: str, now: float) -> None:
        """Take a machine away and have it repaired."""
        self.machines.remove(host)
        self.repaired.append((now + REPAIR_S, f"{host}, repaired"))

    def _return_repaired(self, now: float) -> None:
        self.machines += [host for at, host in self.repaired if at <= now]
        self.repaired = [(at, host) for at, host in self.repaired if at > now]

    def _error(self, kind: str, number: int) -> TrainwrightError:
        """The error that our code makes of a kind of interruption."""
        raised = (kind == "gpu" and self.setting.raises) or (kind == "bug" and not self.setting.restarts_bugs)
        if raised:
            return UserCodeError("The user's code raised an error.", details={"node": number})
        if kind == "corrupt":
            return CorruptError("A replica has drifted.")
        if kind == "hang":
            # The fabric of the GPUs is not the network that nodes probe, so all ranks wait and no node is named.
            return Hung("All ranks wait for each other inside a collective.")
        if kind == "planned":
            return Preempted("Nodes are asked to stop.")
        says = kind == "gpu" and self.setting.withdraws
        return NodeLost("A node is lost.", details={"node": number, "silent": kind == "machine", "broken": says})

    def detection_s(self, kind: str, draw: random.Random) -> float:
        """From the fault to the end of the generation, in seconds."""
        launch = self.launch
        if kind == "machine":
            # Its last heartbeat came some time before.
            return launch.silence_s - draw.uniform(0, launch.beat_s) + SETTLE_S
        if kind == "hang":
            return max(launch.hang_s, SLOWEST_TIMES * STEP_S) + launch.beat_s + STACKS_S
        if kind == "corrupt":
            # At the next checkpoint, and the steps until then are lost.
            return every_s(self.setting) / 2
        if kind == "planned":
            return STEP_S
        return NOTICED_S + SETTLE_S

    def restart_s(self) -> float:
        """From the end of a generation to the first new step of the next, in seconds."""
        joined_s = next(seconds for nodes, seconds in JOINED_S.items() if self.setting.nodes <= nodes)
        load_s = max(LOAD_S, shared_s(self.setting.nodes))
        waits_s = POLL_S if self.setting.spares else REGATHER_S
        return self.setting.restart_times * (START_S + waits_s + joined_s + CONNECT_S + load_s + STEP_S)


def shared_s(nodes: int) -> float:
    """Seconds in which the store gives or takes the checkpoint of all GPUs."""
    return nodes * DEVICES * GPU_BYTES / STORE_BYTES_PER_S


def every_s(setting: Setting) -> float:
    """The interval that `checkpoint: auto` chooses where no failure is recorded yet."""
    return max(interval(setting.stall_s, node_mtbf(0, 0.0) / setting.nodes), LEAST_S)


def our_job(setting: Setting) -> Job:
    """54 days with Llama 3's failures by node."""
    causes = tuple(replace(cause, per_day=cause.per_day * setting.nodes / LLAMA_NODES) for cause in LLAMA)
    behind_s = setting.stall_s + max(SEALED_S, shared_s(setting.nodes))
    return Job(LLAMA_DAYS * DAY_S, causes, every_s(setting), setting.stall_s, behind_s)


def settings(nodes: int) -> dict[str, Setting]:
    """Our policy as it is, with one change after another; and with `min_nodes`, with spares and without."""
    today = Setting(nodes)
    least = nodes * 24 // 25
    return {
        "today": today,
        "gpu_errors_are_bugs": replace(today, raises=True),
        "broken_not_replaced": replace(today, withdraws=False),
        "bugs_retried": replace(today, restarts_bugs=True),
        "spares_and_min_nodes": replace(today, least_nodes=least),
        "no_spares_shrinks": replace(today, spares=0.0, least_nodes=least),
        "no_spares_not_replaced": replace(today, withdraws=False, spares=0.0, least_nodes=least),
    }


def knobs(nodes: int) -> dict[str, tuple[Setting, Job]]:
    """What one assumption or setting more or less costs."""
    today = Setting(nodes)
    changed = {
        "today, a person in 10 min": replace(today, person_s=600.0),
        "today, a person in 2 h": replace(today, person_s=7_200.0),
        "today, restart twice as long": replace(today, restart_times=2.0),
        "today, stall 10 times": replace(today, stall_s=10 * STALL_S),
        "today, default budgets": replace(today, retry=RetrySpec()),
        **{f"today, {share:.1%} of spares": replace(today, spares=share) for share in (0.004, 0.008, 0.02, 0.04)},
    }
    cases = {name: (setting, our_job(setting)) for name, setting in changed.items()}
    # Where no run has measured a checkpoint yet.
    cases["today, a checkpoint in 10 min"] = (today, replace(our_job(today), every_s=DEFAULT_S))
    return cases


# ---- the report


def formula_error(seeds: int) -> float:
    """The largest difference to Daly's formula over three gangs of 2,000 nodes, in percentage points.

    Their rate and times are those of Kokolis et al. (arXiv 2410.21680): 6.5 failures in 1,000 node-days.
    """
    mtbf_s = DAY_S / (2_000 * 6.5e-3)
    worst = 0.0
    for every, stall_s, restart_s in ((3_600.0, 0.0, 300.0), (300.0, 0.0, 300.0), (1_800.0, 60.0, 600.0)):
        job = Job(365 * DAY_S, (Cause("a node", DAY_S / mtbf_s, "rank"),), every, stall_s)
        simulated = repeated(job, partial(Stated, {"rank": Stop(0.0, restart_s)}), seeds)
        worst = max(worst, abs(1 - simulated.effective - expected_loss(every, stall_s, mtbf_s, restart_s)))
    return 100 * worst


def shown(outcome: Outcome) -> str:
    """The effective share, with the smallest and the largest of a seed."""
    return f"{outcome.effective:>8.2%} ({min(outcome.shares):.2%}, {max(outcome.shares):.2%})"


def show_losses(outcome: Outcome, names: tuple[str, ...] = ("cause", "kind")) -> None:
    """Print where a training's time went; less than 0.05 % is not shown."""
    for name in names:
        lost = outcome.lost(("cause", "kind").index(name))
        shares = [f"{what} {100 * share:.1f}" for what, share in lost.items() if share >= 0.0005]
        print(f"      lost by {name}, %: {', '.join(shares)}")


def back_test(seeds: int) -> dict[str, float]:
    """Simulate and print all readings of the two papers."""
    print("paper       reading                       stops  simulated (least, most)      reported  difference  counts")
    errors: dict[bool, list[float]] = {True: [], False: []}
    figures: dict[str, float] = {}
    for test in back_tests():
        outcome = repeated(test.job, partial(Stated, test.stops), seeds)
        error = test.error(outcome.effective)
        errors[test.is_main].append(error)
        print(
            f"{test.paper:11} {test.reading:27} {outcome.interruptions / seeds:>7.0f} {shown(outcome):26}"
            f"{'>' if test.is_bound else ' '}{test.reported:>7.0%} {error:>8.2f} pp  {'yes' if test.is_main else 'no'}"
        )
        if test.is_main:
            show_losses(outcome)
            figures[f"{test.paper.lower().replace(' ', '_')}_simulated"] = round(outcome.effective, 4)
    return {
        "backtest_error": round(max(errors[True]), 2),
        "backtest_error_worst": round(max(max(errors[True]), max(errors[False])), 2),
        **figures,
    }


def show_times(nodes: int) -> None:
    """Print what our policy takes to detect and to restart."""
    policy, draw = Ours(Setting(nodes)), random.Random(0)
    means = {kind: fmean(policy.detection_s(kind, draw) for _ in range(100)) for kind in ("rank", "machine", "hang")}
    detection = ", ".join(f"{kind} {seconds:.0f} s" for kind, seconds in means.items())
    every = every_s(Setting(nodes))
    print(f"\n{nodes * DEVICES:,} GPUs: a checkpoint every {every:.0f} s with a stall of {STALL_S:.2f} s")
    print(f"  restart {policy.restart_s():.0f} s; detection: {detection}")


def our_policy(sizes: tuple[int, ...], seeds: int) -> dict[str, float]:
    """Simulate and print our policy at several sizes."""
    figures: dict[str, float] = {}
    for nodes in sizes:
        show_times(nodes)
        for name, setting in settings(nodes).items():
            outcome = repeated(our_job(setting), partial(Ours, setting), seeds)
            key = f"effective_{nodes * DEVICES}" + ("" if name == "today" else f"_{name}")
            figures[key] = round(outcome.effective, 4)
            print(f"  {name:26} {shown(outcome)}  {outcome.interruptions / seeds:.0f} stops")
            show_losses(outcome, ("cause", "kind") if name == "today" else ("kind",))
    return figures


def show_knobs(nodes: int, seeds: int) -> None:
    """Simulate and print what one assumption or setting costs."""
    print(f"\n{nodes * DEVICES:,} GPUs, one figure changed")
    for name, (setting, job) in knobs(nodes).items():
        print(f"  {name:46} {shown(repeated(job, partial(Ours, setting), seeds))}")


def main() -> None:
    """Simulate, print tables and, as the last line, the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, two sizes, no knobs")
    quick = parser.parse_args().quick
    seeds = 1 if quick else 10
    print(machine())
    print(f"{seeds} seeds; every share is of all time\n")
    figures = {"formula_error": round(formula_error(seeds), 2), **back_test(seeds)}
    began = time.perf_counter()
    simulate(our_job(Setting(1_250)), Ours(Setting(1_250)), seed=0)
    figures["days_54_s"] = round(time.perf_counter() - began, 3)
    figures |= our_policy((125, 1_250) if quick else (125, 500, 1_250), seeds)
    if not quick:
        show_knobs(1_250, seeds)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
