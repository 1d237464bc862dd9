"""The page of a profile: what bounds a step, where its time goes, and what the change gave. It loads nothing."""

from __future__ import annotations

from tasks.charts.picture import BLUE
from tasks.charts.plots import Bar, bars
from tasks.pages.html import NOTHING, Markup, chart, facts, page, section, table, tag
from tasks.profile.profile import Profiled
from tasks.profile.verdict import NAMES, PARTS, SENTENCES, Comparison
from tasks.run.run import Run

_COLOURS = {
    "data": "var(--orange,#d9681d)",
    "transfer": "var(--orange,#d9681d)",
    "synchronisation": "var(--violet,#8454cc)",
    "checkpoint": "var(--teal,#127f8b)",
    "callbacks": "var(--pink,#c43d7d)",
}


def profile_page(run: Run, found: Profiled) -> str:
    """The page."""
    return page(
        f"{run.spec.name}: profile",
        _head(run, found),
        _parts(found),
        _change(found),
        _device(found),
        _operations(found),
        _method(found),
    )


def sentence(found: Profiled) -> str:
    """What bounds a step, and what the change gave, in one line."""
    said = f"bound by {NAMES[found.bound]}"
    if found.change is None:
        return said
    return f"{said}; {found.change.what} {result(found)}"


def result(found: Profiled) -> str:
    """What the change gave."""
    if found.comparison is None:
        return f"It could not be measured: {found.failed}"
    compared, steps = found.comparison, len(found.after.step_s if found.after else ())
    figures = (
        f"{compared.before:,.0f} → {compared.after:,.0f} samples/s ({len(found.profile.step_s)} and {steps} steps)"
    )
    if compared.helps is None:
        return f"Whether it helps is open: {figures}, but single steps differ more than that."
    return f"{'It helps' if compared.helps else 'It does not help'}: {figures}, {compared.gain:+.0%}."


def _head(run: Run, found: Profiled) -> Markup:
    profile = found.profile
    total = sum(found.parts.values())
    ranks = f"{profile.world_size} ranks" if profile.world_size > 1 else "1 rank"
    rate = found.comparison.before if found.comparison else profile.rows / total if total else 0.0
    return tag(
        "header",
        tag("p", f"{run.spec.name} · profile of {run.run_id}", kind="eyebrow"),
        tag("h1", f"Bound by {NAMES[found.bound]}"),
        tag("p", SENTENCES[found.bound], kind="why"),
        tag("p", f"{found.change.what} {result(found)}", kind="next") if found.change else NOTHING,
        facts(
            [
                ("a step", _time(total)),
                ("samples/s of the middle step", f"{rate:,.0f}"),
                ("rows of a step", f"{profile.rows:,}"),
                ("micro-batches", f"{profile.accumulate}" if profile.accumulate > 1 else ""),
                ("on", f"{ranks}, {profile.device}"),
                ("timed steps", f"{len(profile.step_s)}"),
            ]
        ),
        kind="calm",
    )


def _parts(found: Profiled) -> Markup:
    total = sum(found.parts.values()) or 1.0
    drawn = [
        Bar(PARTS[part], seconds, f"{_time(seconds)}, {seconds / total:.1%}", _COLOURS.get(part, BLUE))
        for part, seconds in found.parts.items()
    ]
    note = (
        "The times are those of rank 0, and the parts do not overlap. The time of a checkpoint is divided by the steps "
        "from one checkpoint to the next."
    )
    return section("Where a step's time goes", chart(bars(drawn, "Seconds of a mean step by part")), _soft(note))


def _change(found: Profiled) -> Markup:
    change = found.change
    if change is None:
        return section("The change most worth trying", tag("p", "No change is known for what bounds these steps."))
    return section(
        "The change most worth trying",
        tag("p", change.what),
        tag("p", result(found)),
        chart(_before_and_after(found.comparison)),
        _soft(change.effect),
        _soft(change.note) if change.note else NOTHING,
    )


def _before_and_after(compared: Comparison | None) -> str:
    if compared is None:
        return ""
    drawn = [("before", compared.before, BLUE), ("after", compared.after, "var(--good,#1a7a45)")]
    made = [Bar(name, rate, f"{rate:,.0f} samples/s", colour) for name, rate, colour in drawn]
    return bars(made, "Samples per second before and after the change")


def _device(found: Profiled) -> Markup:
    step, roof = found.profile, found.roof
    if roof is None:
        said = "The operations of a step were not counted, so it is unknown how close it comes to the device's best."
        return section("Arithmetic and memory", tag("p", said))
    return section(
        "Arithmetic and memory",
        table(
            ("", "of a step", "the device's best", "needs of the module's own time"),
            [
                _row("arithmetic", step.flops, step.peak_flops, "FLOP", roof.compute),
                _row("memory traffic", step.bytes, step.peak_bytes, "B", roof.memory),
            ],
            numbers=(1, 2, 3),
        ),
        _soft(
            "Arithmetic is that of matrix products, convolutions and attention. Traffic is what operations read and "
            "write if no cache keeps anything between them, so it is an upper bound. The device's best was measured "
            "here, with large operands."
        ),
    )


def _row(name: str, amount: float, best: float, unit: str, share: float) -> tuple[str, ...]:
    return name, _amount(amount, unit), _amount(best, f"{unit}/s"), f"{share:.0%}"


def _operations(found: Profiled) -> Markup:
    steps = found.profile.traced
    rows = [
        (one.name, f"{one.calls / steps:,.1f}", _time(one.seconds / steps))
        for one in (found.profile.operations if steps else [])
    ]
    head = ("operation", "calls of a step", "time of its own")
    if not rows:
        return NOTHING
    note = "Under torch's profiler, which slows short operations."
    return section("The longest operations", table(head, rows, numbers=(1, 2)), _soft(note))


def _method(found: Profiled) -> Markup:
    profile = found.profile
    lines = [
        f"{len(profile.step_s)} steps of a training of their own were timed after a warm-up, without torch's profiler. "
        "The training ran in a temporary folder: it left no checkpoint. Its weights are those that the module makes.",
        "Loggers of the config were left out. Callbacks ran.",
        f"The trace holds {profile.traced} later steps, under torch's profiler. Open it in ui.perfetto.dev, or in "
        "chrome://tracing. It holds names and times, and no values."
        if profile.traced
        else "There is no trace: the training ended before its steps.",
        "The trace was too long: later events were left out." if profile.cut else "",
        "On CUDA the clock waits for the device at each part's border, so copies and kernels that would overlap do not."
        if profile.device == "cuda"
        else "",
        "Synchronisation of sharded parameters that overlaps with other work is not told apart from it."
        if profile.world_size > 1 and profile.exchange_s is None
        else "",
    ]
    return section("How this was measured", tag("ul", *(tag("li", line) for line in lines if line)))


def _soft(text: str) -> Markup:
    return tag("p", text, kind="soft")


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} µs"


def _amount(value: float, unit: str) -> str:
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.2f} {prefix}{unit}"
    return f"{value:.0f} {unit}"
