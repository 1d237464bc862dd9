"""Which test file a worker of pytest-xdist takes next: half of the workers begin with the integration tests.

Those wait for servers and processes more than they compute. In alphabetical order they run beside each other and leave
processors idle, and what computes runs beside each other afterwards. The other half begins with the unit tests. Each
worker has its integration tests in one stretch, because a server of its own runs for so long, and the longest first,
so that none is left for the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# By their time on the clock, which need not be exact: the first is the longest.
LONGEST = (
    "tests/integration/test_pool.py",
    "tests/integration/test_deployed_line.py",
    "tests/integration/test_server.py",
    "tests/integration/test_canaries.py",
    "tests/integration/test_bad_input.py",
    "tests/integration/test_line.py",
)


INTEGRATION = "tests/integration/"


class FromBothEnds(LoadFileScheduling):
    """A file at a time, as `--dist loadfile`, from both ends of the queue."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        first = next_file(list(self.workqueue), waits=self.nodes.index(node) % 2 == 0)
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def next_file(files: Sequence[str], *, waits: bool) -> str:
    """The next of these files for a worker that begins with the tests that wait, or with the others."""
    waiting = sorted((file for file in files if file.startswith(INTEGRATION)), key=_rank)
    others = [file for file in files if not file.startswith(INTEGRATION)]
    if waits:
        return (waiting or others)[0]
    return others[-1] if others else waiting[0]


def _rank(file: str) -> tuple[int, str]:
    return (LONGEST.index(file) if file in LONGEST else len(LONGEST)), file


def from_both_ends(config: Any, log: Any) -> FromBothEnds | None:
    """The scheduler for `--dist loadfile`, and None, which is xdist's own, for any other."""
    return FromBothEnds(config, log) if config.getvalue("dist") == "loadfile" else None
