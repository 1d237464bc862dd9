"""Runs a module that the kernel ends together with its parent: `python -m infra.launch.leash MODULE ARGUMENT…`.

So a supervisor that is killed takes torchrun with it, and torchrun its ranks (see `entry.py`), with nobody left to
end them.
"""

from __future__ import annotations

import runpy
import sys

from infra.launch.processes import die_with_parent


def main() -> None:
    """Tie this process to its parent and become MODULE."""
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
