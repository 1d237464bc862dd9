"""The test rows whose label may be wrong, for the page of a run and the page of evaluate in the Prefect UI."""

from __future__ import annotations

import logging

from data_contracts.handoffs import Evaluation
from infra.orchestrator.artifacts import as_text
from infra.records.evaluations import shown_of
from tasks.evidence.label_errors import LabelErrors, label_errors, probabilities_of
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
