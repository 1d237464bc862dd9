"""Reads what the processes that carried a run out recorded of their use; also of killed ones and of those at work."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from typing import Any, TypeVar

from data_contracts.canonical import is_name
from data_contracts.costs.usage import ExecutionUsage, GangUsage, SignOfLife, StageUsage
from data_contracts.records import Record
from infra.gang.ledger import generations
from infra.processes.clock import now_s
from infra.store import Store, layout
from infra.store.records import parsed
from infra.usage.bounds import bounded, launched_once
from infra.usage.lost_gangs import gang_by_its_nodes

log = logging.getLogger("trainwright")
R = TypeVar("R", bound=Record)


def executions_of(store: Store, run_id: str) -> tuple[list[ExecutionUsage], bool]:
    """A run's executions in order, and whether the last has no end: it still works, or its process was killed.

    What no execution of the run can have used is left out with a warning. CorruptError if a record is damaged: what is
    not known is not 0.
    """
    found: list[ExecutionUsage] = []
    signs: dict[str, SignOfLife] = {}
    for name in filter(is_name, store.list(layout.usages(run_id))):  # what is no name was not made by Trainwright
        whole = store.find_as(layout.usage(run_id, name, "ended"), ExecutionUsage.from_json)
        whole = whole or _interrupted(store, run_id, name, signs)
        if whole is None:
            continue
        if (whole.run_id, whole.execution) != (run_id, name):  # its times would be held against another run's
            log.warning("The record of use %s of the run %s names another, and is left out.", name, run_id)
            continue
        found.append(whole)
    found.sort(key=lambda one: one.began)
    if signs:
        found = _with_lost_gangs(store, found, signs)
    within, sentences = bounded(launched_once(found), max(time.time(), now_s()))
    for sentence in sentences:
        log.warning("%s", sentence)
    return within, bool(within) and within[-1].execution in signs


def _interrupted(store: Store, run_id: str, name: str, signs: dict[str, SignOfLife]) -> ExecutionUsage | None:
    """An execution without an end, from its parts and its last sign of life, which is added to `signs`."""
    began = store.find_as(layout.usage(run_id, name, "began"), ExecutionUsage.from_json)
    if began is None:
        return None
    parts = store.list(layout.usages(run_id, name))
    stages = [_part(store, run_id, name, one, StageUsage) for one in _numbered(parts, "stage")]
    gangs = [_part(store, run_id, name, one, GangUsage) for one in _numbered(parts, "gang")]
    path = layout.usage_beat(run_id, name)
    pointer = store.pointer(path).read()
    sign = SignOfLife(at=began.began) if pointer is None else parsed(path, SignOfLife.model_validate, pointer.value)
    signs[name] = sign
    done = max([began.began, *(one.ended for one in stages)])
    last = max([done, sign.at, *(node.released for gang in gangs for node in gang.nodes)])
    if sign.stage and last > done:
        stages.append(StageUsage(name=sign.stage, began=done, ended=last, status="killed"))
    return began.model_copy(update={"ended": last, "stages": stages, "gangs": gangs, "used": sign.used})


def _numbered(parts: Iterable[str], kind: str) -> list[str]:
    found = [(int(match[1]), one) for one in parts if (match := re.fullmatch(rf"{kind}-([0-9]+)\.json", one))]
    return [one.removesuffix(".json") for _, one in sorted(found)]


def _part(store: Store, run_id: str, name: str, part: str, model: type[R]) -> R:
    def parse(value: dict[str, Any]) -> R:
        return model.model_validate({key: one for key, one in value.items() if key != "schema_version"})

    return store.read_as(layout.usage(run_id, name, part), parse)


def _with_lost_gangs(store: Store, found: list[ExecutionUsage], signs: dict[str, SignOfLife]) -> list[ExecutionUsage]:
    """The executions with the generations whose conductor was killed before it recorded them."""
    known = {(gang.where, gang.generation) for one in found for gang in one.gangs}
    more: dict[str, list[GangUsage]] = {}
    for one in found:
        for followed in signs[one.execution].follows if one.execution in signs else ():
            for number in generations(store, followed.where):
                if (followed.where, number) in known:
                    continue
                gang = gang_by_its_nodes(store, followed.where, number, one.run_id)
                if gang is not None and _is_of(one, found, gang):
                    known.add((followed.where, number))
                    named = {"stage": followed.stage, "local": followed.local}
                    more.setdefault(one.execution, []).append(gang.model_copy(update=named))
    return [one.model_copy(update={"gangs": [*one.gangs, *more.get(one.execution, [])]}) for one in found]


def _is_of(one: ExecutionUsage, found: list[ExecutionUsage], gang: GangUsage) -> bool:
    """Whether an execution launched this generation: it is the last that began before the nodes did.

    Nodes on other machines have clocks of their own, so a second is allowed.
    """
    started = min(node.started for node in gang.nodes)
    before = [each for each in found if each.began <= started + 1] or found[:1]
    return before[-1].execution == one.execution
