"""The results of the gates: for each gate whether it was met, and its evidence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.records import Record, Sentence

GateVerdict = Literal["better", "worse", "insufficient"]


class Evidence(Record):
    """What the scores on the rows that a gate with `confidence` is about say.

    Attributes:
        verdict: `better` if the gate is met, `worse` if the opposite of what was asked for is shown.
        estimate: the gain over the champion, in the direction of the metric's `mode`: positive where the candidate is
            better; for a gate with `min` or `max` the metric's value.
        low, high: the confidence interval of that, two-sided.
        method: how the interval was computed, in words.
        p_value: how likely such a gain or value is if the true one is not better than what was asked for.
        level: how small the p-value had to be.
        comparisons, promotions: what these rows had decided before; a part of one if they share a part of their rows.
        rows, units: rows that were compared; units of `evaluate.unit` among them, or None.
        batches: how many batches the rows were scored in, if the metric has one value for each batch.
        rows_needed: rows that would decide if the gain stays as it is; None if they would not, or are not needed.
    """

    verdict: GateVerdict
    estimate: float
    low: float
    high: float
    confidence: float
    method: str
    p_value: float
    level: float
    comparisons: float
    promotions: float
    rows: int
    units: int | None = None
    batches: int | None = Field(default=None, exclude_if=lambda number: number is None)
    rows_needed: int | None = None


class GateResult(Record):
    """One gate: whether it was met, and one sentence that says by how much.

    Attributes:
        bound: the value, gain, loss or gap that was asked for.
        slice: the slice of rows that the gate is about; "" for all.
        evidence: of a gate with `confidence` that was asked.
        sealed: whether the gate is about a sealed set: no figure of it is here, and `value` is 0.
        skipped: whether the comparison was not made; the sentence says why, and `value` is 0.
        ledger: what the gate's rows have decided now, and can still decide; "" if it was not asked.
    """

    metric: str
    met: bool
    value: float
    bound: float
    champion_value: float | None = None
    sentence: Sentence
    slice: str = Field(default="", exclude_if=lambda name: not name)
    evidence: Evidence | None = Field(default=None, exclude_if=lambda evidence: evidence is None)
    sealed: bool = Field(default=False, exclude_if=lambda sealed: not sealed)
    skipped: bool = Field(default=False, exclude_if=lambda skipped: not skipped)
    ledger: str = Field(default="", exclude_if=lambda sentence: not sentence)
