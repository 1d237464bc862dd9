"""Run a module, or a program, that the kernel ends together with its parent.

Run as `python -m infra.processes.tied_to_parent MODULE ARGUMENT…`, or with `-- PROGRAM ARGUMENT…`.

If a supervisor is killed, the kernel ends torchrun, and then torchrun's ranks (see `infra.gang.rank_bootstrap`);
no other process is needed to end them.
"""

from __future__ import annotations

import os
import runpy
import sys

from infra.processes.processes import die_with_parent


def main() -> None:
    """Tie this process to its parent and become MODULE or PROGRAM."""
    die_with_parent()
    if sys.argv[1] == "--":
        os.execv(sys.argv[2], sys.argv[2:])
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
