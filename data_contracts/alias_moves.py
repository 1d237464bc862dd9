"""The records of why an alias moved, moved back, or waited: approvals, rollbacks with their holds, and canaries.

A receipt keeps the approval by which its version was promoted. A rollback leaves a hold, and a note of why the alias
went back and what was known of both versions.

A canary was a version that stood beside the champion until fresh rows showed which one was better (ADR 0047, until
2026-11-29). Receipts keep its terms, what its rows showed, and how it ended.
"""

from __future__ import annotations

import operator
from typing import Literal

from pydantic import Field

from data_contracts.canonical import Name, readable
from data_contracts.records import HandOff, Record


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
    keys: list[str] = Field(default=[], exclude_if=operator.not_)
    signature: dict[str, object] | None = Field(default=None, exclude_if=operator.not_)
    public_key: str = Field(default="", exclude_if=operator.not_)
    vouched: Literal["", "spec", "protection"] = Field(default="", exclude_if=operator.not_)

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
        hold_reason: why it was on hold, as the end of a sentence.
    """

    by: str
    reason: str
    hold_reason: str = Field(alias="held")

    @property
    def sentence(self) -> str:
        """Who lifted which hold, and why."""
        return f'{self.by} promoted it although it was on hold, because {self.hold_reason}: "{self.reason}"'


class VersionFacts(Record):
    """What the store knew of a version when an alias left it or went back to it.

    Attributes:
        since, by, run_id: when, by whom and in which run the alias was moved to it last (UTC, ISO 8601); "" if unknown.
        metrics: its scores, without those of sealed sets; {} if its evaluation is gone.
        gates: the sentences of the gates by which it was promoted.
    """

    version: int
    since: str = ""
    by: str = ""
    run_id: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)
    gates: list[str] = Field(default_factory=list)


class Incident(Record):
    """Why an alias went back.

    Attributes:
        reason, evidence: as the person gave them: one sentence, and links or figures; may be empty.
        left, back: the version that the alias left, and the one that it went back to.
        checked_files, checked_bytes: of that version's checkpoint, read again and found as sealed before the move.
    """

    reason: str = ""
    evidence: list[str] = Field(default_factory=list)
    left: VersionFacts
    back: VersionFacts
    checked_files: int = 0
    checked_bytes: int = 0


class Hold(Record):
    """A hold on a checkpoint that a person rolled an alias back from, that was withdrawn as a canary, or that was made
    with a bad package: not promoted there, or not put there again, until a person releases it.

    Attributes:
        version: the version that the alias left, or that has the checkpoint.
        by, at: the person who placed it, or the actor of the run that withdrew it, and the time (UTC, ISO 8601).
        reason: as it was given; "" if there was none.
        withdrawn: whether it was withdrawn as a canary.
        made_with: the package because of which a person put it on hold; "" for another hold.
    """

    checkpoint_id: str
    version: int
    by: str
    at: str
    reason: str = ""
    withdrawn: bool = Field(default=False, exclude_if=lambda one: not one)
    made_with: str = Field(default="", exclude_if=lambda package: not package)

    @property
    def sentence(self) -> str:
        """The person, time and reason, as the end of a sentence."""
        when = f" at {readable(self.at)}" if self.at else ""
        if self.withdrawn:
            return f"version {self.version} was withdrawn as canary{when} ({self.reason})"
        if self.made_with:
            return f'{self.by} held version {self.version}, made with {self.made_with}{when} ("{self.reason}")'
        return f"{self.by} rolled version {self.version} back{when}" + (f' ("{self.reason}")' if self.reason else "")


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


class ObservationBatch(HandOff):
    """The scores of one run's fresh rows, for one canary and one champion.

    Attributes:
        run_id, at: the run that scored them, and when (UTC, ISO 8601).
        rows, rows_id: their number, and the name of the file with their digests.
        accumulator: counts and exact sums over the rows' gains.
        evaluations: ids of the canary's and the champion's evaluation, shortened.
    """

    run_id: str
    at: str
    rows: int
    rows_id: str
    accumulator: dict[str, object] = Field(alias="tally")
    evaluations: tuple[str, str]


class CanaryStatus(Record):
    """What the fresh rows show about a canary so far.

    Attributes:
        champion: the version that it was compared with.
        rows, batches: fresh rows, and the runs that scored some.
        verdict: `open` also while there are fewer rows than `min_rows`.
        gain, low, high: of the metric over the champion, and its interval, in the direction of `mode`; None as long as
            nothing is known.
        method: how the interval was computed, in words.
        rows_to_go: about how many more rows decide if the gain stays as it is; None if that is not known.
    """

    champion: int
    rows: int
    batches: int = Field(alias="nights")
    verdict: Literal["better", "worse", "open"]
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    method: str = ""
    rows_to_go: int | None = None


class CanaryNote(Record):
    """A canary in the receipts of its promotion and of its end.

    Attributes:
        seal: of the receipt by which it began.
        version: that stood.
        terms: as they were agreed.
        batches: what was added up, oldest first.
    """

    seal: str
    version: int
    outcome: Outcome
    reason: str
    terms: CanaryTerms
    status: CanaryStatus | None = Field(default=None, alias="standing")
    batches: list[ObservationBatch] = Field(default_factory=list, alias="nights")
