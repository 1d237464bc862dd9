"""How a conductor carries clusters that are not here: the real control code, on a clock of its own.

    python benchmarks/cluster.py [--quick]

Nodes, their ranks and the store's answers are simulated; the roll-call, the following of nodes, the search for hung and
silent ones, the ledger and the end of a generation are the code that trains. A request to the store takes the stated
time, of the simulation's clock, and is counted and priced as S3's. What the process needs of a real core is measured;
what the hub needs for real connections is in `membership.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time as real_time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from common import machine

DEVICES = 8
# S3 in us-east-1, in USD for a request (2026-11).
PRICES = {"put": 5e-6, "get": 0.4e-6}
PUTS = ("create", "replace", "names", "walk", "delete")
DAY_S = 86_400.0


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


class Bucket:
    """A store's backend whose requests take time, fail by chance, and are counted.

    Args:
        inner: does the work, in a folder.
    """

    def __init__(self, inner: Any, clock: Clock, latency_s: float, errors: float = 0.0) -> None:
        self.inner, self.clock, self.latency_s, self.errors = inner, clock, latency_s, errors
        self.requests: Counter[str] = Counter()
        self._draw = random.Random(1)

    def __getattr__(self, name: str) -> Any:
        from data_contracts.errors import StorageUnavailable

        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def ask(*arguments: Any, **more: Any) -> Any:
            self.requests["put" if name in PUTS else "get"] += 1
            self.clock.sleep(self.latency_s)
            if self._draw.random() < self.errors:
                raise StorageUnavailable("The simulated store does not answer.")
            return found(*arguments, **more)

        return ask

    @property
    def cost_usd(self) -> float:
        """Of the requests so far."""
        return sum(count * PRICES[kind] for kind, count in self.requests.items())


@dataclass
class Fault:
    """What goes wrong with a node, and when, in seconds after its first step."""

    node: int
    after_s: float
    kind: str  # silent, hung


@dataclass
class World:
    """Nodes that join, step together and are silent or hung as planned.

    Attributes:
        joins_s: the last node has joined so long after its start; step_s: of a step of all ranks.
        own_s: real seconds that the simulation itself took.
    """

    clock: Clock
    nodes: int
    joins_s: float = 20.0
    step_s: float = 1.0
    faults: list[Fault] = field(default_factory=list)
    own_s: float = 0.0
    last_joined: float = 0.0
    met: float = 0.0


def membership(world: World, store: Any, launch: Any) -> Any:
    """The nodes of a generation in this world."""
    from data_contracts.messages.gang import Heartbeat, Joined, Place, RankReport
    from infra.gang.hub import Ended, News
    from infra.gang.membership import Membership

    class Simulated(Membership):
        def __init__(self) -> None:
            hub: Any = SimpleNamespace(left=set())
            super().__init__(store, launch, hub)
            self.started: dict[int, float] = {}
            self.said: set[int] = set()
            self.places: dict[int, int] = {}
            self.beaten = world.clock.now
            self.watch = self._watch()

        def _watch(self) -> Any:
            """The first node's look at the store, by its own code; the others look only while they are cut off."""
            from infra.store.lease import ConductorWatch

            return ConductorWatch(store, launch)

        def start(self, nodes: Collection[int]) -> None:
            for node in nodes:
                self.started.setdefault(node, world.clock.now)

        def news(self) -> list[News]:
            began = real_time.process_time()
            now, found = world.clock.now, list[News]()
            for node, at in self.started.items():
                joins = at + world.joins_s * (node + 1) / world.nodes
                if node not in self.said and joins <= now:
                    self.said.add(node)
                    world.last_joined = max(world.last_joined, joins)
                    joined = Joined(node=node, address="10.0.0.1", port=1, host=f"h{node}", instance=str(node))
                    found.append(News(node, joins, joined))
            if self.places and not world.met:
                world.met = now
            found += self._beats(now)
            world.own_s += real_time.process_time() - began
            return found

        def _beats(self, now: float) -> Iterator[News]:
            every, since, self.beaten = launch.beat_s, self.beaten, now
            for node in self.said:
                # Each node has its own moment in the interval.
                moment = every * node / world.nodes
                at = now - (now - moment) % every
                if at > since and not self._is(node, "silent", at):
                    ranks = self._reports(node, self.places[node], at) if node in self.places else []
                    yield News(node, at, Heartbeat.model_construct(time=at, ranks=ranks))

        def _is(self, node: int, kind: str, at: float) -> bool:
            since = [world.met + one.after_s for one in world.faults if (one.node, one.kind) == (node, kind)]
            return bool(world.met) and any(at >= one for one in since)

        def _reports(self, node: int, place: int, at: float) -> list[RankReport]:
            # All ranks wait for one that stands still.
            still = min((world.met + one.after_s for one in world.faults if one.after_s + world.met <= at), default=at)
            steps = int((min(at, still) - world.met) / world.step_s)
            where = "forward" if self._is(node, "hung", at) else "backward"
            return [
                RankReport.model_construct(
                    rank=DEVICES * place + device, phase="training", step=steps, steps=steps, moves=4 * steps,
                    samples=steps, own_s=0.4 * steps, place=where, checkpoints=[], metrics={},
                )
                for device in range(DEVICES)
            ]  # fmt: skip

        def tell(self, node: int, message: Any) -> None:
            if isinstance(message, Place):
                self.places[node] = message.place

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
    from infra.gang import conductor, members
    from infra.store import lease

    with (
        mock.patch.object(conductor, "time", clock),
        mock.patch.object(members, "time", clock),
        mock.patch.object(lease, "time", clock),
    ):
        yield


def follow(nodes: int, *, latency_s: float, train_s: float, errors: float = 0.0, fault: str = "") -> dict[str, float]:
    """One generation: its roll-call, `train_s` of training, and perhaps a fault at half of it."""
    from data_contracts.errors import Interrupted
    from data_contracts.messages.gang import Launch
    from infra.gang.conductor import Generation, write_launch
    from infra.store import Lease, layout, open_store

    class Over(Exception):
        """The simulation has ended."""

    clock = Clock()
    faults = [Fault(nodes // 2, train_s / 2, fault)] if fault else []
    world = World(clock, nodes, faults=faults)
    with tempfile.TemporaryDirectory() as folder, on_clock(clock):
        store = open_store(folder)
        lease = Lease.take(store, layout.lease("trainings/k-0"), "simulated")
        bucket = Bucket(store._backend, clock, latency_s, errors)
        store._backend = bucket  # type: ignore[assignment]
        hub: Any = SimpleNamespace(at=None, codes=None)
        launch = write_launch(store, Launch(training="trainings/k-0", nodes=nodes, devices=DEVICES), hub)
        assert launch is not None
        found = membership(world, store, launch)
        renewed = [clock.now]

        def check() -> None:
            # The keeper's thread renews the lease beside this one; the first node looks at the store once a second.
            while clock.now >= renewed[0] + 10:
                renewed[0] += 10
                bucket.requests.update(put=1, get=1)
            if world.met and clock.now > world.met + train_s:
                raise Over

        generation = Generation(found, commit=lambda _: None, check=check, on_progress=lambda _: None)
        spent, cause, began = real_time.process_time(), "", clock.now
        at_met: list[float] = []

        def count_from_the_meeting(_: Any) -> None:
            if world.met and not at_met:
                at_met.append(clock.now)
                bucket.requests.clear()

        generation._on_progress = count_from_the_meeting
        try:
            generation.run(600)
        except Over:
            pass
        except Interrupted as error:
            cause = error.cause
        cpu_s = real_time.process_time() - spent - world.own_s
        trained_s = clock.now - world.met
        # Of the first node, whose requests are its own: the marker and the lease once a second, eight chunks of logs
        # in half a minute.
        node = {"get": 2 * trained_s, "put": 8 * trained_s / 30}
        total = {kind: bucket.requests[kind] + node[kind] for kind in PRICES}
        del lease
    return {
        "rollcall_s": world.met - world.last_joined,
        "cpu": cpu_s / (clock.now - began),
        "found_s": trained_s - train_s / 2 if cause else 0.0,
        "cause": cause,  # type: ignore[dict-item]
        "requests_per_s": sum(total.values()) / trained_s,
        "usd_a_day": sum(total[kind] * PRICES[kind] for kind in PRICES) / trained_s * DAY_S,
    }


def main() -> None:
    """Simulate, print tables and, as the last line, the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two sizes and shorter trainings")
    arguments = parser.parse_args()
    sizes = (8, 64) if arguments.quick else (8, 64, 256, 1_250)
    train_s = 120.0 if arguments.quick else 600.0
    print(machine())
    figures: dict[str, Any] = {}
    print(" nodes   store   fault  roll-call     cpu    found  requests/s  USD/day  cause")
    for nodes in sizes:
        for latency_s, fault in ((0.03, ""), (0.03, "silent"), (0.03, "hung"), (0.3, "")):
            row = follow(nodes, latency_s=latency_s, train_s=train_s, fault=fault)
            print(
                f"{nodes:>6,} {latency_s:>6.2f}s {fault or '-':>7} {row['rollcall_s']:>9.2f}s {row['cpu']:>7.3f} "
                f"{row['found_s']:>7.1f}s {row['requests_per_s']:>11.2f} {row['usd_a_day']:>8.2f}  {row['cause']}"
            )
            figures[f"{nodes}_{latency_s}_{fault or 'none'}"] = row
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
