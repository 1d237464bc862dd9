"""A store's records about a node: its mishaps, and whether people want it to be used."""

from __future__ import annotations

from typing import Literal

from data_contracts.records import HandOff

Mishap = Literal["failure", "straggler", "corrupt_replica"]


class NodeMishap(HandOff):
    """Something that went wrong on a node in one generation of a training.

    Attributes:
        node: its name, as its supervisor stated it.
        kind: `failure`: it was lost, or a rank on it hung; `straggler`: its own work took far longer than that of the
            others; `corrupt_replica`: it held other parameters than most.
        at: UTC, ISO 8601, by the conductor's clock.
    """

    node: str
    kind: Mishap
    cause: str
    sentence: str
    training: str
    generation: int
    at: str


class NodeStanding(HandOff):
    """What a person decided about a node: it is drained, or takes part again. The newest decision holds."""

    node: str
    drained: bool
    reason: str
    by: str
    at: str

    @property
    def sentence(self) -> str:
        """Why a node is drained, in brackets behind its name."""
        return f"{self.node} ({self.reason}; by {self.by}, {self.at[:10]})"
