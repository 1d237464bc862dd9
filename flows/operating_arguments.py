"""The arguments of the commands that keep runs going."""

from __future__ import annotations

import argparse


def of_reap(command: argparse.ArgumentParser) -> None:
    """`reap`: which store, and whose workers resume."""
    help_ = "store to look at; default: .trainwright in this folder, and the stores used from this machine"
    command.add_argument("store", nargs="?", metavar="STORE", help=help_)
    help_ = "work pool whose workers resume runs that cannot be executed again where they were; default: trainwright"
    command.add_argument("--pool", default="trainwright", help=help_)
