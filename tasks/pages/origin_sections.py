"""The parts of a run's page about where its model comes from: data and contract, drift, lineage, time and cost."""

from __future__ import annotations

from data_contracts.contract.reports import Result
from data_contracts.handoffs import ContractReport, Failure
from data_contracts.profile.drift import svg
from data_contracts.records import ColumnDrift
from tasks.charts.bars import Bar, bars
from tasks.charts.lineage import Box, lineage
from tasks.charts.picture import BLUE, SOFT
from tasks.charts.scales import label
from tasks.pages.facts import Facts, seconds_between, tried
from tasks.pages.html import NOTHING, Markup, chart, escaped, join, section, table, tag
from tasks.pages.html import facts as pairs
from tasks.run.report import cost_sentence
from tasks.stages.artifacts import DRIFT_HEAD, DRIFT_SHOWN, drift_cells, report_results
from tasks.stages.shard import row_remarks, rows_left_out, rows_read, split_rows

_TONES = {"holds": "good"}
_MOST_FAILURES = 20
# So many expectations that hold are folded away.
_MANY = 12


def drift_part(facts: Facts) -> Markup:
    """The columns that moved against earlier data, with histograms then and now."""
    drift = None if facts.contract is None else facts.contract.drift
    if drift is None:
        return NOTHING
    words = f"{drift.head[:1].upper()}{drift.head[1:]}."
    if drift.note or not drift.moved:
        return section("Drift", tag("p", words, kind="soft"))
    then, now = drift.rows
    lines = [(*drift_cells(one), _histogram(one)) for one in drift.moved[:DRIFT_SHOWN]]
    more = len(drift.moved) - DRIFT_SHOWN
    return section(
        "Drift",
        tag("p", f"{words} {then:,} rows then (grey), {now:,} rows now (orange).", kind="soft"),
        table([*DRIFT_HEAD, "then and now"], lines, numbers=(2, 3)),
        tag("p", f"… and {more} more columns.", kind="soft") if more > 0 else NOTHING,
    )


def data_section(facts: Facts) -> Markup:
    """The raw files, the dataset and the contract: every expectation with what was observed."""
    run, report, dataset = facts.run, facts.contract, facts.dataset
    if run.external:
        return section(
            "Data and contract", tag("p", "The data is external: the user's data module reads it.", kind="soft")
        )
    files = run.resolved.files
    known = [
        ("raw data", f"{_files(len(files))}, {in_bytes(sum(one.bytes for one in files))}"),
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
        return section("Data and contract", tag("p", "No contract was checked.", kind="soft"), pairs(known))
    results = tried(lambda: report_results(run, report)) or []
    broken = [one for one in results if one.verdict != "holds"]
    held = [one for one in results if one.verdict == "holds"]
    verdict = "accepted" if report.accepted else "rejected"
    words = f"The contract {verdict} the data: {report.expectations:,} expectations, {len(report.failures):,} broken."
    if not report.expectations and not results:
        words = f"The contract {verdict} the data."
    return section(
        "Data and contract",
        tag("p", words),
        pairs(known),
        _failures(report),
        tag("h3", "Expectations") if results else NOTHING,
        *_expectations_parts(broken, held),
    )


def lineage_section(facts: Facts) -> Markup:
    """The picture from the raw files to the version."""
    boxes = _boxes(facts)
    words = ["A dashed blue frame is a result of an earlier run."] if any(one.reused for one in boxes) else []
    words += ["A dashed grey frame was not reached."] if not all(one.reached for one in boxes) else []
    legend = tag("p", " ".join(words), kind="soft") if words else NOTHING
    return section("Lineage", chart(lineage(boxes)), legend)


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
    head = ("generation", "nodes / ranks", "steps", "ended", "node-seconds", "done again later")
    money = f"Cost: {cost_sentence(report.cost)}." if report is not None else ""
    return section(
        "Time and cost",
        chart(bars(drawn, "How long each stage took")) if drawn else NOTHING,
        pairs(known),
        tag("p", money, kind="soft") if money else NOTHING,
        join(tag("p", sentence) for sentence in (report.budgets if report is not None else ())),
        tag("h3", "Generations of the training") if spans else NOTHING,
        table(head, spans, numbers=(0, 4)),
        join(tag("p", f"Generation {one.number}: {one.sentence}", kind="soft") for one in mine if one.sentence),
    )


def in_bytes(size: float) -> str:
    """A size in its largest unit."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


def in_time(seconds: float) -> str:
    """A time in words of at most two units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    for name, size, below, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            return f"{int(seconds // size)} {name} {int(seconds % size // part)} {below}"
    raise AssertionError


def _histogram(one: ColumnDrift) -> Markup:
    return Markup(svg(one.bars, one.column)) if one.bars else NOTHING


def _expectations_parts(broken: list[Result], held: list[Result]) -> list[Markup]:
    """What was broken, then what held; many of the latter are folded away."""
    if len(held) < _MANY:
        return [_expectations([*broken, *held])]
    words = f"{len(held):,} expectations hold"
    return [_expectations(broken), tag("details", tag("summary", words), _expectations(held))]


def _expectations(results: list[Result]) -> Markup:
    head = ("expectation", "severity", "result", "observed")
    shown = len(head) if any(one.observed for one in results) else len(head) - 1
    return table(head[:shown], [_expectation(one)[:shown] for one in results])


def _expectation(one: Result) -> tuple[str, ...]:
    tone = "good" if one.verdict == "holds" else "bad" if one.entry["severity"] == "critical" else "warn"
    return _with_code(one.text), str(one.entry["severity"]), tag("span", one.verdict, kind=f"tag {tone}"), one.observed


def _with_code(text: str) -> Markup:
    """A text in which names between backticks are set as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a value has a backtick, too
        return escaped(text)
    return join(tag("code", part) if at % 2 else part for at, part in enumerate(parts))


def _failures(report: ContractReport) -> Markup:
    """What was broken, with the first rows and their values; rows that were set aside come after."""
    parts = [_list("Broken", report.failures)]
    aside = report.quarantine
    if aside is not None and aside.rows:
        words = f"{aside.rows:,} of {report.rows:,} rows were set aside and are not in the dataset."
        parts += [tag("p", words), _list("What the rows that were set aside broke", aside.broken)]
    return join(parts)


def _list(title: str, failures: list[Failure]) -> Markup:
    if not failures:
        return NOTHING
    items = [tag("li", one.sentence, _places(one)) for one in failures[:_MOST_FAILURES]]
    more = len(failures) - _MOST_FAILURES
    items += [tag("li", f"… and {more} more")] if more > 0 else []
    return join([tag("h3", title), tag("ul", *items)])


def _places(failure: Failure) -> Markup:
    if len(failure.places) == len(failure.row_numbers):
        rows = [f"row {one.row} of {one.file}" for one in failure.places]
    else:  # a report of an earlier version
        rows = [f"row {number}" for number in failure.row_numbers]
    shown = [join([f"{row}: ", tag("code", value)]) for row, value in zip(rows, failure.values, strict=False)]
    return tag("div", join(shown[:5], ", "), kind="soft") if shown else NOTHING


def _boxes(facts: Facts) -> list[Box]:
    resolved, report, dataset = facts.run.resolved, facts.contract, facts.dataset
    checkpoint, evaluation, training = facts.checkpoint, facts.evaluation, facts.training
    again = {one.name for one in facts.stages if one.status == "reused"}
    rows = "" if dataset is None else f"{sum(dataset.rows(one) for one in dataset.splits):,} rows"
    scores = [
        f"{name} {label(one.value)}" for name, one in (evaluation.metrics if evaluation is not None else {}).items()
    ]
    revision = f"{resolved.commit[:10] if resolved.commit else 'no revision'}{', changed' if resolved.dirty else ''}"
    code = ("code", revision, _short(resolved.code_digest)) if training is not None else None
    champion = None
    if resolved.champion is not None and evaluation is not None:
        champion = ("champion", f"version {resolved.champion.uri.rpartition('/')[2]}", _short(resolved.champion.id))
    step = "" if checkpoint is None else f"step {checkpoint.step:,}"
    verdict = "accepted" if report is not None and report.accepted else "rejected"
    return [
        Box("raw data", "external" if facts.run.external else _files(len(resolved.files)), _size(facts)),
        Box("contract", verdict, _id(report), report is not None, "validate" in again),
        Box("dataset", rows, _id(dataset), dataset is not None, "shard" in again),
        Box("training", _training(facts), _attempt(training), training is not None, "train" in again, code),
        Box("checkpoint", step, _id(checkpoint), checkpoint is not None, "train" in again),
        Box("evaluation", (scores or [""])[0], _id(evaluation), evaluation is not None, "evaluate" in again, champion),
        _version(facts),
    ]


def _attempt(training: str | None) -> str:
    return _short((training or "").rpartition("/")[2])


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
    return Box("version", what, _short(ref.id) if ref else report.model.name, reused=report.verdict == "unchanged")


def _training(facts: Facts) -> str:
    if not facts.spans:
        return "begun"
    steps = max(one.last_step for one in facts.spans)
    return f"{steps:,} steps" + (f" ({len(facts.spans)}×)" if len(facts.spans) > 1 else "")


def _size(facts: Facts) -> str:
    return "" if facts.run.external else in_bytes(sum(one.bytes for one in facts.run.resolved.files))


def _id(handoff: object) -> str:
    ref = getattr(handoff, "ref", None)
    return "" if ref is None else _short(ref.id)


def _short(identity: str) -> str:
    return identity[:12]
