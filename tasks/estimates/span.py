"""A quantity of which the expected, the least and the most is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A quantity, such as seconds: the expected, the least and the most."""

    expected: float
    least: float
    most: float

    def __add__(self, other: Span) -> Span:
        return Span(self.expected + other.expected, self.least + other.least, self.most + other.most)

    def times(self, factor: float) -> Span:
        """The span multiplied."""
        return Span(self.expected * factor, self.least * factor, self.most * factor)

    def to_json(self, name: str) -> dict[str, float]:
        """For a program: `name` has the unit, such as `train_s`."""
        stem, _, unit = name.rpartition("_")
        rounded = {"": self.expected, "least_": self.least, "most_": self.most}
        return {f"{stem}_{which}{unit}": round(value, 6) for which, value in rounded.items()}


NONE = Span(0.0, 0.0, 0.0)
