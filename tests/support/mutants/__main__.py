"""The command: record which test reaches which line, then try the mutants that have no result yet."""

from __future__ import annotations

import argparse
import fcntl
import os
from pathlib import Path

from tests.support.mutants.bench import Bench
from tests.support.mutants.targets import TARGETS


def main() -> None:
    """Run, continue or report."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__)
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--number", type=int, default=300, help="mutants of each target (default: 300)")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each mutant (default: 60)")
    parser.add_argument("--alone", action="store_true", help="leave out the tests that start processes")
    parser.add_argument("--unserved", action="store_true", help="leave out the tests that need a server")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests for each mutant (default: 20)")
    parser.add_argument("--nice", type=int, default=19, help="priority (default: 19, the lowest)")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--report", action="store_true", help="only say what the results are")
    given = parser.parse_args()
    os.nice(given.nice)
    root = Path(__file__).resolve().parents[3]
    state = root / ".coverage/mutants"
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        if not given.report:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in given.targets or TARGETS:
            bench = Bench(root, state, name, given.number, alone=given.alone, unserved=given.unserved)
            if not given.report:
                bench.try_all(given.limit, given.budget, again=given.again)
            bench.report()


if __name__ == "__main__":
    main()
