"""The question of a run to a person before it promotes, the answer, and what both mean at a given time.

An answer counts for one question: it carries the question's digest, and the question names run, candidate, champion,
gates and the state of the alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field, TypeAdapter, model_validator

from data_contracts.canonical import Name, digest, readable
from data_contracts.handoffs import GateResult, HandOff, Record, Ref
from data_contracts.records import signed_bytes

# The types of the bytes that a signed answer and a signed protection sign, in the envelopes around them.
PAYLOAD_TYPE = "application/vnd.trainwright.approval+json"
PROTECTION_TYPE = "application/vnd.trainwright.protection+json"
# Characters of what a person writes, on the command line and in the form alike.
MOST_NAME, MOST_REASON = 100, 500
Decision = Literal["approved", "refused", "expired", "superseded"]
# Answers that no person gives, by what gives them.
_NOBODYS = {"expired": "deadline", "superseded": "run"}
Standing = Literal["waiting", "approved", "refused"]
_AWARE: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)


def _moment(text: str) -> str:
    _AWARE.validate_python(text)
    return text


# A time with its zone, in ISO 8601.
Moment = Annotated[str, AfterValidator(_moment)]


def gates_digest(gates: Sequence[GateResult]) -> str:
    """A digest of what gates found, without what their rows can still decide, which changes from day to day."""
    return digest([{**one.to_json(), "ledger": ""} for one in gates])


class About(Record):
    """What an answer is about, in its signature: enough to verify it beside the receipt, without the question.

    Attributes:
        candidate: id of the checkpoint; champion: id of the model version that it would replace, "" if there is none.
        gates: `gates_digest` of what the gates found.
        store: address of the run's store, so that an answer counts in no copy elsewhere; "" in earlier versions.
    """

    model: Name
    alias: Name
    candidate: str
    champion: str
    gates: str
    store: str = Field(default="", exclude_if=lambda address: not address)


class Question(HandOff):
    """May this candidate be promoted? Asked once all gates are met.

    Attributes:
        n: its number in the run, from 0; a run asks again if the champion has moved.
        candidate, evaluation: the checkpoint that would be promoted, and its scores.
        champion, champion_version: the model version that it would replace; None if there is none.
        gates: what the gates found.
        asked_at, deadline: UTC, ISO 8601.
        state: seal of the alias's newest receipt; "" if there is none, None in a question of an earlier version.
        approvers: ids of the keys that the spec lets approve; [] if it names none.
        store: address of the store, as the run opened it; "" in a question of an earlier version, which is asked again.
    """

    run_id: Name
    n: int = Field(ge=0)
    pipeline: str
    model: Name
    alias: Name
    candidate: Ref
    evaluation: Ref
    champion: Ref | None
    champion_version: int | None
    gates: list[GateResult] = Field(default=[])
    asked_at: Moment = Field(alias="asked")
    deadline: Moment
    state: str | None = Field(default=None, exclude_if=lambda one: one is None)
    approvers: list[str] = Field(default=[], exclude_if=lambda ids: not ids)
    store: str = Field(default="", exclude_if=lambda address: not address)

    @property
    def about(self) -> About:
        """What a signed answer repeats of the question."""
        champion = self.champion.id if self.champion is not None else ""
        about = {"model": self.model, "alias": self.alias, "candidate": self.candidate.id, "champion": champion}
        return About(**about, gates=gates_digest(self.gates), store=self.store)

    @property
    def digest(self) -> str:
        """What an answer to this question names."""
        return digest(self.to_json())

    @property
    def name(self) -> str:
        """The model and its alias."""
        return f"{self.model}@{self.alias}"


class Answer(HandOff):
    """What a person answered.

    `expired` is written by the first process that finds the deadline passed, `superseded` by a run that asks about the
    same alias later.

    Attributes:
        question: digest of the question.
        by: the person, as stated; a signature shows who holds the key.
        via: the command line, Prefect's pages, these behind a team's proxy, which checked who `by` is, the deadline, or
            a later run, whose id is then `by`.
        at: UTC, ISO 8601, by the clock of the machine that wrote it.
        about: what a signed answer is about; None in others, and in those of earlier versions.
        signature: a DSSE envelope whose payload is `signed_bytes`; None if the answer is not signed.
    """

    question: str
    decision: Decision
    by: str
    via: Literal["cli", "prefect", "proxy", "deadline", "run"]
    reason: str
    at: Moment
    about: About | None = Field(default=None, exclude_if=lambda one: one is None)
    signature: dict[str, Any] | None = Field(default=None, exclude_if=lambda one: one is None)

    @model_validator(mode="after")
    def _people_approve_or_refuse(self) -> Answer:
        if _NOBODYS.get(self.decision) != (self.via if self.via in _NOBODYS.values() else None):
            raise ValueError(f"an answer via {self.via} cannot be {self.decision}")
        return self

    @property
    def signed_bytes(self) -> bytes:
        """What a signature covers: everything but itself, as canonical JSON."""
        return signed_bytes(self)


@dataclass(frozen=True)
class Meaning:
    """What a question and its answer mean.

    Attributes:
        reason: for a refusal, as the end of a sentence; "" otherwise.
    """

    standing: Standing
    reason: str = ""


def is_late(question: Question, at: str) -> bool:
    """Whether a time is after the question's deadline."""
    return datetime.fromisoformat(at) > datetime.fromisoformat(question.deadline)


def meaning(question: Question, answer: Answer | None, now: str) -> Meaning:
    """What the answer means at the time `now`; the same for every reader once there is an answer.

    Signatures are not looked at here.
    """
    if answer is None:
        return Meaning("refused", expired(question)) if is_late(question, now) else Meaning("waiting")
    if answer.question != question.digest:
        return Meaning("refused", "the answer in the store is about another question")
    if answer.decision == "expired":
        return Meaning("refused", expired(question))
    if answer.decision == "superseded":
        return Meaning("refused", answer.reason)
    if is_late(question, answer.at):
        late = [readable(one, seconds=True) for one in (answer.at, question.deadline)]
        return Meaning("refused", f"{answer.by} answered at {late[0]}, after the deadline {late[1]}")
    if answer.decision == "refused":
        return Meaning("refused", f'{answer.by} refused it at {readable(answer.at)}: "{answer.reason}"')
    return Meaning("approved")


def expired(question: Question) -> str:
    """Why a question that nobody answered in time counts as refused."""
    return f"nobody answered before the deadline {readable(question.deadline)}"


class Protection(HandOff):
    """What was decided about an alias: whether its promotions need an approval.

    Attributes:
        keys: public keys of approvers, in PEM: only answers signed with one of these count; [] if any answer counts.
        by, at, reason: who decided it, when (UTC, ISO 8601) and why, as stated.
        n: its number among the alias's decisions, if it is signed; signature: a DSSE envelope around `signed_bytes`.
    """

    model: Name
    alias: Name
    protected: bool
    keys: list[str] = Field(default=[], exclude_if=lambda keys: not keys)
    by: str
    at: Moment
    reason: str
    n: int | None = Field(default=None, exclude_if=lambda n: n is None)
    signature: dict[str, object] | None = Field(default=None, exclude_if=lambda one: one is None)

    @property
    def name(self) -> str:
        """The model and its alias."""
        return f"{self.model}@{self.alias}"

    @property
    def signed_bytes(self) -> bytes:
        """What a signature covers: everything but itself, as canonical JSON."""
        return signed_bytes(self)

    @property
    def sentence(self) -> str:
        """Who decided it, when and why, as the end of a sentence."""
        count = len(self.keys)
        signed = f"; only answers signed with {'its key' if count == 1 else f'one of {count} keys'} count"
        vouched = "; the decision is signed" if self.signature else "; nobody signed the decision" if count else ""
        return f'{self.by} decided so at {readable(self.at)}: "{self.reason}"{signed if count else ""}{vouched}'
