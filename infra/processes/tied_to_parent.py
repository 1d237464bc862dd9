"""Run a module that the kernel ends together with its parent.

Run as `python -m infra.processes.tied_to_parent MODULE ARGUMENT…`.

If a supervisor is killed, the kernel ends torchrun, and then torchrun's ranks (see `infra.gang.node.rank_bootstrap`);
no other process is needed to end them.
"""

from __future__ import annotations

import runpy
import sys

from infra.processes.processes import die_with_parent


def main() -> None:
    """Tie this process to its parent and become MODULE."""
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
