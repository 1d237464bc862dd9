"""Metrics of the order of scores, the AUROC and the average precision, and the influence of each row on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Ranking:
    """Rows by their scores.

    Attributes:
        scores: (rows,), higher for rows that are more likely true; truth: (rows,).
    """

    scores: Values
    truth: Flags

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(-self.scores, kind="stable")

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where each group of equal scores ends, in that order."""
        ordered = self.scores[self._order]
        return np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        """(rows,) of each row in that order the number of its group."""
        return np.repeat(np.arange(len(self._ends)), np.diff(self._ends, prepend=-1))

    def _above(self) -> tuple[Values, Values]:
        """(groups,) the number of true and of false rows with at least the score of each group."""
        truth = self.truth[self._order]
        return np.cumsum(truth, dtype=np.float64)[self._ends], np.cumsum(~truth, dtype=np.float64)[self._ends]

    def area(self) -> float:
        """The area under the ROC curve; NaN if one class has no rows."""
        true, false = self._above()
        if not true[-1] or not false[-1]:
            return float("nan")
        steps = np.diff(false, prepend=0.0)
        middle = true - np.diff(true, prepend=0.0) / 2
        return float(np.sum(steps * middle) / (true[-1] * false[-1]))

    def area_influence(self) -> Values:
        """(rows,) how much each row moves the area, times the number of rows (DeLong et al. 1988); their mean is 0."""
        true, false = self._above()
        all_true, all_false, area = true[-1], false[-1], self.area()
        beaten = (all_false - false + np.diff(false, prepend=0.0) / 2) / all_false  # by a true row of the group
        beating = (true - np.diff(true, prepend=0.0) / 2) / all_true  # true rows above a false row of the group
        rows = len(self.truth)
        in_order = np.where(
            self.truth[self._order],
            (beaten[self._groups] - area) * rows / all_true,
            (beating[self._groups] - area) * rows / all_false,
        )
        return self._in_rows(in_order)

    def precision(self) -> float:
        """The average precision; NaN if no row is true."""
        true, false = self._above()
        if not true[-1]:
            return float("nan")
        return float(np.sum(np.diff(true, prepend=0.0) * true / (true + false)) / true[-1])

    def precision_influence(self) -> Values:
        """(rows,) how much each row moves the average precision, times the number of rows; their mean is 0."""
        true, false = self._above()
        of_all, value, rows = true + false, self.precision(), len(self.truth)
        steps = np.diff(true, prepend=0.0)
        # A row moves the precision at its own score and at each lower one.
        if_true = np.cumsum((steps * false / of_all**2)[::-1])[::-1]
        if_false = np.cumsum((steps * true / of_all**2)[::-1])[::-1]
        truth, groups = self.truth[self._order], self._groups
        own = (true / of_all)[groups] - value
        in_order = np.where(truth, own + if_true[groups], -if_false[groups]) * rows / true[-1]
        return self._in_rows(in_order)

    def _in_rows(self, in_order: Values) -> Values:
        found = np.empty(len(in_order))
        found[self._order] = in_order
        return found
