"""The page of a search: the best so far against what it cost, which values gave what, and the trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.files import replace_bytes
from infra.settings import state_folder
from tasks.charts.plots import Axis, Bar, Curve, bars, curves, parallel
from tasks.pages.html import page
from tasks.search.search import SearchResult, Trial

_HOUR_S = 3600.0
_CURVES = 6


def keep_page(result: SearchResult, importance: Mapping[str, float]) -> Path:
    """Write the page to the state folder, in place of an earlier one."""
    folder = state_folder() / "pages"
    folder.mkdir(exist_ok=True)
    path = folder / f"search-{result.record.name}.html"
    replace_bytes(path, search_page(result, importance).encode(), mode=0o600)
    return path


def search_page(result: SearchResult, importance: Mapping[str, float]) -> str:
    """The page of a search as it stands.

    Args:
        importance: of each field, as a share of the difference between trials; empty if it is not known.
    """
    metric, names = result.record.select.metric, list(result.record.spec.space)
    best = result.best
    named = [Bar(short(name), share, f"{share:.0%}") for name, share in importance.items()]
    return page(
        "search",
        title=f"Search {result.record.name}",
        name=result.record.name,
        best=best,
        metric=metric,
        sentence=sentence(result),
        figures=_figures(result),
        progress=_progress(result),
        axes=parallel(*_axes(result), f"The values of the trials, and {metric}"),
        importance=bars(named, "Importance of the fields", high=1.0),
        validations=_validations(result),
        head=("trial", "state", metric, *map(short, names), "node-hours", "cost", "run"),
        rows=[_row(trial, names) for trial in result.trials],
        numbers=range(2, 5 + len(names)),
    )


def short(name: str) -> str:
    """The last part of a field's name."""
    return name.rpartition(".")[2]


def sentence(result: SearchResult) -> str:
    """How a search stands, in one sentence."""
    best, num_over = result.best, sum(trial.state != "running" for trial in result.trials)
    known = "no trial is finished" if best is None else f"the best is trial {best.number}: {_value(best.value)}"
    most = f"{num_over} of at most {result.record.spec.budget.trials} trials are over"
    return f"{most}; {known}.{f' {result.over}' if result.over else ''}"


def _figures(result: SearchResult) -> list[tuple[str, str]]:
    states = [trial.state for trial in result.trials]
    counted = [(state, str(states.count(state))) for state in ("finished", "pruned", "failed", "running")]
    used = sum(trial.node_seconds for trial in result.trials) / _HOUR_S
    return [*((state, count) for state, count in counted if count != "0"), ("node-hours", f"{used:,.2f}")]


def _bests(result: SearchResult) -> Iterator[tuple[float, float]]:
    """Node-hours that were used, and the best value then, each time that it became better."""
    used, best = 0.0, None
    for trial in result.trials:
        used += trial.node_seconds / _HOUR_S
        if trial.state == "finished" and trial.value is not None:
            if best is None or ((trial.value < best) == result.record.is_smaller_better and trial.value != best):
                best = trial.value
            yield used, best


def _progress(result: SearchResult) -> str:
    bests = list(_bests(result))
    drawn = Curve(f"best {result.record.select.metric}", [used for used, _ in bests], [value for _, value in bests])
    return curves([drawn], title="The best so far", below="node-hours of all trials")


def _axes(result: SearchResult) -> tuple[list[Axis], int | None]:
    """An axis for each field and the metric, of finished trials; and which of these is the best."""
    finished = [trial for trial in result.trials if trial.state == "finished"]
    axes = []
    for name, parameter in result.record.spec.space.items():
        values = [trial.settings.get(name) for trial in finished]
        # Choices have no order, also if they are numbers.
        known = [str(value) if parameter.choices and value is not None else value for value in values]
        axes.append(Axis(short(name), known, log=parameter.log))
    metric = Axis(result.record.select.metric, [trial.value for trial in finished])
    return [*axes, metric], finished.index(result.best) if result.best is not None else None


def _validations(result: SearchResult) -> str:
    """The values of the best trial, and of those that came furthest."""
    best = result.best
    longest = sorted(result.trials, key=lambda trial: (trial is not best, -len(trial.values)))[:_CURVES]
    drawn = [
        Curve(f"trial {trial.number}", range(1, len(trial.values) + 1), trial.values)
        for trial in sorted(longest, key=lambda trial: trial.number)
        if trial.values
    ]
    return curves(drawn, title=f"{result.record.select.metric} at each validation", below="validation")


def _row(trial: Trial, names: list[str]) -> tuple[str, ...]:
    cost = "" if trial.usd is None else f"{trial.usd:.4f} USD"
    values = (_value(trial.settings.get(name)) for name in names)
    hours = f"{trial.node_seconds / _HOUR_S:.3f}"
    return str(trial.number), trial.state, _value(trial.value), *values, hours, cost, trial.run_id or trial.sentence


def _value(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
