"""The aggregates that show whether the different values of a column are in a set, contain it or equal it.

They show only that an expectation holds: what was observed otherwise may be any number of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from data_contracts.contract.measures import Measure, Question
from data_contracts.contract.translation.questions import Arguments, Kind, contains


def distinct_values(*, only: bool, every: bool) -> Callable[[Arguments, Kind], Question | None]:
    """The question about a column's different values.

    Args:
        only: they are all in the set.
        every: each value of the set is among them.
    """

    def build(kwargs: Arguments, kind: Kind) -> Question | None:
        listed, column = kwargs["value_set"], kwargs["column"]
        inside = contains(listed, kind)
        if inside is None:
            return None
        bound: tuple[Any, ...] = (tuple(listed),)
        others = Measure(f"count(CASE WHEN NOT {inside} THEN 1 END)", column, bound)
        found = Measure(f"count(DISTINCT CASE WHEN {inside} THEN {{c}} END)", column, bound)
        wanted = len(set(listed))

        def holds(*values: int) -> bool:
            return (not only or values[0] == 0) and (not every or values[-1] == wanted)

        return Question((*((others,) if only else ()), *((found,) if every else ())), holds)

    return build
