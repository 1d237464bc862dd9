"""Which test file a worker of pytest-xdist takes next: half of the workers begin at the front, half at the back.

At the front are the integration tests, which wait for servers and processes more than they compute; at the back are
the unit tests, which compute. Taken in order, waiting files run beside each other and leave processors idle, and the
unit tests wait for each other afterwards. The front takes the longest files first, so that none is left for the end.
"""

from __future__ import annotations

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


class FromBothEnds(LoadFileScheduling):
    """A file at a time, as `--dist loadfile`; every second worker takes the last file that is left."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self.nodes.index(node) % 2:
            first = next(reversed(self.workqueue))
        else:
            first = next((file for file in LONGEST if file in self.workqueue), next(iter(self.workqueue)))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def from_both_ends(config: Any, log: Any) -> FromBothEnds | None:
    """The scheduler for `--dist loadfile`, and None, which is xdist's own, for any other."""
    return FromBothEnds(config, log) if config.getvalue("dist") == "loadfile" else None
