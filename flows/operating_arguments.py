"""The arguments of the commands that keep runs going."""

from __future__ import annotations

import argparse


def of_reap(command: argparse.ArgumentParser) -> None:
    """`reap`: which store, and whose workers resume."""
    help_ = "store to look at; default: .trainwright in this folder, and the stores used from this machine"
    command.add_argument("store", nargs="?", metavar="STORE", help=help_)
    help_ = "work pool whose workers resume runs that cannot be executed again where they were; default: trainwright"
    command.add_argument("--pool", default="trainwright", help=help_)


def of_gc(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `gc`."""
    command.add_argument("--store", help="store to clean; default: only .trainwright in this folder")
    command.add_argument("--dry-run", action="store_true", help="list what would be deleted, and delete nothing")
    help_ = "days to keep runs, and results that nothing refers to, after their last use; default 30"
    command.add_argument("--keep-days", type=float, default=30.0, metavar="N", help=help_)
    help_ = "hours to keep everything else, such as unfinished work; default 24"
    command.add_argument("--grace-hours", type=float, default=24.0, metavar="N", help=help_)
