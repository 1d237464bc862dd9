"""A rank that takes part in several trainings, one after another; TRAININGS tells which."""

from __future__ import annotations

import contextlib
import json
import os
import sys

from data_contracts.errors import UsageError
from training.fit.assembly import train
from training.fit.launch_context import read_context
from training.fit.rank import prepare
from training.fit.reports import Reports


def main() -> None:
    for told in json.loads(os.environ["TRAININGS"]):
        context = read_context({**os.environ, **told})
        prepare(context)
        reports = Reports(context.scratch, context.rank, context.heartbeat_s)
        # What all ranks refuse is reported as it is; the next one begins.
        with contextlib.suppress(UsageError):
            reports.done(*train(context, reports))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
