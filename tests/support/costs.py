"""What each test costs: `pytest -p tests.support.costs --costs FILE [-o enable_assertion_pass_hook=true]`.

One line of JSON per test: wall-clock and processor seconds, the latter with those of the processes that it waited
for, and with the option the number of assertions that it carried out. `python -m tests.support.costs FILE` adds them up
by file; a fixture's costs belong to the first test that uses it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm_children, warm_cli

_passed = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="file to which what each test costs is added")


def pytest_assertion_pass() -> None:
    global _passed
    _passed += 1


def _processor_s() -> float:
    return sum(os.times()[:4]) + warm_cli.spent_s[0] + warm_children.spent_s()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began, processor, assertions = time.monotonic(), _processor_s(), _passed
    yield
    costs: dict[str, Any] = {"test": item.nodeid, "wall_s": time.monotonic() - began}
    costs |= {"cpu_s": _processor_s() - processor, "assertions": _passed - assertions}
    if file := item.config.getoption("--costs"):
        with file.open("a") as handle:
            handle.write(json.dumps(costs) + "\n")


def main(file: Path) -> None:
    by_file: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0])
    for line in file.read_text().splitlines():
        one = json.loads(line)
        for place, value in enumerate((1, one["wall_s"], one["cpu_s"], one["assertions"])):
            by_file[one["test"].split("::")[0]][place] += value
    by_file["all"] = [sum(column) for column in zip(*by_file.values(), strict=True)]
    for name, (tests, wall, cpu, assertions) in sorted(by_file.items(), key=lambda pair: -pair[1][2]):
        print(f"{tests:5.0f} tests {wall:8.1f} s {cpu:8.1f} cpu s {assertions:9,.0f} assertions  {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
