"""`mirror`: tell the mirrors what they were not told yet."""

from __future__ import annotations

import argparse

from data_contracts.errors import StorageUnavailable, UsageError
from flows.commands.guard import Answer
from infra.mirrors.endpoint import Deadline
from tasks.mirrors.deliver import accept_mirrors, tell
from tasks.mirrors.outbox import due, due_of_run
from tasks.run.run import known_store_list, reopen_run


def mirror(arguments: argparse.Namespace) -> Answer:
    """The `mirror` command: of one run, which is told again, or of all runs and rollbacks of the known stores."""
    if not arguments.wait > 0:
        raise UsageError(f"--wait: {arguments.wait} is not a time.", remedy="Give a number of seconds above 0.")
    deadline = Deadline(arguments.wait)
    if arguments.run is not None:
        run = reopen_run(arguments.run, arguments.store)
        if not run.spec.mirrors.names:
            raise UsageError(
                f"The spec of run {run.run_id} has no mirrors.", remedy="Add a section `mirrors` and run again."
            )
        of_run = due_of_run(run.store, run.resolved, again=True)
        if not of_run:
            raise UsageError(f"Run {run.run_id} has not ended.", remedy="Its mirrors are told when it ends.")
        accept_mirrors(run)
        left, count = tell(run.store, lambda: of_run, deadline), len(of_run)
    else:
        left, count = [], 0
        for store in known_store_list(arguments.store):
            count += len(found := due(store))
            left += tell(store, lambda store=store: due(store), deadline) if found else []  # type: ignore[misc]
    value = {"told": count - len(left), "left": [one.sentence for one in left]}
    lines = [f"Told: {count - len(left)} of {count}."] if count else ["Every mirror was told everything."]
    error = None
    if left:
        error = StorageUnavailable(
            f"Mirrors were not told everything ({len(left)} of {count} left): {left[0].sentence}", remedy=""
        )
    return Answer("\n".join([*lines, *(f"  {one.sentence}" for one in left)]), value, 5 if left else 0, error)
