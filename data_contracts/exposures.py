"""The records of the exposure ledger: the comparisons that a set of test rows decided, and what it had spent before."""

from __future__ import annotations

from pydantic import Field

from data_contracts.canonical import digest
from data_contracts.records import HandOff, Record


class ExposureEntry(HandOff):
    """One comparison on a set of test rows, written before its verdict is known.

    Attributes:
        candidate, champion: ids of the two checkpoints.
        question: digest of what was asked, and of all rows that were looked at.
        candidates: how many candidates had been compared on these rows before this one was chosen, with it.
        previous: seal of the entry before it on the same rows, "" for the first; None in entries of earlier versions.
    """

    candidate: str
    champion: str
    question: str
    candidates: int = Field(default=1, ge=1, le=1_000_000)
    previous: str | None = Field(default=None, exclude_if=lambda seal: seal is None)

    @property
    def seal(self) -> str:
        """What the next entry and the next receipt state of this one, and so of all before it."""
        return digest(self.to_json())

    @property
    def key(self) -> str:
        """A key that is the same for the same comparison, on whichever rows it is entered."""
        return " ".join((self.candidate, self.champion, self.question))

    def same(self, other: ExposureEntry) -> bool:
        """Whether both are the same comparison, so that the second spends nothing."""
        return self.key == other.key


class LedgerState(Record):
    """What a receipt states of the comparisons on one set of rows: their number, the last one's seal, its marks.

    Attributes:
        better: of the entries, those that were marked as better.
    """

    entries: int = Field(ge=1)
    seal: str
    better: int = Field(ge=0)


class SpentBefore(HandOff):
    """What a set of rows had spent before one comparison; counted once, after its entry was written.

    Attributes:
        before: comparisons; one on other rows counts by twice the share of these rows that it had, up to 1.
        promoted: those of them that found the candidate better.
    """

    before: float = Field(ge=0)
    promoted: float = Field(ge=0)
