"""What a day's page shows of a store: runs, objectives, champions, drift, budgets, nodes, and what waits for a person.

It only reads. A part that cannot be read is missing, and named in `missing`; it ends nothing. What waits is a run for
an approval.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from data_contracts.approvals import meaning
from data_contracts.canonical import readable
from data_contracts.errors import CorruptError, TrainwrightError, UsageError
from data_contracts.handoffs import ContractReport
from data_contracts.records import DriftReport
from data_contracts.rules import Objectives
from infra.approvals import latest_question, stored_answer
from infra.audit import now
from infra.models import registry
from infra.records.handoffs import read_handoff
from infra.records.nodes import NodeRecord, nodes_of
from infra.records.receipts import chain
from infra.store import Store, layout
from infra.store.store import read_several
from tasks.budgets import BudgetBalance, balances_of_month, month_of
from tasks.run.report import latest_report
from tasks.run.resolve import find_inputs
from tasks.run.run import RunInputs
from tasks.slo import WINDOW, LedgerRun, Result, read_ledger, results
from tasks.stages.validate import contract_key

# Days in the pictures, and pipelines whose newest data is looked at.
STRIP_DAYS, MOST_PIPELINES = 14, 50
# Share of a disk. A checkpoint may take what is left.
NEARLY_FULL = 0.9
T = TypeVar("T")


def standing_of(store: Store, run_id: str) -> str:
    """What a waiting run waits for, as the end of `waiting …`; "" if it has asked nothing."""
    question = latest_question(store, run_id)
    if question is None:
        return ""
    answer = stored_answer(store, question)
    means = meaning(question, answer, now())
    if means.standing == "waiting":
        return f"for an answer before {readable(question.deadline)}"
    if answer is not None and answer.decision == "superseded":
        return f"for nothing: {means.reason}"
    if means.standing == "refused":
        return f"to be resumed: {means.reason}"
    return f"to be resumed: {answer.by if answer else 'a person'} approved it"


@dataclass(frozen=True)
class Champion:
    """The version that an alias names; `since`: when it moved there, ISO 8601, "" if the receipt does not say."""

    model: str
    alias: str
    version: int
    since: str


@dataclass(frozen=True)
class DriftLine:
    """The newest comparison of a pipeline's data with earlier data."""

    pipeline: str
    run_id: str
    verdict: str
    head: str


@dataclass(frozen=True)
class StoreDay:
    """A store at a time.

    Attributes:
        runs: of 28 days, oldest first; unreadable: ids of runs with damaged records.
        waits: for each run that waits for a person, its id and what it waits for.
        used: share of its disk that is used; None: it is not in a folder.
        missing: the parts that could not be read, in words; is_away: the whole store.
    """

    uri: str
    runs: Sequence[LedgerRun] = ()
    unreadable: Sequence[str] = ()
    results: Sequence[Result] = ()
    champions: Sequence[Champion] = ()
    drift: Sequence[DriftLine] = ()
    budgets: Sequence[BudgetBalance] = ()
    nodes: Sequence[NodeRecord] = ()
    waits: Sequence[tuple[LedgerRun, str]] = ()
    used: float | None = None
    missing: Sequence[str] = ()
    is_away: bool = False

    @property
    def is_nearly_full(self) -> bool:
        """Whether little is left of its disk."""
        return self.used is not None and self.used >= NEARLY_FULL


@dataclass(frozen=True)
class Day:
    """The stores from `since` to `now`."""

    since: datetime
    now: datetime
    stores: Sequence[StoreDay]

    def recent(self, store: StoreDay) -> list[LedgerRun]:
        """The runs that ended after `since` or have not ended, the newest first."""
        return sorted(
            (run for run in store.runs if run.ended >= self.since.timestamp() or run.blame == "open"),
            key=lambda run: run.ended,
            reverse=True,
        )


@dataclass
class _Parts:
    """Reads parts, and notes those that cannot be read."""

    missing: list[str] = field(default_factory=list)

    def read(self, what: str, read: Callable[[], T], without: T) -> T:
        try:
            return read()
        except TrainwrightError as error:
            why = error.message.rstrip(".") if isinstance(error, CorruptError | UsageError) else error.cause
            self.missing.append(f"{what}: {why}")
        except Exception as error:  # of a store of any age and state; the text may quote a value
            self.missing.append(f"{what}: {type(error).__name__}")
        return without


def store_day(store: Store, since: datetime, now: datetime, objectives: Objectives) -> StoreDay:
    """What a store shows at a time. StorageUnavailable if it is away."""
    parts = _Parts()
    known = read_ledger(store, min(since, now - WINDOW), now)
    waiting = [run for run in known.runs if run.verdict == "waiting"]
    standing = read_several(
        store, lambda run: parts.read(run.run_id, partial(standing_of, store, run.run_id), ""), waiting
    )
    return StoreDay(
        uri=store.uri,
        runs=known.runs,
        unreadable=known.unreadable,
        results=results(objectives, known.runs, now),
        champions=parts.read("champions", lambda: _champions(store), []),
        drift=_drifts(store, known.runs, parts),
        budgets=parts.read("budgets", lambda: balances_of_month(store, month_of(time.time()), settle=False)[0], []),
        nodes=parts.read("nodes", lambda: nodes_of(store), []),
        waits=list(zip(waiting, standing, strict=True)),
        used=parts.read("disk", lambda: _used(store), None),
        missing=sorted(parts.missing),
    )


def day_of(stores: Sequence[Store], objectives: Objectives, since: datetime | None = None) -> Day:
    """The day that ends now; `since`: its beginning, 24 hours ago by default."""
    now = datetime.now(UTC)
    began = now - timedelta(days=1) if since is None else since
    return Day(began, now, [_tried(store, began, now, objectives) for store in stores])


def _tried(store: Store, since: datetime, now: datetime, objectives: Objectives) -> StoreDay:
    """The store's day; a store that is away is missing, and the others are shown."""
    try:
        return store_day(store, since, now, objectives)
    except TrainwrightError as error:
        return StoreDay(store.uri, missing=[f"the store: {error.cause}"], is_away=True)


def _used(store: Store) -> float | None:
    """The share of a folder's disk that is used, as `df` counts it."""
    if not os.path.isdir(store.uri):
        return None
    disk = shutil.disk_usage(store.uri)
    return disk.used / (disk.used + disk.free)


def _champions(store: Store) -> list[Champion]:
    def champion(named: tuple[str, str, int]) -> Champion:
        model, alias, version = named
        return Champion(model, alias, version, _since(store, model, alias))

    return read_several(store, champion, registry.aliases(store))


def _since(store: Store, model: str, alias: str) -> str:
    """When an alias was moved to where it is; receipts that left it there are passed over."""
    pointer = registry.read_alias(store, model, alias)
    at = ""
    for manifest in chain(store, None if pointer is None else registry.newest_receipt(pointer[0])):
        at = str(manifest.provenance.get("finished", "") or manifest.provenance.get("started", ""))
        if manifest.settings.get("decision") != "unchanged":
            break
    return at


def _drifts(store: Store, runs: Sequence[LedgerRun], parts: _Parts) -> list[DriftLine]:
    """The newest comparison of each pipeline whose spec asks for one."""
    newest = {run.pipeline: run for run in runs if run.verdict not in ("running", "unknown")}

    def line(run: LedgerRun) -> DriftLine | None:
        report = parts.read(f"drift of {run.pipeline}", partial(_drift, store, run.run_id), None)
        if report is None:
            return None
        return DriftLine(run.pipeline, run.run_id, report.verdict, report.note or _moved(report))

    asked = [run for _, run in sorted(newest.items())[:MOST_PIPELINES]]
    return [found for found in read_several(store, line, asked) if found is not None]


def _moved(report: DriftReport) -> str:
    """How many columns moved. Their names and values are for the run's own page."""
    if not report.moved:
        return "no column has moved"
    return f"{len(report.moved)} of {len(report.columns)} columns moved"


def _drift(store: Store, run_id: str) -> DriftReport | None:
    report = latest_report(store, run_id)
    details = ((report.error if report is not None else None) or {}).get("details", {})
    if "suite_digest" in details:
        return ContractReport.model_validate(details).drift
    if (resolved := find_inputs(store, run_id)) is None:
        return None
    run = RunInputs(resolved, store)
    if run.spec.contract is None or run.spec.contract.drift is None:
        return None
    key = contract_key(run)
    for n in reversed(store.attempts("contracts", key) if key is not None else []):
        uri = layout.attempt("contracts", key or "", n)
        if store.exists(layout.manifest(uri)):
            return read_handoff(store, store.manifest(uri).ref, ContractReport).drift
    return None
