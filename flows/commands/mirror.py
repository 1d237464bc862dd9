"""`mirror`: tell the mirrors what they were not told yet."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from data_contracts.errors import StorageUnavailable, UsageError
from flows.commands.guard import Answer
from infra.mirrors import Deadline
from tasks.mirrors.deliver import accept_places, tell
from tasks.mirrors.outbox import PREFECT, Due, due, due_of_run
from tasks.run.run import known_store_list, reopen_run


def mirror(arguments: argparse.Namespace) -> Answer:
    """The `mirror` command: of one run, which is told again, or of all runs and rollbacks of the known stores."""
    if not arguments.wait > 0:
        raise UsageError(f"--wait: {arguments.wait} is not a time.", remedy="Give a number of seconds above 0.")
    if arguments.accept and arguments.run is None:
        raise UsageError("--accept: a place is accepted for one run's mirrors.", remedy="Name the run.")
    deadline, told = Deadline(arguments.wait), list[Due]()
    if arguments.run is not None:
        run = reopen_run(arguments.run, arguments.store)
        if not run.spec.mirrors.names:
            raise UsageError(
                f"The spec of run {run.run_id} has no mirrors.", remedy="Add a section `mirrors` and run again."
            )
        of_run = due_of_run(run.store, run.resolved, again=True)
        if not of_run:
            raise UsageError(f"Run {run.run_id} has not ended.", remedy="Its mirrors are told when it ends.")
        accept_places(run, arguments.accept)
        left = tell(run.store, lambda: of_run, deadline, told.append)
    else:
        left = []
        for store in known_store_list(arguments.store):
            left += tell(store, partial(due, store), deadline, told.append)
    return _answer(told, left)


def _answer(told: Sequence[Due], left: Sequence[Due]) -> Answer:
    """What was sent to which mirror, and what is left and why."""
    done = [f"{one.mirror}: {one.last.sentence}" for one in told if one.last is not None]
    value = {"told": len(told), "done": done, "left": [one.sentence for one in left]}
    mirrors = [one for one in left if one.mirror != PREFECT]
    if not mirrors:
        # Nobody asked for a server, and none may ever run here: what waits for one is no failure.
        waits = [f"{one.sentence} The next run or `trainwright mirror` beside a server tells it." for one in left]
        return Answer("\n".join([*done, *waits]) or "Every mirror was told everything.", value)
    count = f"{len(left)} of {len(told) + len(left)}"
    error = StorageUnavailable(f"Mirrors were not told everything ({count} left): {mirrors[0].sentence}", remedy="")
    head = f"{count} left. The next run with mirrors in this store tells what is left, as does `trainwright mirror`."
    return Answer("\n".join([*done, head, *(f"  {one.sentence}" for one in left)]), value, 5, error)
