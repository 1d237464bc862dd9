"""The part of the layout about processes that carry out runs; `infra/store/layout.py` has all paths."""

from __future__ import annotations

from infra.store.paths.path_parts import check_path
from infra.store.paths.path_parts import name_part as _name
from infra.store.paths.path_parts import number_part as _number


def executions(run_id: str) -> str:
    """Folder of a run's executions, one record for each process that carried it out."""
    return f"runs/{_name(run_id)}/executions"


def execution(run_id: str, token: int) -> str:
    """Record of the process that took the run's lease with this token."""
    return f"{executions(run_id)}/{_number(token)}.json"


def handed_over(run_id: str, token: int) -> str:
    """Record that the process with this token handed the run over to another one."""
    return f"{executions(run_id)}/{_number(token)}-handed-over.json"


def month_folder() -> str:
    """Folder of the figures of months, which stay when their runs are deleted."""
    return "costs"


def month_costs(month: str) -> str:
    """Record of what the runs of a calendar month such as 2026-10 used, created once after the month."""
    return f"{month_folder()}/{_name(month)}.json"


def crashes(run_id: str) -> str:
    """Folder of a run's crashes that were answered by resuming it."""
    return f"runs/{_name(run_id)}/crashes"


def crash(run_id: str, n: int) -> str:
    """Record of crash `n` from 0, created once."""
    return f"{crashes(run_id)}/{_number(n)}.json"


def stages(run_id: str) -> str:
    """Folder of the records of how a run's stages ended."""
    return f"runs/{_name(run_id)}/stages"


def errands(run_id: str) -> str:
    """Folder of the jobs that nodes elsewhere do for a run."""
    return f"runs/{_name(run_id)}/errands"


def run_of_errand(errand: str) -> str | None:
    """The run that a node elsewhere does a job for, by the job's folder; None for another folder, as of a training."""
    parts = errand.split("/")
    return parts[1] if parts[0] == "runs" and len(parts) == 4 else None


def profiled(run_id: str, n: int, what: str) -> str:
    """The `page` or the `trace` of profile `n` of a run's training, from 0; created once."""
    ending = {"page": "html", "trace": "trace.json.gz"}[what]
    return f"runs/{_name(run_id)}/profiles/{_number(n)}.{ending}"


def environments() -> str:
    """Folder of what is installed where processes of runs imported from, a folder for each such environment."""
    return "environments"


def environment(content_digest: str) -> str:
    """The list of what is installed in an environment, named by its digest."""
    return f"{environments()}/{_name(content_digest)}/packages.json"


def runs_with(content_digest: str) -> str:
    """Folder of the runs with a process that imported from an environment."""
    return f"{environments()}/{_name(content_digest)}/runs"


def imported_from(content_digest: str, run_id: str) -> str:
    """Mark: a process of a run imported from an environment, created once."""
    return f"{runs_with(content_digest)}/{_name(run_id)}"


def trainings() -> str:
    """Folder of all trainings."""
    return "trainings"


def slots(training: str) -> str:
    """Folder of the concurrency leases in Prefect that a training's conductors took."""
    return f"{check_path(training)}/slots"


def slot(training: str, lease_id: str) -> str:
    """Mark: a conductor of the training took this lease."""
    return f"{slots(training)}/{_name(lease_id)}"


def backfills(pipeline_name: str) -> str:
    """Folder of the windows that a pipeline's backfills have begun."""
    return f"backfills/{_name(pipeline_name)}"


def backfilled(pipeline_name: str, window: str, what: str) -> str:
    """Record that a window was `begun`, or has `ended`; created once."""
    return f"{backfills(pipeline_name)}/{_name(window)}/{_name(what)}.json"
