"""What faults cost: detection, recovery and lost work of each, and the share of the time that trains at a rate of them.

    python benchmarks/soak.py [--quick] [--only "SIGKILL of a rank,link cut"] [--per-hour 1] [--interval-s 180]

Three hosts (network namespaces; needs root) with a Prefect worker each, a gang of two nodes, one fault after the other
at random moments (`tests/support/soak.py`). At the end the weights must be those of an undisturbed run, bit for bit,
and each sample must have come once per epoch. `effective`: a fault costs its detection, its recovery and, where steps
are lost, half of the interval between checkpoints, as in a training whose checkpoints are that far apart.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import common  # noqa: E402
from noise import Watch  # noqa: E402

from tests.support.soak import FAULTS, ROUNDED, Outcome, soak  # noqa: E402

EACH = 3
QUICK = ["SIGKILL of a rank", "SIGTERM of a node flow", "link cut"]


def effective(outcomes: list[Outcome], per_hour: float, interval_s: float) -> float:
    """Share of the time in which steps are made that are kept."""
    costs = [
        one.detected_s + one.recovered_s + (interval_s / 2 if one.lost_steps else 0.0)
        for one in outcomes
        if one.detected_s is not None
    ]
    # Those that training did not notice cost nothing, and count as faults all the same.
    return 1 - per_hour * sum(costs) / len(outcomes) / 3600


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} faults instead of every kind {EACH} times")
    parser.add_argument("--only", default="", help="faults to take, by name")
    parser.add_argument("--per-hour", type=float, default=1.0, help="faults in an hour, for the effective time")
    parser.add_argument("--interval-s", type=float, default=180.0, help="between checkpoints, for the effective time")
    told, watch = parser.parse_args(), Watch()
    faults = (
        told.only.split(",")
        if told.only
        else QUICK
        if told.quick
        else [name for name in FAULTS if name != ROUNDED for _ in range(EACH)]
    )
    if unknown := set(faults) - FAULTS.keys():
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    random.Random(0).shuffle(faults)
    versions = ", ".join(f"{one} {importlib.metadata.version(one)}" for one in ("torch", "lightning", "prefect"))
    print(f"{common.machine()}\n{versions}; {len(faults)} faults")
    with common.scratch() as folder:
        os.environ["TRAINWRIGHT_HOME"] = str(folder / "home")
        try:
            outcomes = soak(folder, faults, seed=1, say=lambda line: print(line, file=sys.stderr))
        finally:  # the undisturbed run started a server
            subprocess.run([sys.executable, "-m", "flows.cli", "down"], cwd=ROOT, check=False, capture_output=True)
    print(f"\n{'':28}{'found after':>14}{'new step after':>16}{'steps lost':>12}  medians, s")
    for name in dict.fromkeys(one.fault for one in outcomes):
        ours = [one for one in outcomes if one.fault == name]
        found = [one for one in ours if one.detected_s is not None]
        if not found:
            print(f"{name:28}{'training went on':>30}")
            continue
        detected = statistics.median(one.detected_s or 0.0 for one in found)
        recovered = statistics.median(one.recovered_s for one in found)
        lost = statistics.median(one.lost_steps for one in found)
        print(f"{name:28}{detected:14.1f}{recovered:16.1f}{lost:12.0f}")
    share = effective(outcomes, told.per_hour, told.interval_s)
    print(f"\nweights as of an undisturbed run, each sample once per epoch; effective time {share:.1%}")
    recovered = [one.recovered_s for one in outcomes if one.detected_s is not None]
    # Without spread: faults of different kinds take different times, and that is not noise.
    figures = {"effective": round(share, 4), "recovery_s": round(statistics.median(recovered or [0.0]), 1)}
    common.conclude(figures, watch.end(all_reaped=False), quick=told.quick)


if __name__ == "__main__":
    main()
