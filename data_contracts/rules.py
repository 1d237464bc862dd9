"""The rules that people write for a store: budgets, the policy on tags, and service level objectives.

A budget is a limit in money, node-hours or GPU-hours, for each run, for each calendar month (UTC) or for ever, of all
runs or of those with certain tags. A policy says which tags a spec must have, and with which values. An objective says
how often the pipeline succeeds, and in which time. The store keeps each version of budgets and policy.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from data_contracts.canonical import Name, digest
from data_contracts.pipeline_spec.base import Currency, FieldError, Section
from data_contracts.pipeline_spec.contract import length_of, up_to_a_year
from data_contracts.records import HandOff, Record, signed_bytes
from data_contracts.run_report import Trigger

VERSION = 1
# The type of the bytes that a signed version signs, in the envelope around them.
RULES_TYPE = "application/vnd.trainwright.edition+json"
EVERY_S = 60.0

# Letters and a symbol that are drawn as nothing: fillers of Hangul, and the empty pattern of Braille.
_BLANK = "\u115f\u1160\u3164\uffa0\u2800"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# What was used: bounded, so that no sum of what a store's writers may have planted is infinite.
Used = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Kind = Literal["budgets", "policy"]


class Limit(Section):
    """The limit of a budget: one of `amount`, `hours` and `gpu_hours`."""

    amount: Positive | None = None
    """In money; needs `currency`."""
    currency: Currency | None = None
    """ISO 4217 code of `amount`, such as USD."""
    hours: Positive | None = None
    """In hours of nodes: two nodes for an hour are 2."""
    gpu_hours: Positive | None = None
    """In hours of accelerators: two nodes with eight each for an hour are 16."""

    @model_validator(mode="after")
    def _is_one(self) -> Limit:
        given = [name for name in ("amount", "hours", "gpu_hours") if getattr(self, name) is not None]
        if len(given) != 1:
            which = " and ".join(given) or "none of them"
            raise FieldError((), f"a limit is one of amount, hours and gpu_hours, but this has {which}")
        if (self.amount is None) != (self.currency is None):
            raise FieldError("currency", "an amount needs its currency, such as USD, and nothing else has one")
        return self

    @property
    def value(self) -> float:
        """The limit as a number, in its unit."""
        return self.amount or self.hours or self.gpu_hours or 0.0

    @property
    def unit(self) -> str:
        """Its unit: a currency, `node-hours` or `GPU-hours`."""
        return self.currency or ("node-hours" if self.hours is not None else "GPU-hours")


class Budget(Section):
    """A limit, the runs that it is for, and what happens when it is reached."""

    where: dict[str, str] = Field(default_factory=dict)
    """Tags that a run must have, with these values; default: all runs."""
    pipeline: str | None = None
    """The pipeline whose runs it is for; default: every pipeline's."""
    per: Literal["run", "month", "all"]
    """`run`: each run has the limit for itself; `month`: all share it in a calendar month (UTC); `all`: all share it,
    for ever."""
    limit: Limit
    """How much may be used."""
    warn_at: list[Share] = Field(default_factory=list)
    """Shares of the limit, such as 0.8, at each of which a warning is given once in a period."""
    at_limit: Literal["stop", "refuse", "warn"] = "stop"
    """`stop`: runs end with a sealed checkpoint, and no other begins; `refuse`: no other begins; `warn`: neither."""

    def is_for(self, pipeline: str, tags: Mapping[str, str]) -> bool:
        """Whether a run of a pipeline with these tags uses it."""
        return self.pipeline in (None, pipeline) and all(tags.get(name) == value for name, value in self.where.items())

    @property
    def scope(self) -> str:
        """A digest of what is counted. The used amount of a budget stays when its limit is raised, but not when this
        digest changes.
        """
        return digest([self.where, self.pipeline, self.per, self.limit.unit])[:16]

    @property
    def runs(self) -> str:
        """The runs that it is for, in words."""
        parts = [f"{name}={value}" for name, value in sorted(self.where.items())]
        parts += [f"pipeline {self.pipeline}"] if self.pipeline is not None else []
        return ", ".join(parts) or "all runs"


class Budgets(Section):
    """A file of budgets."""

    called: ClassVar[str] = "a file of budgets"
    shown_in: ClassVar[str] = "docs/budgets.md"

    version: Literal[1]
    """Version of this format: 1."""
    every_s: float = Field(default=EVERY_S, ge=0.1, le=3600, allow_inf_nan=False)
    """Seconds of all its nodes that a run reserves ahead; default 60."""
    budgets: dict[Name, Budget]
    """The budgets, by name."""


class Policy(Section):
    """A file that says which tags a spec must have."""

    called: ClassVar[str] = "a policy"
    shown_in: ClassVar[str] = "docs/budgets.md"

    version: Literal[1]
    """Version of this format: 1."""
    tags: dict[str, list[str] | Literal["any"]]
    """Tags that each spec must have, with the values that are allowed, or `any`."""

    def fault(self, tags: Mapping[str, str]) -> tuple[str, str] | None:
        """The first tag that is missing or forbidden, and why; None if there is none."""
        for name, allowed in self.tags.items():
            value = tags.get(name)
            if value is None:
                wanted = "any value" if allowed == "any" else f"one of {', '.join(allowed)}"
                return name, f"is missing, and the policy demands it, with {wanted}"
            if allowed == "any" and not is_visible(value):
                return name, "is empty, and the policy demands a value"
            if allowed != "any" and value not in allowed:
                return name, f"{value!r} is not allowed by the policy, which has {', '.join(allowed) or 'no value'}"
        return None


class RulesVersion(HandOff):
    """One version of the budgets or of the policy of a store, created once; the newest holds.

    Attributes:
        n: its number, from 0.
        content: of the file, checked.
        by, at: who applied it, as stated, and when (UTC, ISO 8601).
        store: address of the store that a signature is for; None: unsigned, or signed by an earlier Trainwright.
        signature: a DSSE envelope whose payload is `signed_bytes`; None if nobody vouches for it.
    """

    kind: Kind
    n: int = Field(ge=0)
    content: dict[str, object]
    by: str
    at: str
    store: str | None = Field(default=None, exclude_if=lambda one: one is None)
    signature: dict[str, object] | None = Field(default=None, exclude_if=lambda one: one is None)

    @property
    def signed_bytes(self) -> bytes:
        """What a signature covers: everything but itself, as canonical JSON."""
        return signed_bytes(self)


class Hold(Record):
    """An execution's hold on a budget in a period: the amount that it has used, and the amount that it reserved."""

    run_id: Name
    execution: Name
    amount: Used

    @property
    def key(self) -> str:
        """Its name in a ledger."""
        return f"{self.run_id}.{self.execution}"


class Balance(Record):
    """A budget in a period: what ended executions used, and what the others hold."""

    spent: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    holds: dict[str, Hold] = Field(default_factory=dict)

    @field_validator("holds")
    @classmethod
    def _of_their_keys(cls, holds: dict[str, Hold]) -> dict[str, Hold]:
        """Leave out a hold under another key than its own: no process wrote it, so none would ever end it."""
        return {key: hold for key, hold in holds.items() if key == hold.key}

    @property
    def reserved(self) -> float:
        """The sum of the holds."""
        return sum(hold.amount for hold in self.holds.values())


class SpendingEntry(HandOff):
    """What one execution of a run used of a budget in a period, from its records of use; created once."""

    budget: Name
    period: Name
    run_id: Name
    execution: Name
    amount: Used
    unit: str
    at: str


class BudgetWarning(HandOff):
    """A share of a budget was reached in a period; created once. Share 1 means that the limit is reached."""

    budget: Name
    period: Name
    share: float
    used: float
    limit: float
    unit: str
    run_id: Name
    at: str

    @property
    def sentence(self) -> str:
        """The warning in words."""
        reached = "its limit" if self.share >= 1 else f"{self.share:.0%} of its limit"
        used = f"{shown(self.used)} of {shown(self.limit)} {self.unit} are used or reserved"
        return f"The budget {self.budget} ({self.period}) has reached {reached}: {used}."


def is_visible(text: str) -> bool:
    """Whether a text shows anything: white space, control characters and those without width or ink are no value."""
    return any(unicodedata.category(one)[0] in "LNPS" and one not in _BLANK for one in text)


def shown(amount: float) -> str:
    """An amount with the digits that a person needs."""
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.4g}"


Measure = Literal["success", "time", "checkpoints", "resumes", "goodput"]


class Objective(Section):
    """What is measured of which runs, and the share of it that must be good in 28 days."""

    measure: Measure
    """`success`: runs that did their work; `time`: runs that were done within `within`; `goodput`: node-seconds that
    were work. `checkpoints` and `resumes` have had no data since 2026-11-29: dropped."""
    target: Annotated[float, Field(gt=0, lt=1)]
    """The share that must be good, such as 0.95; the rest is the error budget."""
    within: Annotated[str, AfterValidator(up_to_a_year)] | None = None
    """For `time`: how long a run may take, such as 8h; the time that it waits for a person is not counted."""
    where: dict[str, str] = Field(default_factory=dict)
    """Tags that a run must have, with these values; default: all runs."""
    pipeline: str | None = None
    """The pipeline whose runs it is for; default: every pipeline's."""
    triggers: list[Trigger] = Field(default_factory=list)
    """What started the runs that it is for: cli, schedule, ci, ui or automation; default: anything."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Objective:
        if self.measure == "time" and self.within is None:
            raise FieldError("within", "an objective about time needs the time that a run may take, such as 8h")
        if self.measure != "time" and self.within is not None:
            raise FieldError("within", f"only an objective about time has one, and this is about {self.measure}")
        return self

    @property
    def within_s(self) -> float:
        """The time that a run may take, in seconds; 0 if this is not about time."""
        return 0.0 if self.within is None else length_of(self.within).total_seconds()

    def is_for(self, pipeline: str, tags: Mapping[str, str], trigger: str) -> bool:
        """Whether a run counts."""
        named = self.pipeline in (None, pipeline) and (not self.triggers or trigger in self.triggers)
        return named and all(tags.get(name) == value for name, value in self.where.items())


class Objectives(Section):
    """A file of objectives."""

    called: ClassVar[str] = "a file of objectives"
    shown_in: ClassVar[str] = "docs/slo.md"

    version: Literal[1]
    """Version of this format: 1."""
    objectives: Annotated[dict[Name, Objective], Field(min_length=1)]
    """The objectives, by name."""
