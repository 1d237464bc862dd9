"""Carries out a Python text as `python -c TEXT ARGUMENT…` does; it may be forked (`tests.support.speed.children`)."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    text, sys.argv = sys.argv[1], ["-c", *sys.argv[2:]]
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
