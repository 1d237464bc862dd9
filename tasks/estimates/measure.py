"""Asks a child process how much memory the module and a step of it take; the user's code runs there alone."""

from __future__ import annotations

from collections.abc import Sequence

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.handoffs import Dataset
from data_contracts.messages.commands import MODULE_MEMORY, ModuleSizes, SizeRequest
from infra import prices
from infra.child import run_child
from tasks.run.run import Run
from tasks.stages.train import size_facts

# A step without values takes seconds; what takes longer is not worth the wait before a run.
MOST_S = 60.0
# Rows of a measured step: more take longer and tell no more, because memory grows evenly with rows.
MOST_ROWS = 1024


def measure(run: Run, dataset: Dataset | None, rows: Sequence[int]) -> tuple[ModuleSizes | None, str]:
    """The module's memory and first weights; with the dataset also steps of these rows. None, and why, if unknown.

    Args:
        dataset: with the columns that the training will read.

    Raises:
        UsageError: the module cannot be built, sharded or begun as the spec says.
    """
    limited = {min(max(count, 2), MOST_ROWS) for count in rows}
    wanted = sorted(limited | {max(limited) * 2} if len(limited) == 1 else limited)
    own = "data" in run.resolved.lightning
    request = SizeRequest(
        **size_facts(run, dataset),
        columns={} if dataset is None or own else dataset.columns,
        rows=[] if dataset is None or own else wanted,
        accelerated=not prices.on_cpu(run.resolved.lightning),
    )
    try:
        sizes = run_child(MODULE_MEMORY, request, project=run.project(), withhold=run.withholds, limit=MOST_S)
    except UsageError:
        raise  # it is refused, also where it is only planned
    except TrainwrightError as error:
        return None, error.message
    if sizes.unknown:
        return None, sizes.unknown
    if own:
        return sizes, "the config brings its own data module"
    if dataset is None:
        return sizes, "no dataset of this pipeline is made yet (`trainwright shard SPEC` makes it)"
    return sizes, sizes.unprobed
