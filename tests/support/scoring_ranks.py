"""Ranks that score several cases one after another in the same processes; a driver for tests."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from data_contracts.errors import TrainwrightError
from data_contracts.messages.children import EvaluateRequest
from training.score import evaluate_worker
from training.score.team import team_of


def main() -> None:
    cases = json.loads(Path(os.environ["CASES"]).read_text())
    for number, case in enumerate(cases):
        team = team_of(case["layout"], os.environ, int(os.environ["WORLD_SIZE"]))
        request = EvaluateRequest.from_json(case["request"])
        try:
            scored = evaluate_worker.scored_by(request, lambda report: None, team)
            answer = evaluate_worker.seal(request, scored).to_json() if team.rank == 0 else {}
        except TrainwrightError as error:
            traceback.print_exc()
            answer = error.to_json()
        if team.rank == 0:
            (Path(os.environ["TRAINWRIGHT_SCRATCH"]) / f"answer-{number}.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
