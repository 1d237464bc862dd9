"""What Prefect adds to the line: the digits line, everything reused, as a flow and as plain calls, in turn.

    python benchmarks/orchestration.py [--quick]

`line`: one process each, `trainwright run` beside the same stages without Prefect, from start to exit. `task`: both in
one process, the difference divided by the number of stages; it holds the flow's own share too, so it is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from common import machine

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "examples" / "digits" / "pipeline.yaml"
PACKAGES = ("prefect", "lightning", "torch", "pyarrow", "great-expectations")
WANTED = {"overhead_line_s": 3.0, "overhead_task_ms": 100.0}


def main() -> None:
    """Measure, print a table and, as the last line, the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 pairs instead of 9")
    parser.add_argument("--direct", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--in-process", type=int, metavar="PAIRS", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.direct:
        direct(arguments.direct)
    elif arguments.in_process:
        print(json.dumps(in_process(arguments.store, arguments.in_process)))
    else:
        compare(5 if arguments.quick else 9, quick=arguments.quick)


def direct(store: str) -> None:
    """The line without Prefect."""
    from tasks.run.report import report
    from tasks.run.run import open_run
    from tasks.run.spec_check import read_spec
    from tasks.stages.evaluate import evaluate
    from tasks.stages.promote import promote
    from tasks.stages.shard import shard
    from tasks.stages.train import train
    from tasks.stages.validate import validate
    from tasks.stages.verify import verify

    run = open_run(read_spec(SPEC), store_uri=store)
    dataset = shard(run, validate(run))
    checkpoint = verify(run, train(run, dataset))
    evaluation = evaluate(run, checkpoint, dataset)
    receipt = promote(run, checkpoint, dataset, evaluation)
    done = report(run, receipt=receipt, dataset=dataset, checkpoint=checkpoint, evaluation=evaluation)
    assert done.verdict == "unchanged", done.verdict


def in_process(store: str, pairs: int) -> dict[str, list[float]]:
    """Seconds of the flow and of the plain calls in this process, in turn, after one of each to warm up."""
    from flows.commands.run import run_line

    logging.disable(logging.INFO)

    def flow() -> None:
        assert run_line(str(SPEC), store=store).verdict == "unchanged"

    seconds: dict[str, list[float]] = {"flow": [], "direct": []}
    for _ in range(pairs + 1):
        seconds["flow"].append(timed(flow))
        seconds["direct"].append(timed(lambda: direct(store)))
    return {name: values[1:] for name, values in seconds.items()}


def compare(pairs: int, *, quick: bool) -> None:
    """Fill a store, then time both ways in turn."""
    # Not at the top: the processes that are timed would import them too.
    import common
    from noise import Median, Watch

    watch = Watch()
    print(f"{machine()}; pairs: {pairs}")
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES))
    with tempfile.TemporaryDirectory(prefix="trainwright-benchmark-") as store:
        as_flow = [sys.executable, "-m", "flows.cli", "run", str(SPEC), "--store", store]
        plain = [sys.executable, __file__, "--direct", store]
        execute(as_flow)  # fills the store and starts the server if it is not there
        line: dict[str, list[float]] = {"flow": [], "direct": []}
        for _ in range(pairs):
            line["flow"].append(timed(lambda: execute(as_flow)))
            line["direct"].append(timed(lambda: execute(plain)))
        answer = execute([sys.executable, __file__, "--in-process", str(pairs), "--store", store])
        task = json.loads(answer.splitlines()[-1])
    figures = {
        "overhead_line_s": Median(differences(line), 3),
        "overhead_task_ms": Median([each * 1000 / 6 for each in differences(task)], 1),
    }
    print(f"{'':28}{'flow':>10}{'direct':>10}{'difference':>12}{'spread':>18}")
    for name, found in (("process, s", line), ("in one process, s", task)):
        apart = differences(found)
        print(
            f"{name:28}{statistics.median(found['flow']):10.3f}{statistics.median(found['direct']):10.3f}"
            f"{statistics.median(apart):12.3f}{f'{min(apart):.3f} to {max(apart):.3f}':>18}"
        )
    for name, most in WANTED.items():
        print(f"{name}: {figures[name]} (wanted: at most {most})")
    common.conclude(figures, watch.end(all_reaped=False), quick=quick)


def differences(seconds: dict[str, list[float]]) -> list[float]:
    """What the flow takes longer in each pair."""
    return [a - b for a, b in zip(seconds["flow"], seconds["direct"], strict=True)]


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def execute(command: list[str]) -> str:
    """Run a command from the repository's root; its output if it ends well."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
