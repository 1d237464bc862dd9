"""The command line: the commands and their arguments. `flows/commands/` carries them out.

Only the standard library is imported before a command is chosen, so `--help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flows.arguments import arguments_of
from flows.stages import verbs

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": ("quickstart", "run the digits example end to end: rejected, promoted, unchanged, not promoted"),
    "init": ("project", "write a working starter pipeline into a folder"),
    "doctor": ("doctor", "check this machine: hardware, state folder, leftover temporary folders, stores"),
    "up": ("server", "start the local Prefect server, the pool and a worker"),
    "ui": ("server", "print a link that opens the Prefect pages and signs you in"),
    "down": ("server", "stop the local Prefect server and its worker"),
    "deploy": ("deploy", "make a pipeline a Prefect deployment, to run on a schedule or on demand"),
    "run": ("run", "run a pipeline from raw data to promotion"),
    "backfill": ("backfill", "run a pipeline once for each window of a span of time"),
    "resume": ("run", "continue a run that was stopped or failed"),
    "reap": ("reap", "find runs whose process died without a word, and have them resumed"),
    "nodes": ("nodes", "list what went wrong on nodes, and which of them no training may use"),
    "drain": ("nodes", "let no training use a node from its next generation on"),
    "restore": ("nodes", "let trainings use a node again"),
    "checkpoints": ("queries", "list the checkpoints of a run's training"),
    "logs": ("queries", "print the output of the ranks of a run's training"),
    "status": ("queries", "show the server, and the runs and models of each store"),
    "plan": ("queries", "show which stages a run would reuse, and why others would run"),
    **{verb: ("stages", does) for verb, does in verbs().items()},
    "drift": ("drift", "compare the data with earlier data, such as the champion's, and list what moved most"),
    "approve": ("approvals", "approve the promotion that a run waits for"),
    "refuse": ("approvals", "refuse the promotion that a run waits for"),
    "protect": ("protect", "make each promotion to an alias need an approval, whatever a spec says"),
    "predict": ("predict", "predict for the rows of files with a model version, and write one file"),
    "canary": ("canary", "show the version that stands beside the champion, or take it back"),
    "rollback": ("aliases", "move an alias back to an earlier version, and put the checkpoint it leaves on hold"),
    "release": ("aliases", "lift the hold that a rollback put on a checkpoint"),
    "history": ("history", "list who moved an alias, from which version to which, and why"),
    "mirror": ("mirror", "tell MLflow and other mirrors of a run again, or what they were not told yet"),
    "show": ("queries", "show a model version, an alias or a run"),
    "export": ("export", "write a model version to a folder, in a form that runs without Trainwright"),
    "cost": ("cost", "tell what runs cost, by tag, pipeline, stage or cause, and what was wasted"),
    "report": ("report", "write the page of a run as one HTML file, and open it in a browser"),
    "diff": ("diff", "compare two runs or versions: data, contract, spec, code, metrics and weights"),
    "prove": ("queries", "re-read every byte from a model back to the raw data"),
    "reproduce": ("reproduce", "make a model again from what is sealed, and compare every id on the way"),
    "key": ("keys", "make a pair of keys to sign receipts with (`key new DIR`)"),
    "store": ("stores", "make a store (`store init URI`); a database decides its pointers if the server cannot"),
    "gc": ("gc", "delete what nothing in a store refers to any more"),
    "contract": ("contract", "write a contract from data, explain one, show a report or compare two"),
    "schema": ("project", "print the spec's JSON Schema"),
}


class _Misuse(Exception):
    """Arguments that cannot be parsed: the parser that refused them, and its sentence."""

    def __init__(self, refused_by: argparse.ArgumentParser, sentence: str) -> None:
        super().__init__(sentence)
        self.refused_by = refused_by


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print, so that `--json` holds for wrong arguments, too."""

    def error(self, message: str) -> NoReturn:
        raise _Misuse(self, message)


def parser() -> argparse.ArgumentParser:
    """The argument parser with every command."""
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object on stdout; logs go to stderr")
    common.add_argument("--no-color", action="store_true", help="print no colours")
    common.add_argument("--quiet", "-q", action="store_true", help="print only errors and the final line")
    top = _Parser(prog="trainwright", description="From raw data to a promoted model, with every step provable.")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (room, line) in SUBCOMMANDS.items():
        command = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".", parents=[common])
        arguments_of(name, is_stage=room == "stages")(command)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command; returns its exit code (see docs/exit-codes.md)."""
    try:
        arguments = parser().parse_args(argv)
    except _Misuse as misuse:
        return _refuse(misuse, sys.argv[1:] if argv is None else argv)
    module, _ = SUBCOMMANDS[arguments.command]

    def load() -> Callable[[argparse.Namespace], Any]:
        verb = "stage" if module == "stages" else arguments.command
        return getattr(importlib.import_module(f"flows.commands.{module}"), verb)

    try:
        guard = importlib.import_module("flows.commands.guard")
    except KeyboardInterrupt:
        return 130
    return guard.carry_out(load, arguments)


def _refuse(misuse: _Misuse, argv: Sequence[str]) -> int:
    """Report arguments that cannot be parsed like any other error; returns its exit code, 2."""
    import difflib

    from data_contracts.errors import UsageError
    from flows.commands.guard import fail

    as_json = any(
        len(word) > 2 and "--json".startswith(word) for word in argv
    )  # argparse accepts abbreviations such as `--js`
    misuse.refused_by.print_usage(sys.stderr)
    word = next((word for word in argv if not word.startswith("-")), None)
    remedy = "`trainwright --help` lists the commands."
    if word is None:
        sentence = f"{misuse}."
    elif word in SUBCOMMANDS:
        sentence, remedy = f"{word}: {misuse}.", f"{_apart(argv)}`trainwright {word} --help` lists the arguments."
    else:
        near = difflib.get_close_matches(word, SUBCOMMANDS, 1)
        sentence = f"there is no command {word}{f'; did you mean {near[0]}?' if near else '.'}"
    return fail(UsageError(sentence, remedy=remedy), argparse.Namespace(json=as_json))


def _apart(argv: Sequence[str]) -> str:
    """The remedy if a field and its value follow `--set` as two arguments; else ""."""
    for option, field, value in zip(argv, argv[1:], argv[2:], strict=False):
        if option == "--set" and "=" not in field and not value.startswith("-"):
            return f"--set takes one argument: --set {field}={value}. "
    return ""


if __name__ == "__main__":
    sys.exit(main())
