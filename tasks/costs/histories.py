"""Reads what runs used: their executions' records, also of processes that were killed or still work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data_contracts.errors import CorruptError
from data_contracts.messages.gang import Heartbeat, Joined, Latest, Launch, NodeExit
from data_contracts.resolved import Resolved
from data_contracts.run_report import RunReport
from data_contracts.usage import Execution, GangUsage, NodeUsage, Sign, StageUsage
from infra.gang.checkpoints.participants import generations
from infra.store import Store, layout
from tasks.run.report import latest_report

_PARTS = ("stage", "gang")


@dataclass(frozen=True)
class Usage:
    """What one run used.

    Attributes:
        executions: in order; empty if the run was carried out by an earlier Trainwright.
        running: whether an execution has not ended, or its process was killed: what it used is known so far.
        report: of such a run, with its cost as that version counted it.
    """

    run_id: str
    executions: list[Execution]
    running: bool = False
    report: RunReport | None = None


def usage_of(store: Store, run_id: str) -> Usage:
    """What a run has used so far. CorruptError if a record is damaged: what is not known is not 0."""
    names = store.list(layout.usages(run_id))
    found: list[Execution] = []
    signs: dict[str, Sign] = {}
    for name in names:
        whole = store.find_as(layout.usage(run_id, name, "ended"), Execution.from_json)
        if whole is None:
            whole = _interrupted(store, run_id, name, signs)
        if whole is not None:
            found.append(whole)
    found.sort(key=lambda one: one.began)
    if signs:
        found = _with_lost_gangs(store, found, signs)
    report = latest_report(store, run_id) if not found else None
    return Usage(run_id, found, bool(signs), report)


def resolved_of(store: Store, run_id: str) -> Resolved | None:
    """A run's inputs, for a run without records of its use."""
    return store.find_as(layout.resolved(run_id), Resolved.from_json)


def _interrupted(store: Store, run_id: str, name: str, signs: dict[str, Sign]) -> Execution | None:
    """An execution without an end, from its parts and its last sign of life."""
    began = store.find_as(layout.usage(run_id, name, "began"), Execution.from_json)
    if began is None:
        return None
    parts = store.list(layout.usages(run_id, name))
    stages = [_part(store, run_id, name, one, StageUsage) for one in _numbered(parts, "stage")]
    gangs = [_part(store, run_id, name, one, GangUsage) for one in _numbered(parts, "gang")]
    pointer = store.pointer(layout.usage_beat(run_id, name)).read()
    sign = Sign(at=began.began) if pointer is None else _sign(pointer.value)
    signs[name] = sign
    ends = [began.began, sign.at, *(one.ended for one in stages), *(n.released for one in gangs for n in one.nodes)]
    last = max(ends)
    if sign.stage and all(one.ended < sign.at for one in stages) and last > sign.at:
        last = max(last, sign.at)
    done = max([began.began, *(one.ended for one in stages)])
    if sign.stage and sign.at >= done:
        stages.append(StageUsage(name=sign.stage, began=done, ended=last, status="killed"))
    return began.model_copy(update={"ended": last, "stages": stages, "gangs": gangs})


def _sign(value: object) -> Sign:
    try:
        return Sign.model_validate(value)
    except ValueError as error:
        raise CorruptError("A run's sign of life cannot be read.") from error


def _numbered(parts: Iterator[str] | list[str], kind: str) -> list[str]:
    names = [one.removesuffix(".json") for one in parts if one.startswith(f"{kind}-")]
    return sorted(names, key=lambda one: int(one.rpartition("-")[2]))


def _part(store: Store, run_id: str, name: str, part: str, model: type[StageUsage] | type[GangUsage]) -> object:
    def parse(value: dict[str, object]) -> object:
        return model.model_validate({key: one for key, one in value.items() if key != "schema_version"})

    return store.read_as(layout.usage(run_id, name, part), parse)


def _with_lost_gangs(store: Store, found: list[Execution], signs: dict[str, Sign]) -> list[Execution]:
    """The executions with the generations whose conductor was killed before it recorded them."""
    known = {(gang.where, gang.generation) for one in found for gang in one.gangs}
    more: dict[str, list[GangUsage]] = {}
    for one in found:
        for followed in signs[one.execution].follows if one.execution in signs else ():
            for number in generations(store, followed.where):
                if (followed.where, number) in known:
                    continue
                gang = _by_its_nodes(store, followed.where, number, one.run_id)
                if gang is None or not _is_of(one, found, gang):
                    continue
                known.add((followed.where, number))
                named = {"stage": followed.stage, "local": followed.local}
                more.setdefault(one.execution, []).append(gang.model_copy(update=named))
    return [one.model_copy(update={"gangs": [*one.gangs, *more.get(one.execution, [])]}) for one in found]


def _is_of(one: Execution, found: list[Execution], gang: GangUsage) -> bool:
    """Whether an execution launched this generation: it is the last that began before the nodes did."""
    started = min((node.started for node in gang.nodes), default=one.began)
    before = [each for each in found if each.began <= started + 1] or found[:1]
    return before[-1].execution == one.execution


def _by_its_nodes(store: Store, where: str, number: int, run_id: str) -> GangUsage | None:
    """A generation as its nodes reported it, by their own clocks; None if another run launched it."""
    launch = store.read_as(layout.launch(where, number), Launch.from_json)
    if launch.provenance.get("run_id", run_id) != run_id:
        return None
    begin = launch.resume or launch.begin
    first = 0 if begin is None else begin.step
    nodes, last, ends = [], first, []
    names = [name for name in store.list(layout.generation(where, number)) if name.startswith("node-")]
    for place in sorted(int(name.rpartition("-")[2]) for name in names):
        joined = store.find_as(layout.joined(where, number, place), Joined.from_json)
        ended = store.find_as(layout.node_exit(where, number, place), NodeExit.from_json)
        beats = [name for name in store.list(layout.node(where, number, place)) if name.startswith("beat-")]
        beat = _beat(store, where, number, place, len(beats) - 1)
        if joined is None and ended is None:
            continue
        reports = [end.report for end in ended.ranks if end.report] if ended is not None else beat.ranks
        last = max([last, *(report.step for report in reports)])
        started = ended.started if ended is not None else joined.time if joined is not None else 0.0
        released = ended.released if ended is not None else max(started, beat.time)
        worked = any(report.step > first for report in reports)
        known = joined.time if joined is not None else None
        moments = {"working": known if worked else None, "stopped": released if worked else None}
        nodes.append(NodeUsage(number=place, started=started, released=released, joined=known, **moments))
        ends.append("killed" if ended is None else "done" if ended.status == "done" else "failed")
    if not nodes:
        return None
    met = max((node.joined for node in nodes if node.joined is not None), default=None)
    ended_by = next((end for end in ends if end != "done"), "done")
    pointer = store.pointer(layout.latest(where)).read()
    kept = [] if pointer is None else Latest.from_json(pointer.value).checkpoints
    newest = max([first, *(one.step for one in kept if one.step <= last)])
    return GangUsage(
        stage="",
        where=where,
        generation=number,
        local=False,
        nodes=nodes,
        met=met,
        ended=ended_by,
        first_step=first,
        last_step=last,
        kept_step=last if ended_by == "done" else newest,
    )


def _beat(store: Store, where: str, number: int, place: int, beat: int) -> Heartbeat:
    """The newest heartbeat of a node; an empty one if it has none."""
    found = store.find_as(layout.beat(where, number, place, beat), Heartbeat.from_json) if beat >= 0 else None
    return found or Heartbeat()
