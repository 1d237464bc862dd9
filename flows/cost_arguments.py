"""The arguments of the commands `cost`, `budget` and `policy`."""

from __future__ import annotations

import argparse


def of_cost(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `cost`."""
    help_ = "store to count; default: .trainwright in this folder, then stores used before"
    command.add_argument("place", nargs="?", metavar="STORE", help=help_)
    command.add_argument("--store", help="the same as STORE")
    help_ = (
        "what to sum by, separated by commas: pipeline, model, run, execution, stage, cause, machine, generation, "
        "node, day, or a tag; default pipeline"
    )
    command.add_argument("--by", default="pipeline", metavar="WORDS", help=help_)
    help_ = "since when: a length such as 30d or 12h, a day, or START..END; default 30d"
    command.add_argument("--since", default="30d", metavar="WHEN", help=help_)
    help_ = "a calendar month such as 2026-10, also if gc has deleted its runs; instead of --since"
    command.add_argument("--month", metavar="MONTH", help=help_)
    help_ = "with --month: write its page, which loads nothing, to this file"
    command.add_argument("--html", metavar="FILE", help=help_)
    help_ = "how to print it; focus: rows of the FinOps Open Cost and Usage Specification as CSV; default table"
    command.add_argument("--format", choices=("table", "csv", "json", "focus"), default="table", help=help_)
    help_ = "version of FOCUS; 1.4 removes columns that 1.3 demands; default 1.2"
    command.add_argument("--focus-version", choices=("1.2", "1.3", "1.4"), default="1.2", help=help_)


def of_budget(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `budget`."""
    _applied(command, "budgets")
    command.add_argument("--month", metavar="YYYY-MM", help="month (UTC) to show; default: this one")


def of_policy(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `policy`."""
    _applied(command, "policy")


def _applied(command: argparse.ArgumentParser, what: str) -> None:
    help_ = f"apply: make FILE the next version of the {what}; default: show what holds"
    command.add_argument("action", nargs="?", choices=("apply",), help=help_)
    command.add_argument("file", nargs="?", metavar="FILE", help="the file to apply (YAML)")
    help_ = "the store; default: .trainwright in this folder, and the stores used from this machine"
    command.add_argument("--store", help=help_)
