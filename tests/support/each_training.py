"""A rank that takes part in several trainings, one after another, each of which may fail; TRAININGS tells which."""

from __future__ import annotations

import json
import os
import traceback

from training.fit.assembly import train
from training.fit.failures import classify
from training.fit.launch_context import read_context
from training.fit.rank import prepare
from training.fit.reports import Reports


def main() -> None:
    for told in json.loads(os.environ["TRAININGS"]):
        context = read_context({**os.environ, **told})
        prepare(context)
        reports = Reports(context.scratch, context.rank, context.heartbeat_s)
        try:
            reports.done(*train(context, reports))
        except BaseException as error:
            traceback.print_exc()
            reports.failed(classify(error, context.project, timeout_s=60))


if __name__ == "__main__":
    main()
    os._exit(0)
