"""Writes the records of many runs into a store, as a month of nights leaves them: reports and what was used."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from data_contracts.executions import ExecutionUsage, GangUsage, NodeUsage, StageUsage
from data_contracts.resolved import Price
from data_contracts.run_report import RunReport, StageResult
from infra.store import Store, layout

PRICE = Price(machine="gpu", per_hour=36.0, price_date="2026-01-01", devices=8, pool="gpu")
# Verdict, cause, how often.
ENDS = (
    ("promoted", "", 40),
    ("not_promoted", "gate_not_met", 25),
    ("unchanged", "", 10),
    ("rejected", "contract_rejected", 8),
    ("failed", "node_lost", 3),
    ("failed", "user_code", 6),
    ("cancelled", "cancelled", 3),
    ("over_budget", "over_budget", 2),
)


def run_id_at(at: datetime, number: int = 0) -> str:
    """The id of a run that began at a time."""
    return f"{at.astimezone(UTC):%Y%m%d-%H%M%S}-{number:06x}"


def report(run_id: str, began: datetime, ended: datetime, verdict: Any = "promoted", **changes: Any) -> RunReport:
    """The report of a run."""
    known: dict[str, Any] = {
        "pipeline": "orders",
        "exit_code": 0,
        "sentence": "a sentence that may quote <b>data</b>",
        "stages": [StageResult(name="train", status="ran", seconds=1.0)],
        "trigger": "schedule",
        "started": began.isoformat(timespec="seconds"),
        "finished": ended.isoformat(timespec="seconds"),
    }
    return RunReport(run_id=run_id, verdict=verdict, **{**known, **changes})


def failure(cause: str) -> dict[str, Any]:
    """The error of a report, with a text that nobody else may read."""
    return {"cause": cause, "message": "secret 4711", "remedy": "", "user_traceback": "", "details": {}}


def usage(run_id: str, began: datetime, ended: datetime | None, *gangs: GangUsage, **changes: Any) -> ExecutionUsage:
    """What one execution of a run used."""
    start, over = began.timestamp() + 5, (began if ended is None else ended).timestamp() - 5
    known: dict[str, Any] = {
        "execution": "e1",
        "pipeline": "orders",
        "model": "orders",
        "tags": {"team": "a"},
        "prices": {"train": PRICE, "here": PRICE},
        "began": began.timestamp(),
        "ended": None if ended is None else ended.timestamp(),
        "stages": [StageUsage(name="train", began=start, ended=max(over, start), status="ran")],
        "gangs": list(gangs),
    }
    return ExecutionUsage(run_id=run_id, **{**known, **changes})


def generation(began: datetime, until: datetime, number: int = 0, **changes: Any) -> GangUsage:
    """One generation of a training on one node that works all but ten seconds."""
    start, over = began.timestamp(), until.timestamp()
    node = NodeUsage(number=0, started=start, joined=start + 2, working=start + 4, stopped=over - 6, released=over)
    known: dict[str, Any] = {
        "stage": "train", "where": "trainings/k-0", "local": False, "nodes": [node], "met": start + 2,
        "last_step": 100, "kept_step": 100, "saves": 4,
    }  # fmt: skip
    return GangUsage(generation=number, **{**known, **changes})


def write(store: Store, one: RunReport | None, *used: ExecutionUsage) -> None:
    """Write a run's report, final or not, and its executions."""
    if one is not None:
        final = one.verdict not in ("failed", "cancelled", "over_budget", "waiting")
        path = layout.report(one.run_id) if final else layout.run_attempt(one.run_id, 0)
        store.create_once(path, one.to_json())
    for each in used:
        what = "began" if each.ended is None else "ended"
        store.create_once(layout.usage(each.run_id, each.execution, what), each.to_json())


def write_month(store: Store, number: int, now: datetime, *, pipelines: int = 5, seed: int = 0) -> None:
    """Write so many runs, spread over the 28 days before `now`."""
    dice = random.Random(seed)
    ends = [end for end in ENDS for _ in range(end[2])]
    for index in range(number):
        began = now - timedelta(days=28) * (1 - index / number) + timedelta(minutes=5)
        ended = min(began + timedelta(minutes=dice.randint(5, 300)), now)
        verdict, cause, _ = dice.choice(ends)
        run_id = run_id_at(began, index)
        named = {"pipeline": f"pipeline-{index % pipelines}", "tags": {"team": "a"}}
        error = {"cause": cause, "message": "", "remedy": "", "user_traceback": "", "details": {}} if cause else None
        made = generation(
            began, ended, where=f"trainings/{index:032x}-0", ended=cause if verdict == "failed" else "done"
        )
        one = report(run_id, began, ended, verdict, error=error, **named)
        write(store, one, usage(run_id, began, ended, made, **named))
