"""Ranks that do several jobs one after another in the same processes; a driver for tests."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from data_contracts.errors import TrainwrightError
from data_contracts.messages.children import RemoteJob
from data_contracts.messages.gang import Launch
from training.fit.reports import Reports
from training.score.rank import do_job


def main() -> None:
    cases = json.loads(Path(os.environ["CASES"]).read_text())
    scratch, rank, ranks = (
        Path(os.environ["TRAINWRIGHT_SCRATCH"]),
        *(int(os.environ[n]) for n in ("RANK", "WORLD_SIZE")),
    )
    for number, case in enumerate(cases):
        launch = Launch(training="runs/r/errands/e", nodes=1, devices=ranks, train=case["layout"])
        try:
            answer = do_job(launch, RemoteJob.from_json(case["job"]), case["paths"], Reports(scratch, rank, 1.0))
        except TrainwrightError as error:
            traceback.print_exc()
            answer = error.to_json()
        if rank == 0:
            (scratch / f"answer-{number}.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
