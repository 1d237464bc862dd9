"""The paths of the records of a game day's ranks; `infra/store/layout.py` has all others."""

from __future__ import annotations

from typing import Literal

from infra.store.paths.path_parts import check_path, name_part


def game_day_record(training: str, what: Literal["injected", "first", "caught-up"]) -> str:
    """Record of a training's fault: that it is injected, the first step after it, and the first that is new."""
    return f"{check_path(training)}/game-day/{name_part(what)}.json"
