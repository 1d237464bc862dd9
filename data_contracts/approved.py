"""The approval by which a version was promoted, as its receipt keeps it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from data_contracts.canonical import Name
from data_contracts.records import Record
from data_contracts.times import readable


def _absent(value: Any) -> bool:
    return not value


class Approval(Record):
    """Who approved a promotion, when and why.

    Attributes:
        run_id, n, question: the run that asked, the number of its question, and the question's digest.
        by: the person, as stated; only `keys` are proof.
        via: the command line, or Prefect's pages; there, `proxy` if a team's proxy checked the person's password.
        keys: ids of the approvers' keys that the answer was checked against and signed with; [] if none was asked for.
        signature: the envelope around the signed answer.
        public_key: the key, in PEM, so that a proof can verify the envelope again; "" in receipts of earlier versions.
        vouched: what vouched for the key: the run's `spec`, or a `protection` that the release key signed; "" if
            nothing did, because the key lay in the store and nobody signed it.
    """

    run_id: Name
    n: int
    question: str
    by: str
    via: Literal["cli", "prefect", "proxy"]
    reason: str
    at: str
    keys: list[str] = Field(default=[], exclude_if=_absent)
    signature: dict[str, Any] | None = Field(default=None, exclude_if=_absent)
    public_key: str = Field(default="", exclude_if=_absent)
    vouched: Literal["", "spec", "protection"] = Field(default="", exclude_if=_absent)

    @property
    def sentence(self) -> str:
        """Who approved, when, how that is known, and why."""
        signed = f"signed with the key {', '.join(one[:16] for one in self.keys)}"
        where = "on the command line" if self.via == "cli" else "in Prefect's pages"
        stated = "signed in at the proxy" if self.via == "proxy" else "name as stated"
        how = signed if self.keys else stated
        return f'{self.by} approved it at {readable(self.at)} {where} ({how}): "{self.reason}"'


class Force(Record):
    """Why a checkpoint was promoted although it was on hold.

    Attributes:
        by, reason: the person, as stated, and the reason as it was given.
        held: why it was on hold, as the end of a sentence.
    """

    by: str
    reason: str
    held: str

    @property
    def sentence(self) -> str:
        """Who lifted which hold, and why."""
        return f'{self.by} promoted it although it was on hold, because {self.held}: "{self.reason}"'
