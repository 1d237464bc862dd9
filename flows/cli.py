"""The command line: which commands there are and what they take. Each is carried out in `flows/commands/`.

Only the standard library is imported before a command is chosen, so `--help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": ("quickstart", "run the digits example end to end: rejected, promoted, unchanged, not promoted"),
    "init": ("project", "write a pipeline that runs as it is into a folder"),
    "doctor": ("machine", "check this machine"),
    "up": ("machine", "start the local Prefect server, the pool and a worker"),
    "down": ("machine", "stop them"),
    "run": ("lines", "run a pipeline from raw data to promotion"),
    "resume": ("lines", "go on with a run that was stopped or failed"),
    "checkpoints": ("looking", "list the checkpoints of a run's training"),
    "logs": ("looking", "what the ranks of a run's training printed"),
    "status": ("looking", "the server, the runs and the models of a store"),
    "plan": ("looking", "what a run would reuse, and why not"),
    "validate": ("stages", "check the raw data against its contract"),
    "shard": ("stages", "make the dataset"),
    "train": ("stages", "train, or reuse a training"),
    "verify": ("stages", "verify the checkpoint that train handed over"),
    "evaluate": ("stages", "score the checkpoint"),
    "promote": ("stages", "move the alias if the gates are met"),
    "rollback": ("looking", "move an alias back to an earlier version"),
    "show": ("looking", "show a model version, an alias or a run"),
    "prove": ("looking", "re-read every byte from a model back to the raw data"),
    "store": ("stores", "make a store: store init URI, with its pointers in a database if the server needs that"),
    "gc": ("cleaning", "delete what nothing in a store reaches any more"),
    "schema": ("project", "print the spec's JSON Schema"),
}


def parser() -> argparse.ArgumentParser:
    """The argument parser with every command."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object on stdout; logs go to stderr")
    common.add_argument("--no-color", action="store_true", help="no colours")
    top = argparse.ArgumentParser(
        prog="trainwright", description="From raw data to a promoted model, with proof at each joint."
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, line) in SUBCOMMANDS.items():
        command = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".", parents=[common])
        _ARGUMENTS.get(name, lambda _: None)(command)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command; returns its exit code (see docs/exit-codes.md)."""
    arguments = parser().parse_args(argv)
    module, _ = SUBCOMMANDS[arguments.command]

    def load() -> Callable[[argparse.Namespace], Any]:
        return getattr(importlib.import_module(f"flows.commands.{module}"), arguments.command)

    try:
        guard = importlib.import_module("flows.commands.guard")
    except KeyboardInterrupt:
        return 130
    return guard.carry_out(load, arguments)


def _spec(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", help="the pipeline spec (YAML)")
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    command.add_argument("--window", help="START..END (ISO, half open) or a length such as 7d that ends now")
    command.add_argument("--store", help="store to use instead of the spec's")
    command.add_argument("--rehash", action="store_true", help="read every raw file again to take its digest")


def _stage(command: argparse.ArgumentParser) -> None:
    _spec(command)
    command.add_argument("--out", metavar="FILE", help="also write the stage's hand-off as JSON")


def _training(command: argparse.ArgumentParser) -> None:
    _stage(command)
    command.add_argument("--curves", metavar="DIR", help="also write what was logged, one JSON table per metric")
    command.add_argument("--new", action="store_true", help="begin a new training of the same key")


def _evaluating(command: argparse.ArgumentParser) -> None:
    _stage(command)
    command.add_argument("--metrics", metavar="FILE", help="also write the metrics' values, one JSON object")


def _run(command: argparse.ArgumentParser) -> None:
    _spec(command)
    command.add_argument("--new", action="store_true", help="begin a new training of the same key")
    command.add_argument("--key", help="idempotency key: two runs with one key are one run")
    help_ = "ci: the key is commit + code + spec + window unless --key is given"
    command.add_argument("--trigger", choices=("cli", "ci"), default="cli", help=help_)


def _named(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME[@ALIAS]", help="model, with an alias or a version (NAME@3)")
    _store(command)


def _store(command: argparse.ArgumentParser) -> None:
    command.add_argument("--store", help="store to look in; default: .trainwright here, then those used before")


def _of_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="run id")
    _store(command)


def _logs(command: argparse.ArgumentParser) -> None:
    _of_run(command)
    command.add_argument(
        "--rank", type=int, metavar="K", help="the whole of what rank K's node kept; default: the end of each"
    )


def _resume(command: argparse.ArgumentParser) -> None:
    _of_run(command)
    help_ = "go on from the committed checkpoint of this step; later ones are set aside"
    command.add_argument("--from", dest="from_step", type=int, metavar="STEP", help=help_)


def _init(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="DIR", help="folder to write into; made if absent")


def _making(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", choices=("init",), help="init: make the store, or say how it was made")
    command.add_argument("uri", metavar="URI", help="s3://bucket/prefix, or a folder")
    help_ = "postgresql://… or sqlite:////…: the database that decides pointers and names, for good"
    command.add_argument("--pointers", metavar="DATABASE", help=help_)
    help_ = "a field of the spec's store section, such as storage_options.endpoint_url=http://127.0.0.1:9000"
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help=help_)


def _show(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME[@ALIAS]|RUN", help="model, alias, version or run id")
    _store(command)


def _rollback(command: argparse.ArgumentParser) -> None:
    _named(command)
    command.add_argument("--to", type=int, metavar="VERSION", help="version to go back to; default: the one before")


def _gc(command: argparse.ArgumentParser) -> None:
    command.add_argument("--store", help="store to clean; default: .trainwright here, and no other")
    command.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    help_ = "keep runs, and results that nothing names, this long after their last use; default 30"
    command.add_argument("--keep-days", type=float, default=30.0, metavar="N", help=help_)
    help_ = "keep everything else, such as unfinished work, this long; default 24"
    command.add_argument("--grace-hours", type=float, default=24.0, metavar="N", help=help_)


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "init": _init,
    "run": _run,
    "resume": _resume,
    "checkpoints": _of_run,
    "logs": _logs,
    "status": _store,
    "plan": _spec,
    "validate": _stage,
    "shard": _stage,
    "train": _training,
    "verify": _stage,
    "evaluate": _evaluating,
    "promote": _stage,
    "rollback": _rollback,
    "show": _show,
    "prove": _named,
    "store": _making,
    "gc": _gc,
}

if __name__ == "__main__":
    sys.exit(main())
