"""The comparison of two profiles as it is sealed with a contract report and shown."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.records import Record, Sentence

Verdict = Literal["same", "negligible", "warning", "critical"]
VERDICTS: tuple[Verdict, ...] = ("same", "negligible", "warning", "critical")


class Bar(Record):
    """One bar of a picture: a value or a range, and its share of the values then and now."""

    label: str
    then: float
    now: float


class ColumnDrift(Record):
    """How one column has moved.

    Attributes:
        verdict: `warning`: it moved; `critical`: it moved far; `negligible`: not by chance, but too little to matter.
        p: probability of such a difference by chance, corrected for the number of tests of all columns.
        psi: population stability index, without what chance alone adds.
        js: Jensen-Shannon divergence in bits, 0 to 1.
        ks: the largest distance between the distribution functions; of numbers, and of the lengths of texts.
        largest: the largest change of a value's or range's share.
        nulls: share of missing values, then and now.
        means: then and now, where both are known.
        new_share: share of values now that did not exist then; `new`: some of them.
        bars: for a picture; empty where nothing moved.
        sentence: what moved, in words.
    """

    column: str
    verdict: Verdict
    p: float
    psi: float = 0.0
    js: float = 0.0
    ks: float = 0.0
    largest: float = 0.0
    nulls: tuple[float, float]
    means: tuple[float, float] | None = None
    new_share: float = 0.0
    new: list[str] = Field(default_factory=list)
    bars: list[Bar] = Field(default_factory=list)
    sentence: Sentence

    @property
    def what(self) -> str:
        """The sentence about what moved, without the column's name."""
        return self.sentence.removeprefix(f"{self.column}: ").removeprefix(f"{self.column} ")


class DriftReport(Record):
    """The comparison of a run's raw data with earlier data.

    Attributes:
        against: name of the earlier data, for a sentence.
        rows: then and now.
        columns: those that moved most come first.
        note: why nothing was compared; "" if columns were compared.
    """

    against: str
    rows: tuple[int, int] = (0, 0)
    columns: list[ColumnDrift] = Field(default_factory=list)
    note: Sentence = ""

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict of a column."""
        return max((one.verdict for one in self.columns), key=VERDICTS.index, default="same")

    @property
    def moved(self) -> list[ColumnDrift]:
        """The columns that moved."""
        return [one for one in self.columns if one.verdict in ("warning", "critical")]

    @property
    def head(self) -> str:
        """How many columns moved, in one sentence without a full stop; or why nothing was compared."""
        if self.note or not self.moved:
            return self.sentence
        return f"{len(self.moved)} of {len(self.columns)} columns moved against {self.against}"

    @property
    def sentence(self) -> str:
        """What moved, in one sentence without a full stop."""
        if self.note:
            return self.note
        moved = self.moved
        if not moved:
            return f"no column has moved against {self.against}"
        named = "; ".join(one.sentence for one in moved[:3]) + (f"; and {len(moved) - 3} more" * (len(moved) > 3))
        return f"{self.head}: {named}"
