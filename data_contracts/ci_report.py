"""What CI shows of a run. It may be public: no value of the data, no error's text and no person's name is in it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.records import HandOff, Record, Sentence
from data_contracts.run_report import Cost, ModelName, Verdict

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
