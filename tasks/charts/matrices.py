"""Tables of counts as squares: a confusion matrix, and residuals over the truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.charts.curves import axes
from tasks.charts.picture import BAD, BLUE, GOOD, PANEL, SOFT, Picture
from tasks.charts.scales import Scale

# More classes cannot be told apart in a picture.
MOST_CLASSES = 12
OTHER = "others"
_SMALL = 10_000


def confusion_counts(
    truth: Sequence[object] | NDArray, prediction: Sequence[object] | NDArray
) -> tuple[list[str], NDArray]:
    """The classes, and how many rows of each (line) were predicted as each (column).

    Beyond the `MOST_CLASSES` the rarest are counted together, as `others`.
    """
    classes, codes = _coded(np.concatenate([np.asarray(truth), np.asarray(prediction)]))
    rows = len(truth)
    number = len(classes)
    names = [str(one) for one in classes.tolist()]
    if number > MOST_CLASSES:
        often = np.bincount(codes[:rows], minlength=number)
        kept = np.sort(np.argsort(-often, kind="stable")[: MOST_CLASSES - 1])
        place = np.full(number, len(kept))
        place[kept] = np.arange(len(kept))
        codes, names, number = place[codes], [*(names[one] for one in kept), OTHER], len(kept) + 1
    counts = np.bincount(codes[:rows] * number + codes[rows:], minlength=number * number)
    return names, counts.reshape(number, number)


def _coded(values: NDArray) -> tuple[NDArray, NDArray]:
    """The different values in order, and the place of each value among them; small whole numbers without sorting."""
    if values.dtype.kind in "iu" and len(values) and int(values.max()) - int(values.min()) < _SMALL:
        low = values.min()
        there = np.bincount(values - low) > 0
        return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[values - low]
    classes, codes = np.unique(values, return_inverse=True)
    return classes, codes


def confusion(names: Sequence[str], counts: NDArray) -> str:
    """The confusion matrix: right rows green, wrong rows red, the darker the larger a share of their line."""
    number = len(names)
    if not number or not counts.sum():
        return ""
    cell, left, top = (64 if number <= 4 else 46), 120, 64
    picture = Picture(
        left + cell * number + 8, top + cell * number + 8, "How many rows of each class were predicted as each"
    )
    picture.text((left + cell * number / 2, 18), "predicted", size=12, anchor="middle", fill=SOFT)
    picture.text((left - 10, top - 14), "truth", size=12, anchor="end", fill=SOFT)
    totals = counts.sum(axis=1)
    for row, name in enumerate(names):
        middle = cell * row + cell / 2
        picture.text((left - 10, top + middle + 4), name, size=12, anchor="end", room=left - 14)
        picture.text((left + middle, top - 14), name, size=12, anchor="middle", room=cell - 6)
        for column, other in enumerate(names):
            count = int(counts[row, column])
            share = count / totals[row] if totals[row] else 0.0
            box = (left + cell * column + 1, top + cell * row + 1, cell - 2.0, cell - 2.0)
            picture.rect(box, PANEL, radius=3)
            if count:
                more = f' fill-opacity="{0.12 + 0.6 * share:.2f}"'
                # Among rare classes together nobody can say which rows are right.
                right = BLUE if row == column and name == OTHER else GOOD
                picture.rect(box, right if row == column else BAD, radius=3, more=more)
            place = (box[0] + box[2] / 2, box[1] + box[3] / 2 + 4)
            picture.text(place, short(count), size=12, anchor="middle", room=cell - 4, bold=row == column)
            picture.tip(box, f"truth {name}, predicted {other}: {count:,} rows, {share:.1%} of {name}")
    return picture.svg()


def residuals(truth: NDArray, prediction: NDArray) -> str:
    """Residuals (prediction minus truth) over the truth, as squares that are the darker the more rows they hold."""
    off = prediction - truth
    known = np.isfinite(truth) & np.isfinite(off)
    if not known.any():
        return ""
    (low, high), (least, most) = _span(truth[known]), _span(np.append(off[known], 0.0))
    counts, _, _ = np.histogram2d(
        np.clip(truth[known], low, high),
        np.clip(off[known], least, most),
        bins=(36, 24),
        range=((low, high), (least, most)),
    )
    picture = Picture(520, 280, "Residuals over the truth: prediction minus truth")
    across, up = Scale(low, high, 64, 508), Scale(least, most, 236, 14)
    axes(picture, across, up, "truth (up: prediction minus truth)")
    wide, tall = (across.end - across.start) / 36, (up.start - up.end) / 24
    for x, y in np.argwhere(counts):
        depth = 0.15 + 0.8 * float(np.sqrt(counts[x, y] / counts.max()))
        box = (across.start + x * wide, up.start - (y + 1) * tall, wide, tall)
        picture.rect(box, BLUE, more=f' fill-opacity="{depth:.2f}"')
    picture.line((across.start, up.at(0), across.end, up.at(0)), SOFT, 1.5, "4 3")
    return picture.svg()


def short(count: int) -> str:
    """A count in few characters."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if count >= size:
            return f"{count / (1000 if unit == 'k' else size):.3g}{unit}"
    return str(count)


def _span(values: NDArray) -> tuple[float, float]:
    """Where the middle 99 % of the values lie."""
    low, high = (float(one) for one in np.percentile(values, [0.5, 99.5]))
    if min(values.min(), 0) <= 0 <= values.max():
        low, high = min(low, float(max(values.min(), 0))), max(high, 0.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
