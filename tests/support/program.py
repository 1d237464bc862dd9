"""Carries out a text of Python as a process that a warm one may be forked for: `CODE ARGUMENT…`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from infra.processes.processes import module_command

ROOT = Path(__file__).resolve().parents[2]


def start(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a process that carries out `code`, as `python -c` would; in a test marked `warm`, by a fork."""
    command = module_command("tests.support.program", code, *arguments)
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


def main(code: str, *arguments: str) -> None:
    """Carry out the text, whose `sys.argv[1:]` are the arguments."""
    sys.argv[1:] = arguments
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    main(*sys.argv[1:])
