"""The parts of a run's page about the model: gates, curves, where it is right and wrong, slices, the worst rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_contracts.handoffs import Evaluation
from tasks.charts.bars import Bar, bars, histogram
from tasks.charts.curves import Mark, calibration
from tasks.charts.forest import forest
from tasks.charts.gate_rows import forest_rows, outcome
from tasks.charts.history_panels import panels
from tasks.charts.matrices import confusion, confusion_counts, residuals
from tasks.charts.picture import BAD, BLUE, GOOD, WARN
from tasks.charts.scales import label
from tasks.gates.gates import ledger_sentences
from tasks.pages.facts import Facts, tried
from tasks.pages.html import NOTHING, Markup, chart, join, section, table, tag
from tasks.pages.rows import MASKED, Pairs, Worst, rows_at, shown, worst_rows
from tasks.stages.suspect_labels import about, first_rows, suspect_labels

TONES = {"met": "good", "not met": "bad", "insufficient evidence": "warn", "not compared": "warn"}
_COLOURS = {"met": GOOD, "not met": BAD, "insufficient evidence": WARN, "not compared": WARN}
_BINS = 10


def gates_section(facts: Facts) -> Markup:
    """The gates as a forest plot, and each with its sentence and its evidence."""
    gates = facts.gates
    if not gates:
        reason = _without_gates(facts)
        return section("Gates", tag("p", reason, kind="soft")) if reason else NOTHING
    plot = forest(forest_rows(gates, facts.run.spec))
    rows = [
        (
            tag("span", outcome(one), kind=f"tag {TONES[outcome(one)]}"),
            _full(one.sentence),
            one.evidence.method if one.evidence is not None else "",
        )
        for one in gates
    ]
    head = ("Outcome", "What was found", "Interval by")[: 3 if any(one.evidence for one in gates) else 2]
    listed = table(head, [row[: len(head)] for row in rows])
    met = sum(one.met for one in gates)
    left = (tag("p", sentence, kind="soft") for sentence in ledger_sentences(gates))
    return section("Gates", tag("p", f"{met} of {len(gates)} gates met.", kind="soft"), chart(plot), listed, *left)


def curves_section(facts: Facts) -> Markup:
    """What the training logged, step by step."""
    if facts.stage("train") is None or facts.training is None:
        return NOTHING
    checkpoint = facts.checkpoint
    marks = [] if checkpoint is None else [Mark(checkpoint.step, "the checkpoint that was handed over")]
    resumed = [Mark(one.first_step, f"generation {one.number} resumed here") for one in facts.spans if one.number]
    drawn = panels(facts.history, [*marks, *resumed])
    if not drawn:
        return section("Training", tag("p", "The module logged no values, so there are no curves.", kind="soft"))
    named = ["the checkpoint that was handed over"] if marks else []
    named += ["where the training resumed after a restart"] if resumed else []
    words = "What the module logged." + (f" Dashed lines mark {' and '.join(named)}." if named else "")
    pictures = tag("div", *(chart(picture) for _, picture in drawn), kind="panels")
    return section("Training", tag("p", words, kind="soft"), pictures)


def predictions_section(facts: Facts) -> Markup:
    """Confusion matrix and calibration, or residuals; one sentence if truths and predictions were not kept."""
    evaluation = facts.evaluation
    if evaluation is None:
        return NOTHING
    if facts.run.withholds:
        words = "Truths and predictions are not shown, because the data has sensitive columns."
        return section("Right and wrong", tag("p", words, kind="soft"))
    if (found := facts.pairs) is None:
        words = (
            "There is no confusion matrix and no calibration, because this evaluation keeps scores, and not the truth "
            "and the prediction of each row."
        )
        return section("Right and wrong", tag("p", words, kind="soft"))
    return section("Right and wrong", tag("div", *_of_pairs(found), kind="panels"))


def slices_section(facts: Facts) -> Markup:
    """The metrics on each set, and the gates that are about a slice of the rows."""
    evaluation = facts.evaluation
    if evaluation is None:
        return NOTHING
    parts = [_sets(evaluation, name) for name in evaluation.metrics if "/" not in name]
    sliced = [one for one in facts.gates if one.slice and not one.sealed and not one.skipped]
    if sliced:
        drawn = [
            Bar(f"{one.metric} · {one.slice}", one.value, label(one.value), _COLOURS[outcome(one)]) for one in sliced
        ]
        high = _high([one.value for one in drawn])
        parts.append(chart(bars(drawn, "Each slice that a gate is about", high=high), "Slices that a gate is about"))
    return section("Slices and sets", *parts)


def worst_section(facts: Facts) -> Markup:
    """The rows that the model does worst on."""
    evaluation, dataset = facts.evaluation, facts.dataset
    if evaluation is None:
        return NOTHING
    of_rows = [one for one in (facts.main_metric, *evaluation.metrics) if _has_rows(evaluation, one)]
    name = (of_rows or [facts.main_metric])[0]
    worst = tried(lambda: worst_rows(facts.run.store, evaluation, name))
    title = "The worst rows"
    if worst is None:
        words = f"{name} has no value for each row, so no row can be called the worst."
        return section(title, tag("p", words, kind="soft"))
    if not worst.positions:
        words = f"All {worst.rows:,} rows have the same {name}, so no row is worse than the others."
        return section(title, tag("p", words, kind="soft"))
    wanted, of_set = facts.run.spec.evaluate, name.rpartition("/")[0]
    known = wanted.metrics.get(name.rpartition("/")[2])
    truth = (known.target or "") if known is not None else ""
    split = wanted.split if not of_set else wanted.sets[of_set].split if of_set in wanted.sets else None
    positions, values = worst.positions, {}
    if dataset is not None and split is not None:  # a set with a source has a dataset of its own
        values = tried(lambda: rows_at(facts.run.store, dataset, split, positions, truth)) or {}
    if (found := facts.pairs) is not None:
        for position in positions:
            both = {"truth": shown(found.truth[position]), "predicted": shown(found.prediction[position])}
            # The same value need not stand there twice.
            values[position] = both | {one: it for one, it in values.get(position, {}).items() if one != truth}
    return section(
        title,
        tag("p", _about(worst, f"set {of_set}" if of_set else f"split {split}"), kind="soft"),
        _worst_table(facts, worst, values),
    )


def suspects_section(facts: Facts) -> Markup:
    """The rows whose label may be wrong; nothing if there are none."""
    evaluation, dataset = facts.evaluation, facts.dataset
    found = None if evaluation is None else tried(lambda: suspect_labels(facts.run, evaluation))
    if found is None or not len(found.positions):
        return NOTHING
    split = facts.run.spec.evaluate.split
    rows, values = first_rows(found), {}
    if dataset is not None:
        values = tried(lambda: rows_at(facts.run.store, dataset, split, [one[0] for one in rows])) or {}
    columns = list(dict.fromkeys(name for row in values.values() for name in row))
    lines = [
        (f"{row:,}", label, said, *(values.get(row, {}).get(name, "not read") for name in columns))
        for row, label, said in rows
    ]
    listed = table(("row", "label", "the model says", *columns), lines, numbers=(0,))
    return section("Labels that may be wrong", tag("p", about(found, f"the split {split}"), kind="soft"), listed)


def _has_rows(evaluation: Evaluation, metric: str) -> bool:
    known = evaluation.metrics.get(metric)
    return known is not None and known.unit == "row"


def _about(worst: Worst, rows: str) -> str:
    number = len(worst.positions)
    more = f", the first of {worst.alike:,} that are as bad" if worst.alike > number else ""
    return f"{number} of {worst.rows:,} rows of the {rows} with the worst {worst.metric}{more}."


def _worst_table(facts: Facts, worst: Worst, values: dict[int, dict[str, str]]) -> Markup:
    """A line for each row; a value is masked if its column is sensitive, or may have been computed from one."""
    data = facts.run.spec.data
    sensitive = set() if isinstance(data, str) else set(data.sensitive)
    computed = bool(sensitive) and _transformed(facts)
    columns = list(dict.fromkeys(name for row in values.values() for name in row))
    if sensitive:  # a name that the spec does not give may come from the data
        named = set(facts.run.spec.train.batch_columns or ()) | sensitive
        columns = [name for name in columns if name in named]
    lines = []
    for position, value in zip(worst.positions, worst.values, strict=True):
        row = values.get(position, {})
        cells = [MASKED if name in sensitive or computed else row.get(name, "not read") for name in columns]
        lines.append((f"{position:,}", label(value), *cells))
    made = table(("row", worst.metric, *columns), lines, numbers=(0, 1))
    if columns and any(name in sensitive for name in columns):
        note = f"{MASKED} stands for a value of a sensitive column" + (", or computed from one." if computed else ".")
        return join([made, tag("p", note, kind="soft")])
    return made


def _transformed(facts: Facts) -> bool:
    shards = facts.run.spec.shards
    return shards is not None and shards.transform is not None


def _of_pairs(found: Pairs) -> list[Markup]:
    if not found.classes:
        off = found.prediction - found.truth
        known = off[np.isfinite(off)]
        counts, edges = np.histogram(known, bins=24)
        bounds = [float(one) for one in edges]
        spread = histogram([int(one) for one in counts], bounds, "How far off", "prediction minus truth")
        return [
            chart(residuals(found.truth, found.prediction), "How far predictions are off, over the truth"),
            chart(spread, "How far predictions are off"),
        ]
    names, counts = confusion_counts(found.truth, found.prediction)
    parts = [chart(confusion(names, counts), "Confusion matrix: each line is a true class")]
    if found.sure is not None:
        known = np.isfinite(found.sure)
        shares, error = reliability(found.sure[known], (found.truth == found.prediction)[known])
        words = (
            "Calibration: of the rows for which the model is so sure (across), the share that it gets right (up). "
            f"Expected calibration error {label(error)}."
        )
        parts.append(chart(calibration(shares, "How sure the model was, and how often it was right"), words))
    return parts


def reliability(sure: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[list[tuple[float, float, int]], float]:
    """(mean confidence, share that is right, rows) of each of `_BINS` bins, and the expected calibration error."""
    place = np.clip((sure * _BINS).astype(np.int64), 0, _BINS - 1)
    rows = np.bincount(place, minlength=_BINS)
    mean = np.bincount(place, weights=sure, minlength=_BINS) / np.maximum(rows, 1)
    share = np.bincount(place, weights=right, minlength=_BINS) / np.maximum(rows, 1)
    error = float((np.abs(mean - share) * rows).sum() / max(rows.sum(), 1))
    return list(zip(mean.tolist(), share.tolist(), rows.tolist(), strict=True)), error


def _sets(evaluation: Evaluation, name: str) -> Markup:
    """A metric on the spec's own split and on each further set; nothing if there is no other set."""
    same = {key: one for key, one in evaluation.metrics.items() if key.rpartition("/")[2] == name}
    if len(same) < 2:
        return NOTHING
    drawn = [
        Bar(key.rpartition("/")[0] or "all rows", one.value, f"{label(one.value)} over {one.rows:,} rows", BLUE)
        for key, one in same.items()
    ]
    low = min(0.0, *(one.value for one in same.values()))
    high = _high([one.value for one in drawn])
    return chart(bars(drawn, f"{name} on each set", low=low, high=high), f"{name} on each set")


def _high(values: list[float]) -> float | None:
    """1 for shares, so that bars of several charts can be compared."""
    return 1.0 if all(0 <= value <= 1 for value in values) else None


def _without_gates(facts: Facts) -> str:
    verdict = facts.report.verdict if facts.report is not None else ""
    if verdict == "promoted":
        asked = facts.run.spec.promote.gates
        return "The receipt with the gates is not in the store." if asked else "The spec asks for no gates."
    if verdict == "canary":
        return "This run's candidate was not considered, because an earlier one stands as canary."
    if verdict == "unchanged":
        return "The candidate already is the champion, so there was nothing to decide."
    return "The run ended before the gates were computed." if facts.evaluation is not None else ""


def _full(sentence: str) -> str:
    return sentence + ("" if sentence.endswith(".") else ".")
