"""The paths of what a store knows of a pipeline's schedule; `infra/store/layout.py` has all others."""

from __future__ import annotations

from data_contracts.canonical import digest
from infra.store.path_parts import name_part as _name
from infra.store.path_parts import number_part as _number


def turn(pipeline_name: str) -> str:
    """Pointer, a lease: which of the runs that nobody started by hand may work."""
    return f"schedules/{_name(pipeline_name)}/turn"


def wanted_turn(pipeline_name: str, token: int) -> str:
    """Mark, created once: the holder of the turn with this fencing token is asked to end."""
    return f"schedules/{_name(pipeline_name)}/wanted/{_number(token)}.json"


def scheduled(pipeline_name: str, key: str) -> str:
    """Record, created once: a scheduled time, known by its run's key, has its run."""
    return f"schedules/{_name(pipeline_name)}/times/{digest(key)}.json"
