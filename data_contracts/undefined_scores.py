"""Why a metric of the order of scores has no value, in words: torchmetrics calls it 0 or 1, and the gates do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NO_VALUE = "its formula has no value for these rows"


def why_undefined(of_class: Mapping[int, int], rows: Sequence[int], *, needs_others: bool) -> str:
    """Why there is no value, as part of a sentence; "" if there is one.

    Args:
        of_class: by class: the number of its rows.
        rows: for each of these classes, the number of rows that are of it or not.
        needs_others: whether rows of other classes are needed, too, as for the area under the ROC curve.
    """
    for (number, count), its_rows in zip(of_class.items(), rows, strict=True):
        if not count:
            return f"no row is of class {number}"
        if needs_others and count == its_rows:
            return f"all rows are of class {number}"
    return ""
