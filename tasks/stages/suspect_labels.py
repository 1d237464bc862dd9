"""The test rows whose label may be wrong, for the page of a run and the page of evaluate in the Prefect UI.

They follow from truths and the probabilities of a model that did not see them (confident learning). A row is pointed
out if the model is more sure of another class than it is, on average, of rows that carry that class as their label, and
less sure of the row's own label (Northcutt, Jiang and Chuang 2021, "prune by noise rate" left out: nothing is removed
here, a person looks). Rows are ranked by how much more probable the other class is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_contracts.handoffs import Evaluation
from infra.orchestrator.artifacts import as_text
from infra.records.evaluations import shown_of
from tasks.run.run import Run

log = logging.getLogger("trainwright")
# At most `MOST` rows are shown; a set with more than `_MOST_VALUES` values is not read.
MOST = 10
_MOST_VALUES = 2**24


def suspect_labels(run: Run, evaluation: Evaluation) -> LabelErrors | None:
    """The rows of `evaluate.split` whose label may be wrong; None if truths and probabilities are not kept.

    CorruptError if they are not what was sealed.
    """
    if run.withholds:
        return None
    for metric in (one for one in {**evaluation.pairs, **evaluation.shown} if "/" not in one):
        found = shown_of(run.store, evaluation, metric, _MOST_VALUES)
        if found is not None:
            truth, scores = found
            probabilities = probabilities_of(scores if scores.ndim > 1 else scores[:, None])
            if probabilities is not None and (errors := label_errors(truth, probabilities)) is not None:
                return errors
    return None


def about(found: LabelErrors, split: str) -> str:
    """What was found, in a sentence or two."""
    number, shown = len(found.positions), min(len(found.positions), MOST)
    first = f"; the {shown} most suspicious are shown" if number > shown else ""
    return (
        f"In {number:,} of {found.rows:,} rows of {split}, the model is confident of another class than the "
        f"label{first}. Look at them: the label may be wrong, or the model."
    )


def suspect_lines(run: Run, evaluation: Evaluation) -> list[str]:
    """Lines of Markdown with the rows by number; none if there are none, or if they cannot be read."""
    try:
        found = suspect_labels(run, evaluation)
    except Exception as error:  # the text may quote a value, and a page must not end a run
        log.warning("A page in the Prefect UI has no suspect labels: %s.", type(error).__name__)
        return []
    if found is None or not len(found.positions):
        return []
    lines = ["", "## Labels that may be wrong", "", as_text(about(found, run.spec.evaluate.split)), ""]
    lines += ["| row | label | the model says |", "|---|---|---|"]
    return lines + [f"| {row:,} | {label} | {said} |" for row, label, said in first_rows(found)]


def first_rows(found: LabelErrors) -> list[tuple[int, str, str]]:
    """The first rows: number, label and what the model says, each with the probability that the model gives it."""
    columns = found.positions, found.labels, found.label_probability, found.suggested, found.suggested_probability
    return [
        (int(row), f"{label} ({mine:.2g})", f"{other} ({likely:.2g})")
        for row, label, mine, other, likely in list(zip(*columns, strict=True))[:MOST]
    ]


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """The rows whose label may be wrong, the most suspicious first.

    Attributes:
        positions: (found,) in the set; labels, suggested: (found,) classes.
        label_probability, suggested_probability: (found,) by the model.
        rows: of the set.
    """

    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    suggested: NDArray[np.int64]
    label_probability: NDArray[np.float64]
    suggested_probability: NDArray[np.float64]
    rows: int


def label_errors(truth: NDArray, probabilities: NDArray) -> LabelErrors | None:
    """The rows whose label may be wrong; None if truths are not classes of the probabilities.

    Args:
        truth: (rows,) whole numbers from 0 to n - 1; others, such as an ignored -1, are not looked at.
        probabilities: (rows, n), which add up to 1; a row that has a NaN is not looked at.
    """
    classes = probabilities.shape[1]
    if truth.dtype.kind not in "iub" or classes < 2 or not len(truth):
        return None
    labels = truth.astype(np.int64)
    known = (labels >= 0) & (labels < classes) & np.isfinite(probabilities).all(axis=1)
    at = np.flatnonzero(known)
    own = labels[at]
    likely = probabilities[at].astype(np.float64)
    mine = likely[np.arange(len(at)), own]
    rows = np.bincount(own, minlength=classes)
    # How sure the model is of rows that carry a class; of a class without rows nothing is suggested.
    sure = np.where(rows > 0, np.bincount(own, mine, minlength=classes) / np.maximum(rows, 1), np.inf)
    confident = np.where(likely >= sure, likely, -1.0)
    suggested = confident.argmax(axis=1)
    other = likely[np.arange(len(at)), suggested]
    wrong = (confident.max(axis=1) >= 0) & (suggested != own) & (other > mine)
    order = np.argsort(mine[wrong] - other[wrong], kind="stable")
    chosen = np.flatnonzero(wrong)[order]
    return LabelErrors(at[chosen], own[chosen], suggested[chosen], mine[chosen], other[chosen], len(truth))


def probabilities_of(scores: NDArray) -> NDArray[np.float64] | None:
    """(rows, n) probabilities from what a model returned: probabilities or logits; of one number, those of 0 and 1."""
    if not len(scores) or scores.dtype.kind != "f":
        return None
    values = scores.astype(np.float64)
    if values.shape[1] == 1:
        one = values[:, 0]
        if np.nanmin(one) < 0 or np.nanmax(one) > 1:  # as torchmetrics takes them
            one = 1 / (1 + np.exp(-one))
        return np.stack([1 - one, one], axis=1)
    if np.nanmin(values) >= 0 and np.allclose(np.nansum(values, axis=1), 1, atol=1e-3):
        return values
    with np.errstate(invalid="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
