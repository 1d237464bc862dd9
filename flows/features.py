"""The ring around the core: one row names a feature's folders, commands, page and hooks; deleting these deletes it.

The core (the stages, the gates, the store, the gang and the flow of a run) imports none of it; budgets and the search
for contamination are core, because they stop and reject runs. A hook is a function that the core calls at an event,
named by text as `LINE` names stages, and imported at the event. A feature of which no file is left is absent: its
commands are not offered, and its hooks are not called. Where only a part is left, importing it fails as anywhere else.

The events of a run, in order; at one event, hooks are called in the order of the rows:

- `settings()`: before its server is started, and again before its first check. It may refuse the run.
- `wrap(work)`: returns the function that carries the run out, with more around it: within budgets and metering.
- `begin(run)`: after what the core refuses, and before the first stage. It may refuse the run.
- `report(run, report, hand-offs)`: its report is written, after the last stage or a failure.
- `end(run, report)`: Prefect was told by an event how it ended, and its flow run has no state yet.
- `fail(error)`: it failed without a report, and Prefect was not told yet.
- `after(run)`: its flow run's state is known.

Events of commands: `resume(run, stages)` returns what is left of a run that is to be continued; `decide(store,
seconds)`: an alias was moved back; `reap(store)`: its dead runs were looked for; `due(store)` returns what is still to
be told; `collect(store, now, keep)`: `gc` is about to delete runs.

What surrounds the core and is not separable today:

- Sensors and backfills stand with the concurrency lock (`schedule.overlap`), which a spec demands and no run ignores.
- `tasks/costs/charges.py` and `sums.py` say how much of a budget is used. `infra/mirrors.py` also keeps what Prefect
  was told, `infra/metrics.py` also shows the server's metrics, and `infra/telemetry.py` also writes logs.
- The event of a rollback, and an end that Prefect did not take, are sent with what mirrors are due.
- `training/export`: the shakedown tries the forms that a spec exports.
- `slo` is written with the words of the pages.
- The deployment for the page of a day stays listed in `infra/orchestrator/deployments.py`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
# The events that the flow of a run calls hooks at.
EVENTS_OF_RUN = ("settings", "wrap", "begin", "report", "end", "fail", "after")


@dataclass(frozen=True)
class Feature:
    """A feature of the ring.

    Attributes:
        folders: its folders and files, from the root.
        commands: that nobody else offers.
        page: under docs/.
        needs: the features without which it is absent, too.
        hooks: `module:function` by event.
    """

    name: str
    folders: tuple[str, ...]
    commands: tuple[str, ...]
    page: str
    needs: tuple[str, ...] = ()
    hooks: Mapping[str, str] = field(default_factory=dict)


FEATURES = (
    Feature(
        "telemetry",
        ("tasks/telemetry.py", "infra/traces.py"),
        (),
        "telemetry.md",
        hooks={"settings": "tasks.telemetry:refuse_wrong_settings", "wrap": "tasks.telemetry:observed"},
    ),
    Feature("objectives", ("tasks/slo.py", "tasks/slo.yaml"), (), "slo.md"),
    Feature(
        "queries",
        ("tasks/queries", "flows/commands/queries.py"),
        ("status", "logs", "checkpoints", "show", "history", "affected", "prove"),
        "status.md",
        needs=("objectives",),
        hooks={"resume": "tasks.queries.plan:plan_resumed"},
    ),
    Feature("estimates", ("tasks/estimates", "flows/commands/plan.py"), ("plan",), "plan.md", needs=("queries",)),
    Feature(
        "pages",
        ("tasks/pages", "flows/commands/reports.py", "flows/day_page.py"),
        ("slo", "report", "diff"),
        "report.md",
        needs=("objectives", "queries"),
        hooks={"report": "tasks.pages.run_page:keep_page"},
    ),
    Feature(
        "cost reports",
        ("tasks/costs/months.py", "tasks/costs/focus.py", "flows/commands/costs.py"),
        ("cost",),
        "cost.md",
        needs=("pages",),
        hooks={"collect": "tasks.costs.months:keep_months"},
    ),
    Feature(
        "CI reports",
        ("tasks/ci.py", "flows/commands/ci.py", "infra/orchestrator/remote_runs.py"),
        ("ci",),
        "ci.md",
        needs=("pages",),
        hooks={"end": "tasks.ci:keep_report", "fail": "tasks.ci:keep_failure"},
    ),
    Feature("step profile", ("tasks/profile.py", "training/profile.py"), (), "profile.md", needs=("pages",)),
    Feature(
        "game days",
        (
            "tasks/gameday.py",
            "flows/commands/gameday.py",
            "training/fit/game_day_rank.py",
            "training/fit/fault_injector.py",
        ),
        ("gameday",),
        "gameday.md",
        needs=("pages",),
    ),
    Feature("search", ("tasks/search", "flows/commands/search.py"), ("search",), "search.md", needs=("pages",)),
    Feature("export", ("tasks/export.py",), ("export",), "export.md"),
    Feature("predict", ("tasks/predict.py", "training/predict"), ("predict",), "predict.md"),
    Feature("reproduction", ("tasks/reproduction",), ("reproduce",), "reproduce.md"),
    Feature(
        "mirrors",
        ("tasks/mirrors",),
        ("mirror",),
        "mirrors.md",
        needs=("pages", "export"),
        hooks={
            "begin": "tasks.mirrors.deliver:try_mirrors",
            "after": "tasks.mirrors.deliver:tell_after_run",
            "decide": "tasks.mirrors.deliver:tell_quietly",
            "reap": "tasks.mirrors.deliver:tell_ends",
            "due": "tasks.mirrors.deliver:sentences_due",
        },
    ),
)


def present() -> list[Feature]:
    """The features of which a file is left, and those that they need."""
    rows = [row for row in FEATURES if any(map(_is_there, row.folders))]
    names: set[str] = set()
    while names != {row.name for row in rows}:
        names = {row.name for row in rows}
        rows = [row for row in rows if names.issuperset(row.needs)]
    return rows


def _is_there(folder: str) -> bool:
    """Whether a file, or a folder with more than what Python compiled there, is in this installation."""
    path = _ROOT / folder
    return path.is_file() or (path / "__init__.py").is_file()


def is_present(name: str) -> bool:
    """Whether this installation has a feature."""
    assert name in {row.name for row in FEATURES}, name
    return any(row.name == name for row in present())


def absent_commands() -> set[str]:
    """The commands of features that this installation does not have."""
    return {name for row in FEATURES for name in row.commands} - {name for row in present() for name in row.commands}


def hooks(event: str) -> list[Callable[..., Any]]:
    """The functions to call at an event, in order; an ImportError is that of a damaged installation."""
    named = [row.hooks[event].split(":") for row in present() if event in row.hooks]
    return [getattr(importlib.import_module(module), function) for module, function in named]


def call(event: str, *arguments: Any) -> None:
    """Call the hooks of an event that return nothing."""
    for hook in hooks(event):
        hook(*arguments)


def load_hooks() -> None:
    """Import what the events of a run need, before it begins: a damaged installation must not end it after training."""
    for event in EVENTS_OF_RUN:
        hooks(event)


def wrapped(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the function that carries a metered run out by the hooks of `wrap`; the first row's is the outermost."""

    @functools.wraps(work)
    def carry_out(run: Any) -> Any:
        return functools.reduce(lambda inner, wrap: wrap(inner), reversed(hooks("wrap")), work)(run)

    return carry_out
