"""A rank that takes part in several trainings, one after another; TRAININGS has the environment of each."""

from __future__ import annotations

import json
import os
import sys
import traceback
from unittest import mock

from training.fit.assembly import train
from training.fit.failures import report_failure
from training.fit.launch_context import read_context
from training.fit.rank import prepare
from training.fit.reports import Reports


def main() -> None:
    for training in json.loads(os.environ["TRAININGS"]):
        with mock.patch.dict(os.environ, training):
            context = read_context()
            prepare(context)
            reports = Reports(context.scratch, context.rank, context.heartbeat_s)
            reports.report(now=True)
            # What ends a training ends it on all ranks; the next one begins.
            try:
                reports.done(*train(context, reports))
            except Exception as error:
                traceback.print_exc()
                report_failure(error, context, reports)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
