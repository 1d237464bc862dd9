"""One training of a game day, in a process that can be killed: `python -m flows.commands.game_training REQUEST`.

REQUEST is a `GameTraining` as JSON. The last line that it prints is the checkpoint, or the error. Nodes of a work pool
need a flow run above them, whose id is the first line; on this machine, it does without Prefect.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from data_contracts.errors import Cancelled, TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.load import load_spec
from data_contracts.messages.gang import GameTraining
from flows.commands.server import connect
from tasks.gameday import train_once
from tasks.policies import run_tags


def main(request: str) -> int:
    """Train and print the answer; returns the exit code."""
    wanted = GameTraining.from_json(json.loads(request))
    # A shell's background job ignores Ctrl-C, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        spec = load_spec(Path(wanted.spec), wanted.overrides)
        checkpoint = _on_pool(wanted, spec.tags) if spec.train.pool else train_once(wanted)
    except KeyboardInterrupt:
        error: TrainwrightError = Cancelled("The training was stopped.")
    except TrainwrightError as caught:
        error = caught
    else:
        print(json.dumps({"checkpoint": checkpoint.to_json()}), flush=True)
        return 0
    print(json.dumps({"error": error.to_json()}), flush=True)
    return error.exit_code


def _on_pool(wanted: GameTraining, cost_tags: dict[str, str]) -> Checkpoint:
    connect("cli")
    from prefect import flow, tags
    from prefect.runtime import flow_run

    from infra.orchestrator.flow_runs import cancellable

    def training() -> Checkpoint:
        print(json.dumps({"flow_run": str(flow_run.id)}), flush=True)
        with cancellable():
            return train_once(wanted)

    title = "no fault" if wanted.fault is None else wanted.fault.name
    named = flow(name="game-day", flow_run_name=f"game day: {title}")
    with tags(*run_tags(cost_tags)):
        checkpoint: Checkpoint = named(training)()
    return checkpoint


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
