"""The paths of records about a pipeline's schedule; `infra/store/layout.py` has all others."""

from __future__ import annotations

from data_contracts.canonical import digest
from infra.store.paths.path_parts import name_part as _name
from infra.store.paths.path_parts import number_part as _number


def turn(pipeline_name: str) -> str:
    """Pointer, a lease: which of the runs that no person started may work."""
    return f"schedules/{_name(pipeline_name)}/turn"


def end_request(pipeline_name: str, token: int, holder: str) -> str:
    """Mark, created once: it asks the holder of the turn with this fencing token to end.

    A holder's name is random, so nobody can ask a holder to end before it exists.
    """
    return f"schedules/{_name(pipeline_name)}/wanted/{_number(token)}-{digest(holder)[:16]}.json"


def scheduled(pipeline_name: str, key: str) -> str:
    """Record, created once: a scheduled time, known by its run's key, has its run."""
    return f"schedules/{_name(pipeline_name)}/times/{digest(key)}.json"


def sensor_cursor(pipeline_name: str) -> str:
    """Pointer: the newest step of the pipeline's sensor whose run has been started."""
    return f"schedules/{_name(pipeline_name)}/sensor/cursor"


def sensor_steps(pipeline_name: str) -> str:
    """Folder of the steps of the pipeline's sensor."""
    return f"schedules/{_name(pipeline_name)}/sensor/steps"


def sensor_step(pipeline_name: str, n: int) -> str:
    """Record of step `n` from 0, created once: the files that it was about."""
    return f"{sensor_steps(pipeline_name)}/{_number(n)}.json"
