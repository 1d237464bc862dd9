"""A canary: a version that stands beside the champion until fresh rows show which one is better.

Its terms are sealed in the receipt by which it began. Its nights and its end are records of their own, each created
once. So the first end counts, whoever writes it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from data_contracts.approved import Approval
from data_contracts.gate_results import GateResult
from data_contracts.records import HandOff, Record

# The alias that a canary stands under.
ALIAS = "canary"
Outcome = Literal["promoted", "worse", "expired", "refused", "held", "withdrawn"]


class CanaryTerms(Record):
    """The terms when a canary began; later changes of the spec do not change them.

    Attributes:
        alias: the alias that it moves to if it is shown to be better.
        against: version of the champion at that time.
        metric, mode, metric_digest: what decides, and the digest of how `evaluate` defined it.
        bound: the gain that must be shown; negative if a loss is accepted.
        confidence: 1 minus the accepted probability of a false "better".
        since, until: UTC, ISO 8601.
    """

    alias: str
    against: int
    metric: str
    mode: Literal["max", "min"]
    metric_digest: str
    bound: float
    confidence: float
    min_rows: int
    since: str
    until: str

    def is_over(self, now: str) -> bool:
        """Whether the window has passed at a time."""
        return datetime.fromisoformat(now) > datetime.fromisoformat(self.until)


class Night(HandOff):
    """The fresh rows of one run, tallied for one canary and one champion.

    Attributes:
        run_id, at: the run that scored them, and when (UTC, ISO 8601).
        rows, rows_id: their number, and the name of the file with their digests.
        tally: as `tasks.evidence.sequential.Tally` writes it.
        evaluations: ids of the canary's and the champion's evaluation, shortened.
    """

    run_id: str
    at: str
    rows: int
    rows_id: str
    tally: dict[str, Any]
    evaluations: tuple[str, str]


class Standing(Record):
    """What the fresh rows show about a canary so far.

    Attributes:
        champion: the version that it was compared with.
        rows, nights: fresh rows, and runs that scored some.
        verdict: `open` also while there are fewer rows than `min_rows`.
        gain, low, high: of the metric over the champion, and its interval, in the direction of `mode`; None as long as
            nothing is known.
        method: how the interval was computed, in words.
        rows_to_go: about how many more rows decide if the gain stays as it is; None if that is not known.
    """

    champion: int
    rows: int
    nights: int
    verdict: Literal["better", "worse", "open"]
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    method: str = ""
    rows_to_go: int | None = None


class CanaryEnd(HandOff):
    """How a canary ended; created once, so the first one counts for every reader.

    Attributes:
        reason: as the end of a sentence.
        by: the person, or the run's actor; run_id: "" if no run ended it.
        champion_receipt: with `promoted`: the receipt that the alias named, so that it moves from there or not at all.
        standing: what the rows said; None if nothing was compared.
        gate, approval: of a promotion: the decision as a gate's result, and who approved it.
    """

    outcome: Outcome
    reason: str
    by: str
    at: str
    run_id: str
    champion_receipt: dict[str, Any] | None = None
    standing: Standing | None = None
    gate: GateResult | None = None
    approval: Approval | None = None


class CanaryAsk(HandOff):
    """A canary was shown to be better, and its promotion needs an approval; created once for each champion.

    Attributes:
        run_id: the run that asks.
        standing, gate: what the rows showed then. Later rows do not change it.
    """

    run_id: str
    at: str
    standing: Standing
    gate: GateResult


class CanaryNote(Record):
    """A canary in the receipts of its promotion and of its end.

    Attributes:
        seal: of the receipt by which it began.
        version: that stood.
        terms: as they were agreed.
        nights: the tallies that were added up, oldest first.
    """

    seal: str
    version: int
    outcome: Outcome
    reason: str
    terms: CanaryTerms
    standing: Standing | None = None
    nights: list[Night] = Field(default_factory=list)
