"""What the store keeps of a search: how it is carried out, and its events, each created once under the next number.

The study that chooses the next trial is derived from the events alone, so it survives whatever the store survives.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.canonical import Name, digest
from data_contracts.pipeline_spec.search import SearchSpec, Value
from data_contracts.pipeline_spec.train import SelectSpec
from data_contracts.records import HandOff, Sentence

# The tag of a trial's run, whose value is the search's name.
TAG = "search"
TrialState = Literal["running", "finished", "pruned", "failed"]


class SearchRecord(HandOff):
    """How a search is carried out. A later record of it has another budget, or another number of trials at once.

    Attributes:
        spec: the section `search` of the pipeline's spec.
        select: what the best trial is best in.
        decides: digest of all that the pipeline's spec says about data and training.
        window: the part of the data that every trial reads, as `START..END`; None if the spec reads no window.
        begun: when (UTC, ISO 8601).
    """

    name: Name
    pipeline: Name
    spec: SearchSpec
    select: SelectSpec
    decides: str
    window: str | None
    begun: str

    @property
    def is_smaller_better(self) -> bool:
        """Whether the best trial has the smallest value."""
        return self.select.mode == "min"

    @property
    def identity(self) -> str:
        """Twelve digits that all records of the search have in common, and no other search."""
        return digest(self.model_dump(mode="json", exclude={"spec": {"budget", "parallel"}}))[:12]


class SearchEvent(HandOff):
    """Something that happened in a search.

    Attributes:
        kind: `asked`: a trial was chosen; `reported`: it has validated once more; `ended`: it is over.
        trial: its number, from 0.
        settings: of a trial that was chosen: field → value.
        validation: which validation is reported, from 1.
        value: of the metric: at this validation, or of the checkpoint that an ended trial handed over.
        pruned: of a report: whether the trial is to end with it; a short one may have ended by itself.
        state: of an ended trial.
        sentence: why it failed.
        run_id: the trial's run.
        inputs: digest of the code and the raw files of an ended trial.
        node_seconds, usd: what an ended trial has used; None if the cost is unknown.
    """

    kind: Literal["asked", "reported", "ended"]
    trial: int = Field(ge=0)
    at: str
    settings: dict[str, Value] = Field(default_factory=dict)
    validation: int = 0
    value: float | None = None
    pruned: bool = False
    state: TrialState = "running"
    sentence: Sentence = ""
    run_id: str = ""
    inputs: str = ""
    node_seconds: float = 0.0
    usd: float | None = None
