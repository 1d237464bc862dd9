"""A rank of a game day: `python -m training.fit.game_day_rank` is `training.fit.rank` with one more callback.

The conductor of a game day names this module as the entry of its ranks; no other training imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.gang.rank_files import read_launch
from infra.store import Store
from training.fit import rank
from training.fit.launch_context import Context


def injectors(context: Context, store: Store) -> Sequence[Any]:
    """The callback that injects the launch's fault."""
    from training.fit.fault_injector import FaultInjector

    fault = read_launch().fault
    return [] if fault is None else [FaultInjector(context, store, fault)]


if __name__ == "__main__":
    rank.end(rank.main(injectors))
