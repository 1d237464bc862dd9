"""The records of a rollback: a hold, and a note of why an alias went back and what was known of both versions."""

from __future__ import annotations

from pydantic import Field

from data_contracts.records import Record
from data_contracts.times import readable


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
