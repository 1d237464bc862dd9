"""How a conductor carries clusters that are not here: the real control code, on a clock of its own.

    python benchmarks/cluster.py [--quick]

Nodes, their ranks and the store's answers are simulated; the roll-call, the following of nodes, the search for hung and
silent ones, the ledger, the lease, the first node's look at the store and the end of a generation are the code that
trains. A call of the store makes the requests that `infra.store.s3` makes for it; each takes the stated time, of the
simulation's clock, and is counted and priced as S3's. What the process needs of a real core is measured.

What no simulation knows is measured with real connections (`membership.py`), flow runs of a real Prefect server and
eight real nodes (`cluster_real.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import tempfile
import time as real_time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from common import machine

DEVICES = 8
TRAINING = "trainings/k-0"
# S3 in us-east-1, in USD for a request (2026-11); a list costs as a PUT does, a DELETE nothing.
PRICES = {"put": 5e-6, "get": 0.4e-6}
# The requests of a call: a write that decides is read back (`S3Backend._conditional`).
REQUESTS = {"create": ("put", "get"), "replace": ("put", "get"), "names": ("put",), "walk": ("put",), "delete": ()}
DAY_S, STORE_S = 86_400.0, 0.03
# Wanted at 1,250 nodes.
MOST = {"cpu": 0.2, "found_s": 20.0, "rollcall_s": 5.0, "launch_s": 60.0, "requests_per_s": 20.0, "usd_a_day": 20.0}


class Over(Exception):
    """A simulation has ended."""


class Clock:
    """The time of a simulation, which passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        """Seconds of the simulation."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Beside:
    """A process or thread beside the conductor, which it does not hold up: it does its work on a time of its own.

    Args:
        work: done again and again, `every_s` after it ended.
    """

    def __init__(self, clock: Clock, every_s: float, work: Callable[[], object]) -> None:
        self.clock, self.every_s, self.work = clock, every_s, work
        self.at = clock.now + every_s

    def catch_up(self) -> None:
        """Do what is due by now."""
        now = self.clock.now
        while self.at <= now:
            self.clock.now = self.at
            self.work()
            self.at = self.clock.now + self.every_s
        self.clock.now = now


class Bucket:
    """A store's backend as S3's: its requests take time, fail by chance, and are counted.

    Args:
        inner: does the work, in a folder.
        errors: the share of the requests that fail.
    """

    is_local = False

    def __init__(self, inner: Any, clock: Clock, latency_s: float, errors: float) -> None:
        self.inner, self.clock, self.latency_s, self.errors = inner, clock, latency_s, errors
        self.requests: Counter[str] = Counter()
        self._draw = random.Random(1)

    def __getattr__(self, name: str) -> Any:
        from data_contracts.errors import StorageUnavailable

        call = getattr(self.inner, name)
        if not callable(call):
            return call

        def ask(*arguments: Any, **more: Any) -> Any:
            for kind in REQUESTS.get(name, ("get",)):
                self.requests[kind] += 1
                self.clock.sleep(self.latency_s)
                if self._draw.random() < self.errors:
                    raise StorageUnavailable("The simulated store does not answer.")
            return call(*arguments, **more)

        return ask


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Attributes:
        errors: the share of the store's requests that fail.
        train_s: how long is trained, unless a node fails; joins_s: within which nodes join, by chance.
        step_s: of a step of all ranks; prints_s: so often a rank prints.
    """

    nodes: int
    devices: int = DEVICES
    latency_s: float = STORE_S
    errors: float = 0.0
    train_s: float = 600.0
    joins_s: float = 20.0
    step_s: float = 1.0
    prints_s: float = 10.0
    seed: int = 1


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a node, and when, in seconds after the roll-call.

    Attributes:
        kind: `silent`: it says nothing more, as if stopped; `hung`: its ranks stand still; `ended`: it is gone, as what
            runs it says.
    """

    node: int
    after_s: float
    kind: str


@dataclass
class World:
    """Nodes that join, step together and fail as planned.

    Attributes:
        met: when they were told their places; told: when they were told to end. 0 before.
        own_s: real seconds that the simulation itself took.
    """

    clock: Clock
    setting: Setting
    fault: Fault | None
    draw: random.Random
    met: float = 0.0
    told: float = 0.0
    own_s: float = 0.0
    beside: list[Beside] = field(default_factory=list)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Count what happens here as the simulation's own."""
        began = real_time.process_time()
        yield
        self.own_s += real_time.process_time() - began

    def fails_at(self, *kinds: str) -> float:
        """When the fault comes, if it is of one of these kinds."""
        wanted = self.met and self.fault is not None and self.fault.kind in kinds
        return self.met + self.fault.after_s if wanted and self.fault is not None else math.inf


def membership(world: World, store: Any, launch: Any) -> Any:
    """The nodes of a generation in this world."""
    from data_contracts.errors import Cancelled, StorageUnavailable
    from data_contracts.messages.gang import CancelMarker, Heartbeat, Joined, Place, RankReport
    from infra.gang.hub import Ended, News
    from infra.gang.membership import Membership
    from infra.gang.rank_files import RankFiles
    from infra.gang.ranks import RankLogs
    from infra.store.lease import ConductorWatch

    setting, draw = world.setting, world.draw

    class Simulated(Membership):
        def __init__(self) -> None:
            hub: Any = SimpleNamespace(left=set())
            super().__init__(store, launch, hub)
            self.joins: dict[int, float] = {}
            self.joined: dict[int, float] = {}
            self.places: dict[int, list[RankReport]] = {}
            self.moments = [launch.beat_s * draw.random() for _ in range(launch.nodes)]
            self.heard, self.is_ended = world.clock.now, False
            # Else the last of many nodes would always join just before the conductor looks.
            self.late_s = draw.random()

        def start(self, nodes: Collection[int]) -> None:
            for node in nodes:
                if node not in self.joins:
                    self.joins[node] = world.clock.now + self.late_s + setting.joins_s * draw.random()

        def news(self) -> list[News]:
            with world.own():
                for other in world.beside:
                    other.catch_up()
                now = world.clock.now
                came = [(at, node) for node, at in self.joins.items() if node not in self.joined and at <= now]
                fresh = [News(node, at, self._joined(node, at)) for at, node in sorted(came)]
                if not self.is_ended and (at := world.fails_at("ended")) <= now and world.fault is not None:
                    self.is_ended = True
                    fresh.append(News(world.fault.node, at, Ended("was ended by SIGKILL")))
                return fresh + list(self._beats(now))

        def _joined(self, node: int, at: float) -> Joined:
            self.joined[node] = at
            return Joined(node=node, address="10.0.0.1", port=1, host=f"h{node}", instance=str(node))

        def _beats(self, now: float) -> Iterator[News]:
            every, since, self.heard = launch.beat_s, self.heard, now
            quiet, quiet_from = -1 if world.fault is None else world.fault.node, world.fails_at("silent", "ended")
            for node in self.joined:
                # Each node has its own moment in the interval.
                at = now - (now - self.moments[node]) % every
                if at > since and not (node == quiet and at >= quiet_from):
                    ranks = self._reports(node, at) if node in self.places else []
                    yield News(node, at, Heartbeat.model_construct(time=at, ranks=ranks))

        def _reports(self, node: int, at: float) -> list[RankReport]:
            # All ranks wait for one that stands still.
            steps = int((min(at, world.fails_at("silent", "hung", "ended")) - world.met) / setting.step_s)
            is_hung = world.fault is not None and node == world.fault.node and at >= world.fails_at("hung")
            now = {
                "step": steps, "steps": steps, "samples": steps, "moves": 4 * steps, "own_s": 0.4 * steps,
                "place": "forward" if is_hung else "backward",
            }  # fmt: skip
            return [report.model_copy(update=now) for report in self.places[node]]

        def tell(self, node: int, message: Any) -> None:
            if isinstance(message, Place):
                world.met = world.met or world.clock.now
                first = setting.devices * message.place
                self.places[node] = [
                    RankReport.model_construct(rank=first + device, phase="training", checkpoints=[], metrics={})
                    for device in range(setting.devices)
                ]
                if message.place == 0:
                    world.beside.append(Beside(world.clock, launch.poll_s, self._first_node()))
            elif isinstance(message, CancelMarker):
                world.told = world.told or world.clock.now

        def _first_node(self) -> Callable[[], None]:
            """What the first node asks of the store, by its own code; the others ask only while they are cut off."""
            folder = Path(store.inner_uri, f"scratch-{launch.generation}")
            folder.mkdir()
            files = [RankFiles(folder, rank) for rank in range(setting.devices)]
            watch, logs = ConductorWatch(store, launch), RankLogs(store, (launch.training, launch.generation, 0))
            printed = [-math.inf]

            def tick() -> None:
                if world.clock.now - printed[0] >= setting.prints_s:
                    printed[0] = world.clock.now
                    for rank in files:
                        with rank.log.open("a") as log:
                            log.write("a step\n")
                with suppress(StorageUnavailable, Cancelled):
                    watch.look(hears=True)
                    logs.add(files)

            return tick

        def ended(self) -> Mapping[int, Ended]:
            return {}

        def status(self, node: int) -> str:
            return ""

        def log(self, node: int) -> str:
            return ""

        def end(self, nodes: Collection[int]) -> None:
            return None

    return Simulated()


@contextmanager
def on_clock(clock: Clock) -> Iterator[None]:
    """Let the control code live by this clock."""
    from infra.gang import conductor, members, ranks
    from infra.store import lease

    with (
        mock.patch.object(conductor, "time", clock),
        mock.patch.object(members, "time", clock),
        mock.patch.object(ranks, "time", clock),
        mock.patch.object(lease, "time", clock),
    ):
        yield


class Training:
    """A training whose generations are simulated one after another, within `on_clock`."""

    def __init__(self, setting: Setting, clock: Clock, folder: str) -> None:
        from data_contracts.errors import StorageUnavailable
        from infra.store import Lease, Store, layout, open_store

        self.setting, self.clock, self.draw = setting, clock, random.Random(setting.seed)
        self.bucket = Bucket(open_store(folder)._backend, clock, setting.latency_s, setting.errors)
        backend: Any = self.bucket
        self.store: Any = Store(backend, {}, schema=3)
        self.store.inner_uri = folder
        self.generations = 0
        self.bucket.errors = 0.0
        lease = Lease.take(self.store, layout.lease(TRAINING), "simulated")
        self.bucket.errors = setting.errors

        def renew() -> None:
            with suppress(StorageUnavailable):
                lease.renew()

        self.keeper = Beside(clock, 10.0, renew)

    def generation(self, fault: Fault | None = None, until_s: float = math.inf) -> dict[str, Any]:
        """The next one: its roll-call, and training until its end, until a fault is found, or until `until_s`."""
        from data_contracts.errors import Interrupted
        from data_contracts.messages.gang import Launch
        from infra.gang.conductor import Generation, write_launch

        world = World(self.clock, self.setting, fault, self.draw, beside=[self.keeper])
        hub: Any = SimpleNamespace(at=None, codes=None)
        setting = self.setting
        launch = write_launch(
            self.store,
            Launch(training=TRAINING, generation=self.generations, nodes=setting.nodes, devices=setting.devices),
            hub,
        )
        assert launch is not None, "nobody else takes a number"
        self.generations += 1
        nodes = membership(world, self.store, launch)
        spent_s, requests, met = [0.0], Counter[str](), [0.0]

        def check() -> None:
            if world.met and not met[0]:
                met[0], spent_s[0] = self.clock.now, real_time.process_time() - world.own_s
                requests.update(self.bucket.requests)
            if self.clock.now > min(until_s, world.met + setting.train_s if world.met else math.inf):
                raise Over

        generation = Generation(nodes, commit=lambda _: None, check=check, on_progress=lambda _: None)
        cause, blamed = "", None
        try:
            generation.run(600)
        except Over:
            pass
        except Interrupted as error:
            cause, blamed = error.cause, error.details.get("node")
        if not met[0]:
            return {"cause": cause, "is_wrong": bool(cause), "trained_s": 0.0}
        trained_s = self.clock.now - met[0]
        found_s = world.told - world.met - fault.after_s if cause and fault is not None else 0.0
        made = self.bucket.requests - requests
        return {
            "rollcall_s": world.met - max(nodes.joined.values()),
            "cpu": (real_time.process_time() - world.own_s - spent_s[0]) / trained_s,
            "found_s": found_s,
            "cause": cause,
            "is_wrong": bool(cause) and (fault is None or blamed != fault.node or found_s < 0),
            "requests_per_s": made.total() / trained_s,
            "usd_a_day": sum(made[kind] * PRICES[kind] for kind in PRICES) / trained_s * DAY_S,
            "trained_s": trained_s,
        }


@contextmanager
def training(setting: Setting) -> Iterator[Training]:
    """A simulated training, whose control code lives by its clock meanwhile."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, on_clock(clock):
        yield Training(setting, clock, folder)


def follow(setting: Setting, kind: str = "") -> dict[str, Any]:
    """One generation, perhaps with a fault of this kind at half of its training."""
    fault = Fault(setting.nodes // 2, setting.train_s / 2, kind) if kind else None
    with training(setting) as simulated:
        return simulated.generation(fault)


def fail_by_rate(setting: Setting, per_node_day: float, hours: float) -> dict[str, Any]:
    """A training of some hours whose nodes fail at a rate, in generations one after another."""
    draw = random.Random(setting.seed)
    rows: list[dict[str, Any]] = []
    with training(replace(setting, train_s=math.inf)) as simulated:
        began = simulated.clock.now
        end = began + 3600 * hours
        while simulated.clock.now < end:
            after_s = draw.expovariate(setting.nodes * per_node_day / DAY_S)
            fault = Fault(draw.randrange(setting.nodes), after_s, draw.choice(("silent", "ended", "hung")))
            rows.append({"kind": fault.kind, **simulated.generation(fault, end)})
        total, seconds = simulated.bucket.requests, simulated.clock.now - began
    ended = [row for row in rows if row["cause"]]
    return {
        "failures": len(ended),
        "false_alarms": sum(row["is_wrong"] for row in ended),
        "trained": sum(row["trained_s"] - row.get("found_s", 0.0) for row in rows) / seconds,
        "requests_per_s": total.total() / seconds,
        "usd_a_day": sum(total[kind] * PRICES[kind] for kind in PRICES) / seconds * DAY_S,
        "found": {
            kind: statistics.median(times)
            for kind in ("silent", "ended", "hung")
            if (times := [row["found_s"] for row in ended if row["kind"] == kind])
        },
    }


# ---- what is measured and printed

CASES = {
    "": {},
    "silent": {},
    "hung": {},
    "slow store": {"latency_s": 10 * STORE_S},
    "1 % errors": {"errors": 0.01},
}


def simulate(sizes: Sequence[int], train_s: float) -> dict[str, float]:
    """Generations of each size, with and without a fault; prints a row for each."""
    figures: dict[str, float] = {"false_alarms": 0}
    print("\n nodes        case     cpu    found  requests/s  USD/day  cause")
    for nodes in sizes:
        for case, changes in CASES.items():
            row = follow(Setting(nodes, train_s=train_s, **changes), case if case in ("silent", "hung") else "")
            print(
                f"{nodes:>6,} {case or '-':>11} {row['cpu']:>7.4f} {row['found_s']:>7.1f}s "
                f"{row['requests_per_s']:>11.2f} {row['usd_a_day']:>8.2f}  {row['cause']}",
                flush=True,
            )
            figures["false_alarms"] += row["is_wrong"]
            if case in ("silent", "hung"):
                figures[f"{'found_s' if case == 'silent' else 'hung_s'}_{nodes}"] = row["found_s"]
            elif not case:
                figures |= {f"{name}_{nodes}": row[name] for name in ("cpu", "requests_per_s", "usd_a_day")}
        figures[f"rollcall_s_{nodes}"] = show_rollcalls(nodes)
    figures["requests_1250_vs_8"] = figures[f"requests_per_s_{sizes[-1]}"] / figures[f"requests_per_s_{sizes[0]}"]
    return figures


def show_rollcalls(nodes: int) -> float:
    """Roll-calls, which depend on the moment in the conductor's cycle at which the last node joins; their median."""
    waits = [follow(Setting(nodes, train_s=1.0, seed=seed))["rollcall_s"] for seed in range(9)]
    middle = statistics.median(waits)
    most = f"nine seeds, at most {max(waits):.2f} s"
    print(f"{nodes:>6,}  roll-call: {middle:.2f} s after the last node has joined ({most})", flush=True)
    return middle


def show_failures(setting: Setting, per_node_day: float, hours: float) -> dict[str, float]:
    """Nodes that fail at a rate."""
    row = fail_by_rate(setting, per_node_day, hours)
    kinds = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in row["found"].items())
    print(
        f"\nfailures by rate: {setting.nodes} nodes, {per_node_day:g} a node and day (a thousand times "
        f"Kokolis et al., arXiv 2410.21680), {hours:g} hours: {row['failures']} failures, "
        f"{row['false_alarms']} found wrongly;\nfound after: {kinds}; "
        f"{100 * row['trained']:.1f} % of the time trained; {row['requests_per_s']:.2f} requests/s, "
        f"{row['usd_a_day']:.2f} USD/day"
    )
    return {"failures": row["failures"], "failures_found_wrongly": row["false_alarms"]}


def measure_launch(sizes: Sequence[int], rounds: int) -> dict[str, float]:
    """Flow runs and connections of gangs, each measured by itself; prints the parts and their sum."""
    from importlib.metadata import version

    from cluster_real import launches, medians
    from membership import trial

    names = ("prefect", "sqlalchemy", "websockets")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    print(f"\nlaunch; of the largest, medians of {rounds}: {versions}, SQLite")
    print(" nodes  created    asked   joined     sum   marked, each   all")
    with tempfile.TemporaryDirectory() as folder:
        launched = launches(sizes, rounds, Path(folder))
    figures: dict[str, float] = {}
    for nodes, row in launched.items():
        joined = medians([trial("hub", nodes, 10.0) for _ in range(rounds if nodes == sizes[-1] else 1)])
        total = row["created_s"] + row["asked_s"] + joined["joined_s"]
        print(
            f"{nodes:>6,} {row['created_s']:>7.2f}s {row['asked_s']:>7.2f}s {joined['joined_s']:>7.2f}s {total:>6.1f}s "
            f"{row['mark_s']:>13.3f}s {nodes * row['mark_s']:>4.0f}s",
            flush=True,
        )
        figures |= {f"created_s_{nodes}": row["created_s"], f"asked_s_{nodes}": row["asked_s"]}
        figures |= {f"joined_s_{nodes}": joined["joined_s"], f"launch_s_{nodes}": total}
        figures |= {f"marked_s_{nodes}": nodes * row["mark_s"]}
        figures |= {f"hub_cpu_{nodes}": joined["cpu"], f"states_cpu_{nodes}": row["states_cpu"]}
    figures["launch_s"] = figures[f"launch_s_{sizes[-1]}"]
    print(
        "created: from the first request until all flow runs are there and followed (`FlowRunStates`); asked: until a\n"
        "worker's request for runs is answered, which gets at most 200; joined: connections of simulated members\n"
        "(`membership.py`). Not in the sum: marking a run as pending, as its worker does (4 of them, one after\n"
        "another; then the product for all nodes), what the nodes' flow runs ask of the server after that, and\n"
        "starting the nodes' processes, which two cores cannot."
    )
    return figures


def show_cores(figures: dict[str, float], nodes: int) -> None:
    """What the conductor's process needs of a core in all."""
    parts = {"control": "cpu", "connections": "hub_cpu", "states of flow runs": "states_cpu"}
    shares = {what: figures[f"{name}_{nodes}"] for what, name in parts.items()}
    figures["cores"] = sum(shares.values())
    print(
        f"\nof a core, {nodes:,} nodes: {', '.join(f'{what} {share:.3f}' for what, share in shares.items())}; "
        f"together {figures['cores']:.3f}. The parts are measured in processes of their own."
    )


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Of the power of the size that fits the values best, by least squares on logarithms."""
    slope, _ = statistics.linear_regression([math.log(size) for size in sizes], [math.log(value) for value in values])
    return slope


def show_slopes(figures: dict[str, float], sizes: Sequence[int]) -> None:
    """Print how each figure grows with the nodes, beside n log n, and note those that grow faster."""
    pairs = [sizes[at : at + 2] for at in range(len(sizes) - 1)]
    print(f"\n{'exponents':<16}" + "".join(f"{f'{low:,} to {high:,}':>15}" for low, high in pairs) + f"{'all':>8}")

    def line(name: str, values: Sequence[float]) -> float:
        near = [exponent(pair, values[at : at + 2]) for at, pair in enumerate(pairs)]
        whole = exponent(sizes, values)
        print(f"{name:<16}" + "".join(f"{slope:>15.2f}" for slope in near) + f"{whole:>8.2f}")
        return whole

    most = line("n log n", [nodes * math.log(nodes) for nodes in sizes])
    above = []
    for name in ("rollcall_s", "cpu", "found_s", "hung_s", "requests_per_s", "usd_a_day", "launch_s", "hub_cpu"):
        if all(f"{name}_{nodes}" in figures for nodes in sizes):
            figures[f"exponent_{name}"] = line(name, [figures[f"{name}_{nodes}"] for nodes in sizes])
            above += [name] if figures[f"exponent_{name}"] > most else []
    figures["above_n_log_n"] = len(above)
    print(f"above n log n over all sizes: {', '.join(above) or 'none'}")


def agree(train_s: float, rounds: int, rollcalls: int) -> dict[str, float]:
    """Eight real nodes beside eight simulated ones."""
    from cluster_real import nodes_here

    real = nodes_here(8, 0.025, train_s, rounds, rollcalls)
    setting = Setting(8, devices=1, latency_s=real["latency_s"], step_s=0.5, joins_s=5.0, prints_s=math.inf)
    seeds = range(25)
    trained = [follow(replace(setting, train_s=train_s, seed=seed)) for seed in seeds]
    silent = [follow(replace(setting, train_s=40.0, seed=seed), "silent") for seed in seeds]
    simulated = {
        "requests_per_s": statistics.median(row["requests_per_s"] for row in trained),
        "found_s": statistics.median(row["found_s"] for row in silent),
        "rollcall_s": statistics.median(row["rollcall_s"] for row in trained),
    }
    print(
        f"\n8 real nodes with one rank, a request to the store takes {1000 * real['latency_s']:.0f} ms; medians of "
        f"{rounds} generations, of the\nroll-call of {rounds + rollcalls}; simulated: medians of {len(seeds)} seeds\n"
        f"{'':<16}{'real':>8}{'simulated':>11}{'ratio':>7}"
    )
    figures: dict[str, float] = {}
    for name, value in simulated.items():
        figures[f"vs_real_{name}"] = value / real[name]
        print(f"{name:<16}{real[name]:>8.3f}{value:>11.3f}{value / real[name]:>7.2f}")
    worst = max(abs(ratio - 1) for ratio in figures.values())
    print(f"largest difference {100 * worst:.0f} % (wanted: 20)")
    return figures


def main() -> None:
    """Simulate and measure, print tables and, as the last line, the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="at most 64 nodes, shorter trainings, all once")
    arguments = parser.parse_args()
    quick = arguments.quick
    sizes = (8, 64) if quick else (8, 64, 256, 1_250)
    print(machine())
    if quick:
        print(f"--quick: {sizes[-1]} nodes take the place of 1,250, in the names of figures, too")
    with tempfile.TemporaryDirectory() as home:
        os.environ["TRAINWRIGHT_HOME"] = home
        figures = simulate(sizes, 120.0)
        figures |= show_failures(Setting(64), 6.5, 0.2 if quick else 0.5)
        figures |= agree(15.0 if quick else 30.0, 1 if quick else 3, 2 if quick else 5)
        figures |= measure_launch(sizes[-1:] if quick else sizes, 1 if quick else 3)
    show_cores(figures, sizes[-1])
    show_slopes(figures, sizes)
    print(f"\nwanted at {sizes[-1]:,} nodes")
    for name, most in MOST.items():
        value = figures[name if name in figures else f"{name}_{sizes[-1]}"]
        print(f"{name:<16}{value:>9.3f}  at most {most:<5g} {'' if value <= most else 'MISSED'}")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
