"""Planted failures of gangs, and what the product makes of them, without processes: tests/golden/autopsy/*.toml.

A case says what there is to be seen of a failure: the exceptions that ranks raised, how others died and what they
printed, which nodes fell silent, what the scheduler said. It goes the way that it goes in production: `classify` in a
rank, the rank's files, `RankWatch` and the node's verdict, the launcher's `Membership`, a `Generation` on a clock that
nobody waits for, and `Recovery.after`.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import random
import signal
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock
from uuid import UUID

import pytest
from prefect.client.schemas.objects import State, StateType

from data_contracts import errors
from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.messages.gang import ConductorAddress, Heartbeat, Joined, Launch, NodeExit, RankEnd, RankReport
from data_contracts.pipeline_spec import RetrySpec
from infra.gang import conductor, members, node, ranks, supervisor
from infra.gang.conductor import Generation
from infra.gang.hub import Hub, News
from infra.gang.membership import Membership, Placement
from infra.gang.rank_files import RankFiles
from infra.gang.ranks import RankWatch
from infra.gang.recovery import Recovery
from infra.launchers import kubernetes, slurm, ssh
from infra.orchestrator.gang import PoolLauncher, PoolNodes
from infra.store import Store
from infra.store import folder as store_folder
from training.fit.failures import classify, module_file
from training.user.imports import user_code

CASES = Path(__file__).parents[1] / "golden" / "autopsy"
# A node that is charged without a name.
NOBODY = -2
# A case's second 0, and when its nodes are launched; by the clock of the conductor and of all machines.
ZERO_S, LAUNCHED_S = 10_000.0, -40.0
# A node ends so long after its ranks have; the rows of a micro-batch.
ENDS_S, MICRO_BATCH = 0.3, 4
# No process has such a number; that of rank 0.
FIRST_PID = 10_000_000
PYTHON, LIGHTNING = "/project/model.py", "lightning.pytorch.trainer.call"
# The modules through which an exception passes, the innermost last; "": the user's.
THROUGH: dict[str, tuple[str, ...]] = {
    "user": (LIGHTNING, ""),
    "user>torch": (LIGHTNING, "", "torch.nn.functional"),
    "user>library": (LIGHTNING, "", "botocore.client"),
    "backward": (LIGHTNING, "torch.autograd.graph"),
    "dataloader": (LIGHTNING, "torch.utils.data.dataloader"),
    "cuda": ("lightning.pytorch.accelerators.cuda", "torch.cuda"),
    "import": ("",),
    "ours": ("training.fit.guards",),
}


@dataclass(frozen=True)
class Case:
    """A planted failure.

    Attributes:
        gang: nodes, and ranks of each. happens: what happens, each with its second `at`.
        delays: seconds by which the last word of a node comes late; clocks: by which a node's clock is ahead.
        slow_steps_s: the longest step so far.
    """

    launcher: str
    name: str
    gang: tuple[int, int]
    happens: list[dict[str, Any]]
    truth: dict[str, str]
    own_loader: bool = False
    delays: dict[str, float] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    slow_steps_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What the product makes of a case.

    Attributes:
        retry: the budget that is charged, `free`, or `refused`.
        charged: the nodes whose failures are counted.
    """

    error: TrainwrightError
    retry: str
    charged: frozenset[int]

    @property
    def key(self) -> tuple[object, ...]:
        """What must not depend on the order of the reports."""
        details = self.error.details
        named = None if details.get("link") else (details.get("rank"), details.get("node"))
        return self.error.cause, named if self.charged else None, self.retry, self.charged


def cases() -> list[Case]:
    """All cases, with their texts."""
    texts = tomllib.loads((CASES / "texts.toml").read_text())

    def full(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: full(part) for name, part in value.items()}
        if isinstance(value, list):
            return [full(part) for part in value]
        return texts[value[1:]] if isinstance(value, str) and value.startswith("@") else value

    return [
        Case(launcher=launcher, **full(case))
        for launcher in LAUNCHERS
        for case in tomllib.loads((CASES / f"{launcher}.toml").read_text())["case"]
    ]


def wrong(case: Case, verdict: Verdict) -> list[str]:
    """What is wrong of a verdict: its cause, its culprit, its sentence or whether it is tried again."""
    error, truth = verdict.error, case.truth
    kind, _, number = truth["culprit"].partition(" ")
    details, several = error.details, case.gang[0] > 1
    rank = details["ranks"][0] if "ranks" in details else details.get("rank")
    host, named, says = int(number) if kind == "node" else -1, True, True
    if kind == "rank":
        host = int(number) // case.gang[1]
        named = rank == int(number) and not details.get("link")
        says = f"rank {number}" in error.message.lower() and (not several or f"node {host}" in error.message.lower())
    elif kind == "node":
        named = "missing" in details or (details.get("node") == host and not details.get("link"))
        says = f"node {host}" in error.message.lower()
    elif kind == "link":
        named = says = all(f"node {end}" in error.message for end in number.split("-"))
    innocent = verdict.charged <= {host}
    checks = {
        "cause": error.cause == truth["cause"],
        "culprit": named and innocent,
        "retry": verdict.retry == truth["retry"],
        "sentence": says,
    }
    return [what for what, is_right in checks.items() if not is_right]


def judge(case: Case, store: Store, folder: Path, shuffle: int = 0) -> Verdict:
    """The product's verdict.

    Args:
        store: may be that of other cases; folder: a new one, for the nodes' files.
        shuffle: 0: what is reported comes in the order in which it happened; else drawn from this seed.
    """
    folder.mkdir()
    world = World(case, store, folder, random.Random(shuffle) if shuffle else None)
    with world.in_force():
        generation = Generation(world.membership, commit=lambda _: None, check=lambda: None, on_progress=lambda _: None)
        with pytest.raises(TrainwrightError) as raised:
            generation.run(120)
    error = raised.value
    recovery = Recovery(RetrySpec(), world.launch, [])
    try:
        recovery.after(error, generation.nodes, generation.reports.micro_batch)
    except TrainwrightError:
        retry = "refused"
    else:
        retry = next(iter(recovery.retries.used), "free")
    hosts = {f"h{number}": number for number in range(case.gang[0])}
    charged = {hosts.get(name.partition("#")[0], NOBODY) for name in recovery.retries.failures}
    return Verdict(error, retry, frozenset(charged))


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = ZERO_S + LAUNCHED_S

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class World:
    """The machines of a case.

    Attributes:
        said: what nodes say to the conductor, by the second at which it arrives.
    """

    def __init__(self, case: Case, store: Store, folder: Path, shuffled: random.Random | None) -> None:
        self.case, self.store, self.folder, self.shuffled = case, store, folder, shuffled
        self.clock = Clock()
        self.clock.now -= 3 * case.slow_steps_s
        self.launch = Launch(
            training=f"trainings/{folder.name}",
            nodes=case.gang[0],
            devices=case.gang[1],
            poll_s=1.0,
            train={"global_batch_size": 64},
            conductor=ConductorAddress(address="10.0.0.9", port=20_000, certificate=""),
        )
        self.started: set[int] = set()
        self.dead: set[int] = set()
        self.said = [News(number, at, what) for number in range(case.gang[0]) for at, what in self.life(number)]
        self.said.sort(key=lambda news: news.at)
        self.membership: Membership = LAUNCHERS[case.launcher](self)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Let the product live by this world's clock and scheduler."""
        with contextlib.ExitStack() as stack:
            for module in (conductor, members, kubernetes, slurm, ssh):
                stack.enter_context(mock.patch.object(module, "time", self.clock))
            stack.enter_context(mock.patch.object(slurm, "slurm", self.ask_slurm))
            stack.enter_context(mock.patch.object(slurm, "ASK_S", 3600.0))
            stack.enter_context(mock.patch.object(store_folder, "_sync"))
            yield

    @property
    def at(self) -> float:
        """The case's second."""
        return self.clock.now - ZERO_S

    def due(self) -> list[News]:
        """What has arrived since."""
        arrived = [news for news in self.said if news.at <= self.clock.now and news.node in self.started]
        self.said = [news for news in self.said if news not in arrived]
        if self.shuffled is not None:
            self.shuffled.shuffle(arrived)
        return arrived

    def events(self, **wanted: Any) -> list[dict[str, Any]]:
        """What happens that has these values."""
        return [event for event in self.case.happens if all(event.get(name) == value for name, value in wanted.items())]

    def first(self, number: int, *kinds: str) -> dict[str, Any] | None:
        """The first event of these kinds of a node."""
        return next((event for event in self.events(node=number) if any(kind in event for kind in kinds)), None)

    def supervisor_ended(self, number: int) -> dict[str, Any] | None:
        """How a node's supervisor has ended without a word, if it has by now."""
        event = self.first(number, "supervisor")
        return event if event is not None and event["at"] <= self.at else None

    # --- what a node says

    def life(self, number: int) -> Iterator[tuple[float, Joined | Heartbeat | NodeExit]]:
        """What a node says from its start to its end, and when."""
        if self.first(number, "never") is not None:
            return
        silent = self.first(number, "gone", "supervisor")
        until = 1e9 if silent is None else ZERO_S + silent["at"]
        end, exit_ = self.end_of(number)
        joins = ZERO_S - 8 - 3 * self.case.slow_steps_s + number / 10
        skew = self.case.clocks.get(str(number), 0.0)
        if joins < until:
            yield (
                joins,
                Joined(node=number, address=f"10.0.0.{10 + number}", port=20_001, host=f"h{number}", time=joins + skew),
            )
        beat = joins + 4
        # Long enough for a roll-call that is never answered, and for each limit on silence.
        last = ZERO_S + max(event["at"] for event in self.case.happens) + 130
        while beat < min(until, end, last):
            yield (
                beat,
                Heartbeat(time=beat + skew, ranks=self.reports(number, beat), unreachable=self.cut(number, beat)),
            )
            beat += 1
        if exit_ is not None and end < until:
            late_s = self.case.delays.get(str(number), 0.0)
            if self.shuffled is not None:
                late_s = self.shuffled.uniform(0, 1.5)
            yield end + late_s, exit_

    def cut(self, number: int, now: float) -> list[int]:
        """The nodes that a node does not reach."""
        links = [event["link"] for event in self.case.happens if "link" in event and ZERO_S + event["at"] + 4 < now]
        return [end for link in links if number in link for end in link if end != number]

    def ranks_of(self, event: dict[str, Any]) -> list[int]:
        """The ranks to which something happens."""
        rank = event.get("rank", [])
        everyone = range(self.case.gang[0] * self.case.gang[1])
        return list(everyone) if rank == "all" else rank if isinstance(rank, list) else [rank]

    def reports(self, number: int, now: float) -> list[RankReport]:
        """The reports of a node's ranks: all step together, until one of them stands still or a machine is gone."""
        count = self.case.gang[1]
        still = [event for event in self.case.happens if {"stands", "stopped", "gone", "link", "dies"} & event.keys()]
        stop_s = min([ZERO_S + event["at"] for event in still], default=1e9)
        pace_s = self.case.slow_steps_s or 1.0
        step = 40 + math.floor((min(now, stop_s) - ZERO_S) / pace_s)
        found = []
        for rank in range(number * count, (number + 1) * count):
            place, state, steps = "backward", "S", step
            for event in still:
                if rank in self.ranks_of(event) and ZERO_S + event["at"] <= now:
                    place, state = event.get("stands", place), "T" if event.get("stopped") else state
            micro = 0 if self.case.own_loader else MICRO_BATCH
            found.append(
                RankReport.model_construct(
                    rank=rank, phase="training", step=steps, steps=steps, moves=steps, place=place, state=state,
                    micro_batch=micro,
                )
            )  # fmt: skip
        return found

    def end_of(self, number: int) -> tuple[float, NodeExit | None]:
        """When a node ends by itself, and how, as its supervisor says; (never, None) if it does not."""
        count = self.case.gang[1]
        own = range(number * count, (number + 1) * count)
        scratch = self.folder / f"node-{number}"
        scratch.mkdir()
        files = {rank: RankFiles(scratch, rank) for rank in own}
        for rank in files.values():
            rank.write_process(FIRST_PID + rank.rank)
        happened = [
            (event["at"] + index / 100, rank, event)
            for event in self.case.happens
            for index, rank in enumerate(sorted(set(own) & set(self.ranks_of(event))))
            if {"raises", "ours", "dies"} & event.keys()
        ]
        happened.sort(key=lambda entry: entry[0])
        asked = self.first(number, "sigterm")
        happened += [(event["at"], -1, event) for event in self.events(node=number, oom_kill=True)]
        happened.sort(key=lambda entry: entry[:2])
        order = list(files.values())
        if self.shuffled is not None:
            self.shuffled.shuffle(order)
        now = [0.0]
        with self.counting(number, -1e9):
            watch = RankWatch(order, lambda: now[0])
        deadline: float | None = None if asked is None else asked["at"] + self.launch.grace_s
        last = 0.0
        for at, rank, event in happened:
            if deadline is not None and at > deadline:
                break
            now[0] = ZERO_S + at
            if rank >= 0:
                last = at
                self.strike(files[rank], event, scratch, at + self.case.clocks.get(str(number), 0.0))
            # What happens within the interval at which a node looks is seen at the next look.
            later = [moment for moment, _, _ in happened if moment > at]
            if later and later[0] - at < ranks.WATCH_S:
                continue
            now[0] += ranks.WATCH_S
            with self.counting(number, at):
                first = watch.look()
            if first is not None and not isinstance(first, errors.Preempted):
                deadline = min(deadline or 1e9, at + supervisor.SETTLE_S)
            elif first is not None:
                deadline = deadline or at + self.launch.grace_s
        if watch.first is None:
            if asked is None:
                return 1e9, None
            last = asked["at"] + self.launch.grace_s
        now[0] = ZERO_S + last + ENDS_S
        with self.counting(number, last):
            error = self.node_error(number, watch, asked, scratch)
        error.details.setdefault("node", number)
        if asked is not None and asked.get("planned") and isinstance(error, errors.Preempted):
            error.details["planned"] = True
        whole = len({rank for _, rank, _ in happened if rank >= 0}) == count
        end = ZERO_S + (last if whole else min(deadline or last, last + supervisor.SETTLE_S)) + ENDS_S
        ends = [RankEnd(rank=report.rank, report=report) for report in self.reports(number, end)]
        return end, NodeExit(status="failed", error=error.to_json(), ranks=ends)

    def node_error(
        self, number: int, watch: RankWatch, asked: dict[str, Any] | None, scratch: Path
    ) -> TrainwrightError:
        """The node's own verdict."""
        fake: Any = SimpleNamespace(node=number, scratch=scratch, stop_asked=None if asked is None else asked["at"])
        cause = watch.cause(scratch / "torchrun.txt") or watch.first
        with pytest.raises(TrainwrightError) as raised:
            supervisor._Supervisor._judge(fake, 1, watch, scratch / "torchrun.txt", cause)
        return raised.value

    @contextlib.contextmanager
    def counting(self, number: int, at: float) -> Iterator[None]:
        """Let the node's kernel count its kills until now, and know which processes live."""
        kills = sum(event["at"] <= at for event in self.events(node=number, oom_kill=True))
        with (
            mock.patch.object(ranks, "oom_kills", return_value=kills),
            mock.patch.object(ranks, "is_alive", lambda pid: pid not in self.dead),
        ):
            yield

    def strike(self, files: RankFiles, event: dict[str, Any], scratch: Path, at: float) -> None:
        """Let something happen to a rank, and leave what it leaves."""
        if "prints" in event:
            files.log.write_text(event["prints"])
        if "dies" in event:
            self.dead.add(FIRST_PID + files.rank)
            died = event["dies"]
            code = died if isinstance(died, int) else -signal.Signals[died]
            if not (log := scratch / "torchrun.txt").exists():  # it names the first alone
                log.write_text(
                    "E0626 06:24:45.117000 4711 torch/distributed/elastic/multiprocessing/api.py:1003] failed "
                    f"(exitcode: {code}) local_rank: {files.rank % self.case.gang[1]} (pid: 4712) of binary: python\n"
                )
            return
        error = raised_by(event)
        failed = classify(error, Path(PYTHON).parent, timeout_s=300)
        files.write_error(failed)
        moment = round((ZERO_S + at) * 1e9)
        os.utime(files._error, ns=(moment, moment))

    # --- what a scheduler says

    def ask_slurm(self, *command: str, **_: Any) -> str:
        """What a command of Slurm prints."""
        if command[0] == "sbatch":
            return "7\n"
        if command[0] != "squeue" or "--jobs=7" not in command:
            return ""
        states = [event for event in self.case.happens if "job" in event and event["at"] <= self.at]
        if not states:
            waits = any("never" in event for event in self.case.happens)
            return f"PENDING {self.case.gang[0]} Priority\n" if waits else f"RUNNING {self.case.gang[0]} None\n"
        if states[-1]["job"] == "unknown":
            raise UsageError("Slurm refuses the job: slurm_load_jobs error: Invalid job id specified")
        return f"{states[-1]['job']} {self.case.gang[0]} {states[-1]['reason']}\n"


# --- exceptions as ranks raise them


def raised_by(event: dict[str, Any]) -> BaseException:
    """The exception of an event, raised through the modules that it passes in reality."""
    if "ours" in event:
        kind = getattr(errors, event["ours"])
        return passed("ours", kind(event["says"], details=dict(event.get("details", {}))))
    error = made(event)
    under = event.get("from") or event.get("during")
    if under is None:
        return passed(event.get("via", "user"), error)
    below = passed("backward", made(under))
    if "from" in event:
        error.__cause__ = below
    error.__context__ = below
    return passed("user", error)


def made(event: Mapping[str, Any]) -> BaseException:
    """The exception that an event names, not raised yet."""
    name, _, number = event["raises"].partition(" ")
    says = event["says"]
    module, _, attribute = f"builtins.{name}".rpartition(".") if "." not in name else name.rpartition(".")
    kind: Any = getattr(importlib.import_module(module), attribute)
    if "aws" in event:
        code, message, status, operation = event["aws"]
        answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
        return cast(BaseException, kind(answer, operation))
    if number:
        text = says if name.endswith("gaierror") else os.strerror(int(number))
        more = [says] if says and not name.endswith("gaierror") else []
        return cast(BaseException, kind(int(number), text, *more))
    if kind is SystemExit:
        return SystemExit(int(says))
    return cast(BaseException, kind(says) if says else kind())


def passed(via: str, error: BaseException) -> BaseException:
    """The error, once it was raised and has passed through modules."""
    files = [str(module_file("training.fit.loop"))]
    files += [str(module_file(name)) if name else PYTHON for name in THROUGH[via]]
    names: dict[str, Any] = {"error": error}
    exec(compile("def call0(): raise error", files[-1], "exec"), names)
    for number, file in enumerate(reversed(files[:-1])):
        exec(compile(f"def call{number + 1}(): call{number}()", file, "exec"), names)
    context = error.__context__
    try:
        if via == "import":
            with user_code("train.lightning: importing model", Path(PYTHON).parent):
                names[f"call{len(files) - 1}"]()
        else:
            names[f"call{len(files) - 1}"]()
    except BaseException as raised:
        if via != "import":
            raised.__context__ = context
        # Without the frame of this file.
        return raised.with_traceback(None if raised.__traceback__ is None else raised.__traceback__.tb_next)
    raise AssertionError("it raises")


# --- what runs the nodes


def hub_of(world: World) -> Hub:
    """The conductor's side of the connections, without any."""
    hub: Any = SimpleNamespace(left=set(), joined={}, tell=lambda node, message: None)

    def news() -> list[News]:
        found = world.due()
        for one in found:
            if isinstance(one.message, Joined):
                hub.joined[one.node] = ""
            elif isinstance(one.message, NodeExit):
                hub.left.add(one.node)
        return found

    hub.news = news
    return cast(Hub, hub)


class Process:
    """A node's process, or a connection to it."""

    stdin = SimpleNamespace(close=lambda: None)

    def __init__(self, poll: Callable[[], int | None]) -> None:
        self.poll = poll

    def wait(self, timeout: float | None = None) -> int | None:
        return self.poll()

    def kill(self) -> None: ...


class Here(node.LocalNodes):
    """Nodes of this machine."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store, world.launch, hub_of(world))
        self.world = world

    def start(self, nodes: Collection[int]) -> None:
        for number in nodes:
            self.world.started.add(number)
            if number not in self.nodes:
                made = node.LocalNode.__new__(node.LocalNode)
                made._process = cast(Any, Process(lambda number=number: self._code(number)))
                self.nodes[number] = made

    def _code(self, number: int) -> int | None:
        event = self.world.supervisor_ended(number)
        return None if event is None else -signal.Signals[event["supervisor"]]

    def may_be_silent(self, node: int) -> bool:
        return True

    def log(self, node: int) -> str:
        return ""

    def end(self, nodes: Collection[int]) -> None: ...


class Hosts(ssh.SshNodes):
    """Nodes behind connections of ssh."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__(world.store, world.launch, hub_of(world), [f"h{n}" for n in range(world.case.gang[0])])

    def _connect(self, node: int, told: bytes) -> Any:
        self.world.started.add(node)
        never = self.world.first(node, "never")
        self._log(node).write_text((never or self.world.first(node, "supervisor") or {}).get("prints", ""))
        return Process(lambda: self._code(node, never))

    def _code(self, node: int, never: dict[str, Any] | None) -> int | None:
        if never is not None:
            return int(never["never"])
        event = self.world.supervisor_ended(node)
        return None if event is None else int(event["supervisor"])


class Runs(PoolNodes):
    """Nodes as flow runs of a work pool."""

    def __init__(self, world: World) -> None:
        super().__init__(cast(PoolLauncher, SimpleNamespace(store=world.store)), world.launch, hub_of(world))
        self.world = world
        self._watch = cast(Any, SimpleNamespace(state=self._state, forget=lambda run: None, look=lambda: None))

    def start(self, nodes: Collection[int]) -> None:
        for number in nodes:
            self.world.started.add(number)
            self.runs[number] = cast(Any, SimpleNamespace(id=UUID(int=number), name=f"k-0 g0 node {number}"))

    def _state(self, run: UUID) -> State[Any]:
        number = run.int
        if self.world.first(number, "never") is not None:
            return State(type=StateType.SCHEDULED, name="Late")
        event = self.world.supervisor_ended(number)
        if event is None:
            return State(type=StateType.RUNNING)
        name, message = event["flow_run"]
        return State(type=StateType(name.upper()), name=name, message=message)

    def log(self, node: int) -> str:
        return ""

    def _cancel(self, node: int) -> None: ...

    def end(self, nodes: Collection[int]) -> None: ...


class Tasks(slurm.SlurmNodes):
    """Nodes as tasks of a job of Slurm."""

    def __init__(self, world: World) -> None:
        placement = Placement(section="train", pool="gpu")
        launcher = slurm.SlurmLauncher.__new__(slurm.SlurmLauncher)
        launcher.placement = placement
        options = launcher.options(world.launch.least_nodes, world.launch.nodes)
        super().__init__(world.store, world.launch, hub_of(world), options)
        self.world, self.next_look = world, 0.0

    def start(self, nodes: Collection[int]) -> None:
        self.world.started.update(nodes)
        super().start(nodes)

    def news(self) -> list[News]:
        # As its thread does.
        if self.world.clock.now >= self.next_look and self._state not in slurm.OVER:
            self.next_look = self.world.clock.now + 2.0
            self._look()
        return super().news()

    def end(self, nodes: Collection[int]) -> None:
        self._stopped.set()


class Pods(kubernetes.KubernetesNodes):
    """Nodes as the pods of a JobSet, of which the watches tell."""

    def __init__(self, world: World) -> None:
        cluster = SimpleNamespace(jobset=lambda name: self._now(), log=lambda pod: "")
        placement = Placement(section="train", pool="ml")
        launcher: Any = SimpleNamespace(placement=placement, variables=kubernetes.VARIABLES, cluster=cluster)
        super().__init__(world.store, world.launch, hub_of(world), launcher)
        self.world = world
        self.to_come = [event for event in world.case.happens if {"pod", "jobset"} & event.keys()]

    def start(self, nodes: Collection[int]) -> None:
        self.world.started.update(nodes)
        if self._jobset is None:
            self._jobset = self._now()
            for number in nodes:
                self._hear_pod(self._pod_of(number, {"phase": "Running"}), False)

    def news(self) -> list[News]:
        arrived = [event for event in self.to_come if event["at"] <= self.world.at]
        self.to_come = [event for event in self.to_come if event not in arrived]
        if self.world.shuffled is not None:
            self.world.shuffled.shuffle(arrived)
        for event in arrived:
            if "jobset" in event:
                self._hear_jobset(self._now() or self._jobset or {}, self._now() is None)
            else:
                self._hear_pod(self._pod_of(event["node"], status_of(event["pod"])), event["pod"] == "deleted")
        return super().news()

    def _now(self) -> Mapping[str, Any] | None:
        """The JobSet, as the cluster has it now."""
        said = [
            event["jobset"] for event in self.world.case.happens if "jobset" in event and event["at"] <= self.world.at
        ]
        return (
            None if "deleted" in said else {"metadata": {"name": self.name}, "spec": {"suspend": "suspended" in said}}
        )

    def _pod_of(self, number: int, status: Mapping[str, Any]) -> Mapping[str, Any]:
        deleted = {"deletionTimestamp": "now"} if "conditions" in status or not status else {}
        metadata = {"name": f"{self.name}-{number}", "labels": {kubernetes.INDEX: str(number)}, **deleted}
        return {"metadata": metadata, "status": status}

    def end(self, nodes: Collection[int]) -> None: ...


def status_of(text: str) -> Mapping[str, Any]:
    """A pod's status at its end, from its short form in a case."""
    what, _, message = text.partition(": ")
    if what == "deleted":
        return {}
    kind, _, more = what.partition(" ")
    code = {"OOMKilled": 137, "exit": int(more) if kind == "exit" else 0}.get(kind, 137)
    reason = kind if kind == "OOMKilled" else "Error" if code else "Completed"
    state = {"name": "node", "state": {"terminated": {"exitCode": code, "reason": reason}}}
    condition = {"type": kind, "status": "True", "reason": more, "message": message}
    return {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [state],
        **({"conditions": [condition]} if kind == "DisruptionTarget" else {}),
        **({"reason": kind, "message": message} if kind == "Evicted" else {}),
    }


LAUNCHERS: dict[str, Callable[[World], Membership]] = {
    "local": Here, "pool": Runs, "slurm": Tasks, "ssh": Hosts, "kubernetes": Pods,
}  # fmt: skip
