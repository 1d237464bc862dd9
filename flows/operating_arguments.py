"""The arguments of the commands that keep runs going."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def _reap(command: argparse.ArgumentParser) -> None:
    """`reap`: which store, and whose workers resume."""
    help_ = "store to look at; default: .trainwright in this folder, and the stores used from this machine"
    command.add_argument("store", nargs="?", metavar="STORE", help=help_)
    help_ = "work pool whose workers resume runs that cannot be executed again where they were; default: trainwright"
    command.add_argument("--pool", default="trainwright", help=help_)


def _worker(command: argparse.ArgumentParser) -> None:
    """`worker`: of which pool, and how many runs at a time."""
    help_ = "process pool whose runs are executed, made if it does not exist; default: trainwright"
    command.add_argument("--pool", default="trainwright", help=help_)
    command.add_argument("--limit", type=int, metavar="N", help="flow runs at a time; default: no limit")


def _gc(command: argparse.ArgumentParser) -> None:
    command.add_argument("--store", help="store to clean; default: only .trainwright in this folder")
    command.add_argument("--dry-run", action="store_true", help="list what would be deleted, and delete nothing")
    help_ = "days to keep runs, and results that nothing refers to, after their last use; default 31"
    command.add_argument("--keep-days", type=float, default=31.0, metavar="N", help=help_)
    help_ = "hours to keep everything else, such as unfinished work; default 24"
    command.add_argument("--grace-hours", type=float, default=24.0, metavar="N", help=help_)


def _nodes(command: argparse.ArgumentParser) -> None:
    """`nodes`: which store."""
    help_ = "store to look at; default: .trainwright in this folder, and the stores used from this machine"
    command.add_argument("place", nargs="?", metavar="STORE", help=help_)
    command.add_argument("--store", help="the same as STORE")


def _status(command: argparse.ArgumentParser) -> None:
    """`status`: which store, and the page of a day."""
    command.add_argument(
        "--store", help="store to look at; default: .trainwright in this folder, then stores used before"
    )
    help_ = "write the page of the day, which loads nothing, to this file; an earlier page of a day is replaced"
    command.add_argument("--html", metavar="FILE", help=help_)
    help_ = "with --html: since when runs are listed: a length such as 12h or 7d, or a day; default 1d"
    command.add_argument("--since", metavar="WHEN", help=help_)
    _objectives(command, "with --html: ")


def _slo(command: argparse.ArgumentParser) -> None:
    """`slo`: which store, which objectives, and whether a missed one is a failure."""
    help_ = "store to look at; default: .trainwright in this folder, and the stores used from this machine"
    command.add_argument("store", nargs="?", metavar="STORE", help=help_)
    _objectives(command)
    help_ = "exit with code 4 if an objective is missed; one without data is not missed"
    command.add_argument("--check", action="store_true", help=help_)


def _objectives(command: argparse.ArgumentParser, when: str = "") -> None:
    help_ = f"{when}file of objectives (YAML); default: those that Trainwright ships"
    command.add_argument("--objectives", metavar="FILE", help=help_)


def _node_and_reason(command: argparse.ArgumentParser) -> None:
    """`drain`, `restore`: which node, and why."""
    command.add_argument(
        "node", metavar="NODE", help="its name, as `trainwright nodes` lists it: usually its host name"
    )
    command.add_argument("--reason", required=True, metavar="WHY", help="why; recorded in the store")
    help_ = "the store whose trainings are meant; default: the known store that has a record of the node"
    command.add_argument("--store", help=help_)


def _backfill(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="the pipeline spec (YAML), with data.window")
    help_ = "start of the first window (ISO; without a zone: UTC)"
    command.add_argument("--from", dest="from_", metavar="START", help=help_)
    command.add_argument("--to", metavar="END", help="end of the last window; not in the future")
    command.add_argument("--every", metavar="LENGTH", help="length of a window, such as 12h; default: 1d")
    help_ = "instead: the times of the deployment's schedule that have no run, each with its window"
    command.add_argument("--missed", action="store_true", help=help_)
    help_ = (
        "with --missed: the first time (ISO, or a length back from now, such as 7d); default: when it was deployed, "
    )
    command.add_argument("--since", metavar="TIME", help=help_ + "at most 30 days ago")
    command.add_argument("--name", help="with --missed: the deployment's name; default: the pipeline's name")
    help_ = "windows that run at the same time, each in a process of its own; default: 1"
    command.add_argument("--parallel", type=int, default=1, metavar="N", help=help_)
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    command.add_argument("--store", help="store to use instead of the store in the spec")
    command.add_argument("--rehash", action="store_true", help="read every raw file again to take its digest")


def _sensor(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="the pipeline spec (YAML), with schedule.sensor")
    help_ = "set the cursor: `now` takes all files that are there as seen, `beginning` none"
    command.add_argument("--reset", choices=["now", "beginning"], help=help_)
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    command.add_argument("--store", help="store to use instead of the store in the spec")


def _server(command: argparse.ArgumentParser) -> None:
    """`server`: what to do, and the folder of a backup."""
    help_ = (
        "start: serve in the foreground; proxy: write nginx's configuration, with a password and a role for each "
        "person; backup: write a backup of the server's database; restore: put a backup into an empty database. "
        "Prefect's variables say which database: PREFECT_SERVER_DATABASE_CONNECTION_URL"
    )
    command.add_argument("action", choices=("start", "proxy", "backup", "restore"), help=help_)
    help_ = "proxy: the folder of nginx's configuration; backup: a new folder; restore: the folder of a backup"
    command.add_argument("folder", nargs="?", metavar="FOLDER", help=help_)


def _gameday(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", nargs="?", metavar="SPEC", help="the pipeline spec (YAML)")
    help_ = "begin; without it, the command only says what it would do and what that costs at most"
    command.add_argument("--yes", action="store_true", help=help_)
    help_ = "a fault to inject, may be repeated; default: every one that the pipeline can try"
    command.add_argument("--only", action="append", metavar="FAULT", help=help_)
    command.add_argument("--list", action="store_true", help="list the faults and what is promised about each")
    help_ = "end everything after this time, such as 30m or 2h; default: 30m"
    command.add_argument("--at-most", default="30m", metavar="TIME", help=help_)
    command.add_argument("--window", help="part of the data to read: START..END (ISO times, END excluded)")
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    help_ = "the store beside which the game day makes its own; default: the spec's"
    command.add_argument("--store", help=help_)


OPERATING: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "backfill": _backfill,
    "gameday": _gameday,
    "gc": _gc,
    "reap": _reap,
    "sensor": _sensor,
    "server": _server,
    "worker": _worker,
    "nodes": _nodes,
    "status": _status,
    "slo": _slo,
    "drain": _node_and_reason,
    "restore": _node_and_reason,
}
