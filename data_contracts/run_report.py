"""The report of a run: how each stage ended, the verdict and the cost; and what CI shows of a run.

CI's report may be public: no value of the data, no error's text and no person's name is in it.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

from pydantic import Field, model_validator

from data_contracts.errors import AWAY, SERVER
from data_contracts.records import Error, HandOff, Record, Sentence

StageStatus = Literal["ran", "reused", "rejected", "failed", "skipped", "cancelled", "waiting"]
Verdict = Literal[
    "promoted", "canary", "unchanged", "trained", "not_promoted", "rejected", "failed", "cancelled", "waiting",
    "over_budget",
]  # fmt: skip
Trigger = Literal["cli", "schedule", "ci", "ui", "automation"]


class Cost(Record):
    """What nodes cost: node-seconds from launch to release times the dated price of the price book.

    Attributes:
        usd: in USD; None if the price of any of them is unknown, or is in another currency.
        machine, usd_per_hour, price_date: of a node that trains; None and "" if its price is unknown.
        amounts: the known part by currency, where that is not all in USD.
        unpriced_s: node-seconds whose price is unknown.
    """

    node_seconds: float = 0.0
    usd: float | None = None
    machine: str = "local"
    usd_per_hour: float | None = None
    price_date: str = ""
    amounts: dict[str, float] = Field(default_factory=dict, exclude_if=operator.not_)
    unpriced_s: float = Field(default=0.0, exclude_if=operator.not_)

    @model_validator(mode="before")
    @classmethod
    def _earlier(cls, value: Any) -> Any:
        """A cost of an earlier run: 0 without a day where the price was unknown."""
        if not isinstance(value, dict) or value.get("price_date") or value.get("usd") or value.get("amounts"):
            return value
        return {**value, "usd": None, "usd_per_hour": None, "unpriced_s": value.get("node_seconds", 0.0)}

    @property
    def money(self) -> str:
        """The amount in words, such as `0.0005 USD`, `at least 0.2000 EUR` or `unknown`."""
        known = {"USD": self.usd} if self.usd is not None else self.amounts
        if not known:
            return "unknown"
        text = " + ".join(f"{amount:.4f} {currency}" for currency, amount in sorted(known.items()))
        return f"at least {text}" if self.unpriced_s else text


class StageResult(Record):
    """How one stage ended. `id` is the id of the result that it made or reused; `reused_from` says what was reused."""

    name: str
    status: StageStatus
    seconds: float
    id: str | None = None
    reused_from: str | None = None
    sentence: Sentence = ""


class ModelName(Record):
    """A model as a report names it."""

    name: str
    version: int | None
    alias: str | None


class RunReport(HandOff):
    """One page about one run; `trainwright run --json` prints it.

    Attributes:
        error: the error that ended it, as `TrainwrightError.to_json` writes it; None if the line reached its end.
        budgets: the warnings about budgets that the run was the first to give, in words.
    """

    run_id: str
    pipeline: str
    verdict: Verdict
    exit_code: int
    sentence: Sentence
    stages: list[StageResult]
    error: Error | None = None
    dataset_id: str | None = None
    checkpoint_id: str | None = None
    model: ModelName | None = None
    metrics: dict[str, float] = {}
    cost: Cost = Cost()
    tags: dict[str, str] = {}
    trigger: Trigger = "cli"
    actor: str = ""
    commit: str | None = None
    dirty: bool = False
    started: str = ""
    finished: str = ""
    budgets: list[str] = Field(default_factory=list, exclude_if=operator.not_)

    @property
    def lacked_server(self) -> bool:
        """Whether the run ended only because the Prefect server was away: a reaper resumes it."""
        details = (self.error or {}).get("details")
        return isinstance(details, dict) and details.get(AWAY) == SERVER


CaseKind = Literal["spec", "stage", "expectation", "checkpoint", "gate"]
CaseStatus = Literal["passed", "failed", "warned", "skipped"]


class CiCase(Record):
    """One thing that was checked, and how it ended.

    Attributes:
        name: what was checked, in words; unique among the cases of its kind.
        status: `warned` if it does not hold and ends nothing.
        sentence: why it failed, was warned of or was skipped; else what it found, or "".
        field: the field of the spec that asks for it.
        entry: of an expectation: its index in the suite of `contract.suite`; None: of another suite.
        place: `file:line` of a mistake, as the message names it; "": where `field` or `entry` stands.
    """

    kind: CaseKind
    name: str
    status: CaseStatus
    sentence: Sentence = ""
    seconds: float | None = None
    field: tuple[str | int, ...] = ()
    entry: int | None = None
    place: str = ""


class CiReport(HandOff):
    """How a run ended, for CI.

    Attributes:
        run_id: "" if it ended before there was a run.
        cause: of the error that ended it, as in the error tree; "" if the line reached its end.
        suite: digest of the suite that the cases with an `entry` are of.
        commit: of the code that ran; None if it is not known.
    """

    pipeline: str
    run_id: str
    verdict: Verdict
    exit_code: int = Field(ge=0, le=255)
    sentence: Sentence
    cause: str = ""
    cases: tuple[CiCase, ...] = ()
    suite: str = ""
    model: ModelName | None = None
    metrics: dict[str, float] = {}
    cost: Cost = Cost()
    commit: str | None = None
    dirty: bool = False

    def of_kind(self, kind: CaseKind) -> list[CiCase]:
        """The cases of a kind, in order."""
        return [case for case in self.cases if case.kind == kind]

    @property
    def version(self) -> str:
        """The model as `name@alias version 3`; "" if there is no version."""
        model = self.model
        if model is None or model.version is None:
            return ""
        return f"{model.name}{f'@{model.alias}' if model.alias else ''} version {model.version}"
