"""The page of a run: its verdict first, then why, then everything that led to it.

Its sections: the model (gates, curves, where it is right and wrong, slices, the worst rows), where it comes from (data
and contract, drift, lineage, time and cost), what its machines did second by second, and where the run was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from data_contracts.contract.reports import Result
from data_contracts.handoffs import ContractReport, Evaluation, Failure
from data_contracts.quoting import as_sentence
from data_contracts.records import Delivery
from data_contracts.run_report import RunReport
from infra.mirrors import newest_delivery, newest_end
from infra.quantities import BYTES, in_two_units, in_words
from infra.store import layout
from tasks.charts.picture import BLUE, SOFT, label
from tasks.charts.plots import (
    GATE_COLOURS,
    Bar,
    Box,
    Mark,
    bars,
    calibration,
    confusion,
    confusion_counts,
    forest,
    forest_rows,
    histogram,
    lineage,
    outcome,
    panels,
    residuals,
    then_and_now,
)
from tasks.gates.gates import ledger_sentences
from tasks.pages.facts import MASKED, Facts, Pairs, Worst, gather, rows_at, seconds_between, shown, tried, worst_rows
from tasks.pages.html import badge, note, page, part
from tasks.run.report import FINAL, cost_sentence, num_attempts
from tasks.run.run import Run
from tasks.stages.artifacts import DRIFT_HEAD, DRIFT_SHOWN, drift_cells, report_results
from tasks.stages.shard import row_remarks, rows_left_out, rows_read, split_rows

TONES = {"met": "good", "not met": "bad", "insufficient evidence": "warn", "not compared": "warn"}
_BINS = 10
# Rows of a broken expectation that are named.
_PLACES = 5
# So many expectations that hold are folded away.
_MANY = 12
_PARTS = "run_parts"
_WORST = "The worst rows"
_AGAIN = "The next run with mirrors in this store tries again, as does `trainwright mirror`."
log = logging.getLogger("trainwright")
_VERDICT_TONES = {
    "promoted": "good",
    "canary": "good",
    "unchanged": "good",
    "trained": "good",
    "not_promoted": "warn",
    "waiting": "calm",
    "cancelled": "calm",
}
_STAGE_TONES = {"ran": "good", "reused": "calm", "skipped": "", "waiting": "calm", "cancelled": "calm"}
# What the page says in the place of a verdict while there is none.
UNFINISHED = "unfinished"


def run_report_page(facts: Facts) -> str:
    """The page; a part that cannot be made says so, and the others stand."""
    # What rejected the data is why the run ended.
    rejected = facts.report is not None and facts.report.verdict == "rejected"
    order = sorted(_SECTIONS, key=lambda make: make not in (data_section, drift_part)) if rejected else _SECTIONS
    parts = [_head(facts), *(_made(make, facts) for make in order), _stages(facts), _foot(facts)]
    return page("run", title=f"{facts.run.spec.name}: {_verdict(facts)}", parts=parts)


def keep_page(run: Run, report: RunReport, made: Mapping[str, Any]) -> RunReport:
    """Make the page of a run that has ended and keep it beside its report; returns the report.

    The run has ended: whatever is wrong with its page is a warning.

    Args:
        made: its hand-offs, by the names that `tasks.run.report.report` has.
    """
    if run.recorded:
        try:
            path = page_path(run, report)
            if not run.store.exists(path):
                run.store.create_once(path, run_report_page(gather(run, report, made)).encode())
        except Exception as error:  # the text may quote a value
            log.warning("The report of run %s has no page: %s.", run.run_id, type(error).__name__)
    return report


def page_path(run: Run, report: RunReport) -> str:
    """Where the page of a run's newest report is kept."""
    if run.store.exists(layout.report(run.run_id)):
        return layout.page(run.run_id)
    return layout.page(run.run_id, max(num_attempts(run) - 1, 0))


def _made(make: Callable[[Facts], Markup], facts: Facts) -> Markup:
    try:
        return make(facts)
    except Exception as error:  # a record of any age; the text may quote a value
        log.warning("A part of the page of run %s is missing: %s.", facts.run.run_id, type(error).__name__)
        return part(_PARTS, "missing", kind=type(error).__name__)


def gates_section(facts: Facts) -> Markup:
    """The gates as a forest plot, and each with its sentence and its evidence."""
    gates = facts.gates
    if not gates:
        return note("Gates", _without_gates(facts))
    rows = [
        (
            badge(outcome(gate), TONES[outcome(gate)]),
            as_sentence(gate.sentence),
            gate.evidence.method if gate.evidence is not None else "",
        )
        for gate in gates
    ]
    columns = 3 if any(gate.evidence for gate in gates) else 2
    return part(
        _PARTS,
        "gates",
        met=sum(gate.met for gate in gates),
        number=len(gates),
        plot=forest(forest_rows(gates, facts.run.spec)),
        head=("Outcome", "What was found", "Interval by")[:columns],
        rows=[row[:columns] for row in rows],
        ledger=ledger_sentences(gates),
    )


def curves_section(facts: Facts) -> Markup:
    """What the training logged, step by step."""
    if facts.stage("train") is None or facts.training is None:
        return Markup()
    checkpoint = facts.checkpoint
    marks = [] if checkpoint is None else [Mark(checkpoint.step, "the checkpoint that was handed over")]
    resumed = [Mark(span.first_step, f"generation {span.number} resumed here") for span in facts.spans if span.number]
    drawn = panels(facts.history, [*marks, *resumed])
    if not drawn:
        return note("Training", "The module logged no values, so there are no curves.")
    named = ["the checkpoint that was handed over"] if marks else []
    named += ["where the training resumed after a restart"] if resumed else []
    words = "What the module logged." + (f" Dashed lines mark {' and '.join(named)}." if named else "")
    return part(_PARTS, "panels", title="Training", words=words, charts=[(picture, "") for _, picture in drawn])


def predictions_section(facts: Facts) -> Markup:
    """Confusion matrix and calibration, or residuals; one sentence if truths and predictions were not kept."""
    title = "Right and wrong"
    if facts.evaluation is None:
        return Markup()
    if facts.run.withholds:
        return note(title, "Truths and predictions are not shown, because the data has sensitive columns.")
    if facts.pairs is None:
        words = (
            "There is no confusion matrix and no calibration, because this evaluation keeps scores, and not the truth "
            "and the prediction of each row."
        )
        return note(title, words)
    return part(_PARTS, "panels", title=title, words="", charts=_charts_of_pairs(facts.pairs))


def slices_section(facts: Facts) -> Markup:
    """The metrics on each set, and the gates that are about a slice of the rows."""
    evaluation = facts.evaluation
    if evaluation is None:
        return Markup()
    charts = [_sets(evaluation, name) for name in evaluation.metrics if "/" not in name]
    sliced = [gate for gate in facts.gates if gate.slice and not gate.sealed and not gate.skipped]
    drawn = [
        Bar(f"{gate.metric} · {gate.slice}", gate.value, label(gate.value), GATE_COLOURS[outcome(gate)])
        for gate in sliced
    ]
    picture = bars(drawn, "Each slice that a gate is about", high=_high([bar.value for bar in drawn]))
    return part(_PARTS, "slices", charts=[*charts, (picture, "Slices that a gate is about")])


def worst_section(facts: Facts) -> Markup:
    """The rows that the model does worst on."""
    evaluation, dataset = facts.evaluation, facts.dataset
    if evaluation is None:
        return Markup()
    metrics = evaluation.metrics
    of_rows = [name for name in (facts.main_metric, *metrics) if name in metrics and metrics[name].unit == "row"]
    name = (of_rows or [facts.main_metric])[0]
    worst = tried(lambda: worst_rows(facts.run.store, evaluation, name))
    if worst is None:
        return note(_WORST, f"{name} has no value for each row, so no row can be called the worst.")
    if not worst.positions:
        return note(_WORST, f"All {worst.rows:,} rows have the same {name}, so no row is worse than the others.")
    wanted, of_set = facts.run.spec.evaluate, name.rpartition("/")[0]
    metric = wanted.metrics.get(name.rpartition("/")[2])
    truth = (metric.target or "") if metric is not None else ""
    split = wanted.split if not of_set else wanted.sets[of_set].split if of_set in wanted.sets else None
    positions, values = worst.positions, {}
    if dataset is not None and split is not None:  # a set with a source has a dataset of its own
        values = tried(lambda: rows_at(facts.run.store, dataset, split, positions, truth)) or {}
    if (pairs := facts.pairs) is not None:
        for position in positions:
            both = {"truth": shown(pairs.truth[position]), "predicted": shown(pairs.prediction[position])}
            # The same value need not stand there twice.
            values[position] = both | {key: text for key, text in values.get(position, {}).items() if key != truth}
    return _worst_table(facts, worst, values, f"set {of_set}" if of_set else f"split {split}")


def _about(worst: Worst, rows: str) -> str:
    number = len(worst.positions)
    more = f", the first of {worst.alike:,} that are as bad" if worst.alike > number else ""
    return f"{number} of {worst.rows:,} rows of the {rows} with the worst {worst.metric}{more}."


def _worst_table(facts: Facts, worst: Worst, values: dict[int, dict[str, str]], rows: str) -> Markup:
    """A line for each row; a value is masked if its column is sensitive, or may have been computed from one."""
    data = facts.run.spec.data
    sensitive = set() if isinstance(data, str) else set(data.sensitive)
    shards = facts.run.spec.shards
    computed = bool(sensitive) and shards is not None and shards.transform is not None
    columns = list(dict.fromkeys(name for row in values.values() for name in row))
    if sensitive:  # a name that the spec does not give may come from the data
        named = set(facts.run.spec.train.batch_columns or ()) | sensitive
        columns = [name for name in columns if name in named]
    lines = []
    for position, value in zip(worst.positions, worst.values, strict=True):
        row = values.get(position, {})
        cells = [MASKED if name in sensitive or computed else row.get(name, "not read") for name in columns]
        lines.append((f"{position:,}", label(value), *cells))
    masked = ""
    if any(name in sensitive for name in columns):
        masked = f"{MASKED} stands for a value of a sensitive column" + (", or computed from one." if computed else ".")
    return part(
        _PARTS, "worst", about=_about(worst, rows), head=("row", worst.metric, *columns), rows=lines, note=masked
    )


def _charts_of_pairs(pairs: Pairs) -> list[tuple[str, str]]:
    """Charts of truths and predictions, with their captions."""
    if not pairs.classes:
        off = pairs.prediction - pairs.truth
        counts, edges = np.histogram(off[np.isfinite(off)], bins=24)
        spread = histogram(counts.tolist(), edges.tolist(), "How far off", "prediction minus truth")
        return [
            (residuals(pairs.truth, pairs.prediction), "How far predictions are off, over the truth"),
            (spread, "How far predictions are off"),
        ]
    names, counts = confusion_counts(pairs.truth, pairs.prediction)
    charts = [(confusion(names, counts), "Confusion matrix: each line is a true class")]
    if pairs.sure is not None:
        finite = np.isfinite(pairs.sure)
        shares, error = reliability(pairs.sure[finite], (pairs.truth == pairs.prediction)[finite])
        words = (
            "Calibration: of the rows for which the model is so sure (across), the share that it gets right (up). "
            f"Expected calibration error {label(error)}."
        )
        charts.append((calibration(shares, "How sure the model was, and how often it was right"), words))
    return charts


def reliability(sure: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[list[tuple[float, float, int]], float]:
    """(mean confidence, share that is right, rows) of each of `_BINS` bins, and the expected calibration error."""
    place = np.clip((sure * _BINS).astype(np.int64), 0, _BINS - 1)
    rows = np.bincount(place, minlength=_BINS)
    mean = np.bincount(place, weights=sure, minlength=_BINS) / np.maximum(rows, 1)
    share = np.bincount(place, weights=right, minlength=_BINS) / np.maximum(rows, 1)
    error = float((np.abs(mean - share) * rows).sum() / max(rows.sum(), 1))
    return list(zip(mean.tolist(), share.tolist(), rows.tolist(), strict=True)), error


def _sets(evaluation: Evaluation, name: str) -> tuple[str, str]:
    """A metric on the spec's own split and on each further set, with a caption; no picture if there is no other set."""
    same = {key: metric for key, metric in evaluation.metrics.items() if key.rpartition("/")[2] == name}
    caption = f"{name} on each set"
    if len(same) < 2:
        return "", caption
    drawn = [
        Bar(key.rpartition("/")[0] or "all rows", metric.value, f"{label(metric.value)} over {metric.rows:,} rows")
        for key, metric in same.items()
    ]
    values = [metric.value for metric in same.values()]
    return bars(drawn, caption, low=min(0.0, *values), high=_high(values)), caption


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


def drift_part(facts: Facts) -> Markup:
    """The columns that moved against earlier data, with histograms then and now."""
    drift = None if facts.contract is None else facts.contract.drift
    if drift is None:
        return Markup()
    words = f"{drift.head[:1].upper()}{drift.head[1:]}."
    if drift.note or not drift.moved:
        return note("Drift", words)
    then, now = drift.rows
    return part(
        _PARTS,
        "drift",
        words=f"{words} {then:,} rows then (grey), {now:,} rows now (orange).",
        head=[*DRIFT_HEAD, "then and now"],
        rows=[(*drift_cells(moved), then_and_now(moved.bars, moved.column)) for moved in drift.moved[:DRIFT_SHOWN]],
        more=len(drift.moved) - DRIFT_SHOWN,
    )


def data_section(facts: Facts) -> Markup:
    """The raw files, the dataset and the contract: every expectation with what was observed."""
    run, report, dataset = facts.run, facts.contract, facts.dataset
    if run.external:
        return note("Data and contract", "The data is external: the user's data module reads it.")
    files = run.resolved.files
    known = [
        ("raw data", f"{_files(len(files))}, {in_words(sum(one.bytes for one in files), BYTES)}"),
        ("window", " to ".join(run.resolved.window or ())),
        ("rows checked", f"{report.rows:,}" if report is not None else ""),
    ]
    if dataset is not None:
        read = rows_read(run, dataset)
        known += [("rows in the files", f"{read:,}" if read is not None else "")]
        known += [(f"split {name}", f"{text} rows") for name, text in split_rows(run, dataset).items()]
        known += [(f"left out: {why}", f"{rows:,} rows") for why, rows in rows_left_out(run, dataset).items()]
        known += [("remark", remark) for remark in row_remarks(run, dataset)]
    if report is None:
        return part(_PARTS, "data_alone", words="No contract was checked.", figures=known)
    results = tried(lambda: report_results(run, report)) or []
    verdict = "accepted" if report.accepted else "rejected"
    words = f"The contract {verdict} the data: {report.expectations:,} expectations, {len(report.failures):,} broken."
    if not report.expectations and not results:
        words = f"The contract {verdict} the data."
    return part(
        _PARTS,
        "data",
        words=words,
        figures=known,
        broken=[(failure.sentence, _places(failure)) for failure in report.failures],
        **_set_aside(report),
        **_expectations(results),
    )


def _set_aside(report: ContractReport) -> Mapping[str, object]:
    """What is said of the rows that were set aside."""
    aside = report.quarantine
    if aside is None or not aside.rows:
        return {"aside_words": "", "aside": []}
    words = f"{aside.rows:,} of {report.rows:,} rows were set aside and are not in the dataset."
    return {"aside_words": words, "aside": [(failure.sentence, _places(failure)) for failure in aside.broken]}


def lineage_section(facts: Facts) -> Markup:
    """The picture from the raw files to the version."""
    boxes = _boxes(facts)
    words = ["A dashed blue frame is a result of an earlier run."] if any(box.reused for box in boxes) else []
    words += ["A dashed grey frame was not reached."] if not all(box.reached for box in boxes) else []
    return part(_PARTS, "lineage", picture=lineage(boxes), legend=" ".join(words))


def cost_section(facts: Facts) -> Markup:
    """How long each stage took, what it cost, and what was done twice."""
    report = facts.report
    mine = facts.own_spans
    wasted = sum(one.wasted_seconds for one in mine)
    trained = facts.stage("train")
    drawn = []
    for stage in facts.stages:
        share = 0.0
        if stage is trained and mine and stage.status != "reused":
            spent = sum(one.node_seconds for one in mine)
            share = stage.seconds * wasted / spent if spent else 0.0
        again = "" if stage.status != "reused" else ", reused"
        colour = SOFT if stage.status == "reused" else BLUE
        drawn.append(
            Bar(stage.name, stage.seconds, f"{in_time(stage.seconds)}{again}", colour, min(share, stage.seconds))
        )
    whole = None if report is None else seconds_between(report.started, report.finished)
    known = [
        ("from start to end", in_time(whole) if whole is not None else ""),
        ("stages together", in_time(sum(one.seconds for one in facts.stages)) if facts.stages else ""),
        ("node-seconds", f"{report.cost.node_seconds:,.0f}" if report is not None else ""),
        ("wasted by restarts", f"{wasted:,.0f} node-seconds" if wasted else ("nothing" if mine else "")),
    ]
    spans = [
        (
            str(one.number),
            f"{one.nodes} / {one.ranks}",
            f"{one.first_step:,} → {one.last_step:,}",
            one.ended or "not known",
            f"{one.node_seconds:,.0f}",
            f"{one.lost_steps:,} steps, {one.wasted_seconds:,.0f} s" if one.wasted_seconds else "–",
        )
        for one in (mine if len(mine) > 1 or wasted else [])
    ]
    return part(
        _PARTS,
        "cost",
        picture=bars(drawn, "How long each stage took"),
        figures=known,
        money=f"Cost: {cost_sentence(report.cost)}." if report is not None else "",
        budgets=report.budgets if report is not None else (),
        spans=spans,
        generations=[f"Generation {span.number}: {span.sentence}" for span in mine if span.sentence],
    )


def in_time(seconds: float) -> str:
    """A time in words of at most two units."""
    return f"{seconds:.1f} s" if seconds < 60 else in_two_units(seconds)


def _expectations(results: list[Result]) -> Mapping[str, object]:
    """Tables of what was broken, then what held; many of the latter are folded away."""
    broken = [result for result in results if result.verdict != "holds"]
    held = [result for result in results if result.verdict == "holds"]
    opened, folded = ([*broken, *held], []) if len(held) < _MANY else (broken, held)
    return {"opened": _expectation_table(opened), "folded": _expectation_table(folded), "num_folded": len(folded)}


def _expectation_table(results: list[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = ("expectation", "severity", "result", "observed")
    columns = 4 if any(result.observed for result in results) else 3
    return head[:columns], [_expectation(result)[:columns] for result in results]


def _expectation(result: Result) -> tuple[str, ...]:
    tone = "good" if result.verdict == "holds" else "bad" if result.entry["severity"] == "critical" else "warn"
    parts = result.text.split("`")
    # Names between backticks are set as code, unless a value has a backtick, too.
    text = part("pieces", "with_code", parts=parts if len(parts) % 2 else [result.text])
    return text, str(result.entry["severity"]), badge(result.verdict, tone), result.observed


def _places(failure: Failure) -> list[tuple[str, str]]:
    """The first rows that broke it, with their values."""
    if len(failure.places) == len(failure.row_numbers):
        rows = [f"row {place.row} of {place.file}" for place in failure.places]
    else:  # a report of an earlier version
        rows = [f"row {number}" for number in failure.row_numbers]
    return list(zip(rows, failure.values, strict=False))[:_PLACES]


def _boxes(facts: Facts) -> list[Box]:
    resolved, report, dataset = facts.run.resolved, facts.contract, facts.dataset
    checkpoint, evaluation, training = facts.checkpoint, facts.evaluation, facts.training
    again = {one.name for one in facts.stages if one.status == "reused"}
    size = "" if facts.run.external else in_words(sum(one.bytes for one in resolved.files), BYTES)
    rows = "" if dataset is None else f"{sum(dataset.rows(one) for one in dataset.splits):,} rows"
    scores = [
        f"{name} {label(one.value)}" for name, one in (evaluation.metrics if evaluation is not None else {}).items()
    ]
    revision = f"{resolved.commit[:10] if resolved.commit else 'no revision'}{', changed' if resolved.dirty else ''}"
    code = ("code", revision, resolved.code_digest[:12]) if training is not None else None
    champion = None
    if resolved.champion is not None and evaluation is not None:
        champion = ("champion", f"version {resolved.champion.uri.rpartition('/')[2]}", resolved.champion.id[:12])
    attempt = (training or "").rpartition("/")[2][:12]
    step = "" if checkpoint is None else f"step {checkpoint.step:,}"
    verdict = "accepted" if report is not None and report.accepted else "rejected"
    return [
        Box("raw data", "external" if facts.run.external else _files(len(resolved.files)), size),
        Box("contract", verdict, _id(report), report is not None, "validate" in again),
        Box("dataset", rows, _id(dataset), dataset is not None, "shard" in again),
        Box("training", _training(facts), attempt, training is not None, "train" in again, code),
        Box("checkpoint", step, _id(checkpoint), checkpoint is not None, "train" in again),
        Box("evaluation", (scores or [""])[0], _id(evaluation), evaluation is not None, "evaluate" in again, champion),
        _version(facts),
    ]


def _files(number: int) -> str:
    return f"{number:,} file{'' if number == 1 else 's'}"


def _version(facts: Facts) -> Box:
    receipt = facts.receipt
    report = facts.report
    if report is None or report.verdict not in ("promoted", "canary", "unchanged") or report.model is None:
        return Box("version", "", reached=False)
    ref = None if receipt is None else receipt.candidate
    alias = f"@{report.model.alias}" if report.model.alias else ""
    what = f"{report.model.version}{alias}"
    return Box("version", what, ref.id[:12] if ref else report.model.name, reused=report.verdict == "unchanged")


def _training(facts: Facts) -> str:
    if not facts.spans:
        return "begun"
    steps = max(one.last_step for one in facts.spans)
    return f"{steps:,} steps" + (f" ({len(facts.spans)}×)" if len(facts.spans) > 1 else "")


def _id(handoff: object) -> str:
    ref = getattr(handoff, "ref", None)
    return "" if ref is None else ref.id[:12]


def mirrors_section(facts: Facts) -> Markup:
    """Each mirror that the spec names, with what it was told of this run; nothing if it names none."""
    run = facts.run
    spec, what = run.spec.mirrors, newest_end(run.store, run.run_id)
    if not spec.names or not run.recorded:
        return Markup()
    rows, left = [], []
    for name in spec.names:
        attempts, last = (0, None) if what is None else newest_delivery(run.store, run.run_id, name, what)
        rows.append(
            (name, spec.place(name), _state(last), _when(attempts, last), "" if last is None else last.sentence)
        )
        left += [] if last is not None and last.delivered else [name]
    return part(_PARTS, "mirrors", rows=rows, note=f"Not sent: {', '.join(left)}. {_AGAIN}" if left else "")


def _state(last: Delivery | None) -> Markup:
    if last is None:
        return badge("not yet", "calm")
    return badge("sent", "good") if last.delivered else badge("failed", "warn")


def _when(attempts: int, last: Delivery | None) -> str:
    if last is None:
        return ""
    shown = _time(last.at)
    return f"{shown} (attempt {attempts})" if attempts > 1 else shown


def _verdict(facts: Facts) -> str:
    return (facts.report.verdict if facts.report is not None else UNFINISHED).replace("_", " ")


def _head(facts: Facts) -> Markup:
    """The verdict, why, what to do next, and the figures that most people look for."""
    run, report = facts.run, facts.report
    verdict = report.verdict if report is not None else UNFINISHED
    tone = _VERDICT_TONES.get(verdict, "calm" if report is None else "bad")
    error = (report.error if report is not None else None) or {}
    why = _why(facts, str(error.get("message") or "")) or (report.sentence if report else "The run has not ended.")
    metrics = [(name, f"{value:.4f}") for name, value in (report.metrics if report is not None else {}).items()]
    model = report.model if report is not None else None
    version = "" if model is None or model.version is None else f"version {model.version}"
    took = in_time(sum(stage.seconds for stage in facts.stages)) if facts.stages else ""
    return part(
        _PARTS,
        "head",
        tone=tone,
        title=f"{run.spec.name} · run {run.run_id}",
        verdict=_verdict(facts).capitalize(),
        why=as_sentence(why.strip()),
        remedy=error.get("remedy") or "",
        restarts=f"It recovered: the training was restarted {_times(facts.restarts)}." if facts.restarts else "",
        trace=error.get("user_traceback") or "",
        figures=[*metrics[:6], (f"{run.spec.model_name}@{run.spec.promote.alias}", version), ("took", took)],
    )


def _why(facts: Facts, message: str) -> str:
    """The message; where several gates are not met, which ones: what each found stands below."""
    missed = [
        f"{one.metric} on the slice {one.slice}" if one.slice else one.metric for one in facts.gates if not one.met
    ]
    if len(missed) < 2 or ": " not in message:
        return message
    return f"{message.partition(': ')[0]}: {', '.join(dict.fromkeys(missed))}; {message.rpartition('; ')[2]}"


def _stages(facts: Facts) -> Markup:
    rows = [
        (stage.name, badge(stage.status, _STAGE_TONES.get(stage.status, "bad")), in_time(stage.seconds), stage.sentence)
        for stage in facts.stages
    ]
    return part(_PARTS, "stages", rows=rows)


def _foot(facts: Facts) -> Markup:
    run, report = facts.run, facts.report
    resolved = run.resolved
    revision = f"revision {resolved.commit}{' with changes' if resolved.dirty else ''}" if resolved.commit else ""
    ended = f"ended {_time(report.finished)}" if report is not None else ""
    tags = ", ".join(f"{name} {value}" for name, value in run.spec.tags.items())
    note = "" if report is None or report.verdict in FINAL else f"The run may continue: trainwright resume {run.run_id}"
    words = [
        f"started {_time(resolved.started)}",
        ended,
        f"by {resolved.actor} ({resolved.trigger})",
        revision,
        tags,
        note,
    ]
    return part(_PARTS, "foot", words=[word for word in words if word])


def _time(stamp: str) -> str:
    return stamp.replace("T", " ").replace("+00:00", " UTC")


def _times(number: int) -> str:
    return "once" if number == 1 else "twice" if number == 2 else f"{number} times"


_SECTIONS: tuple[Callable[[Facts], Markup], ...] = (
    gates_section,
    curves_section,
    predictions_section,
    slices_section,
    worst_section,
    drift_part,
    data_section,
    lineage_section,
    cost_section,
    mirrors_section,
)
