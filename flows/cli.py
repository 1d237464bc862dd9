"""The command line: the commands and their arguments. `flows/commands/` carries them out.

Only the standard library is imported before a command is chosen, so `--help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flows.arguments import arguments_of
from flows.features import absent_commands
from flows.stages import verbs

# The commands in the order of `--help`, in groups: the module of `flows.commands`, and what the command does in a line.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "begin": {
        "quickstart": ("run", "run the digits example end to end, with four verdicts"),
        "init": ("project", "write a working starter pipeline into a folder"),
        "doctor": ("doctor", "check this machine: hardware, state folder, leftovers, stores"),
        "schema": ("project", "print the spec's JSON Schema"),
    },
    "run pipelines": {
        "plan": ("plan", "show what a run would reuse, and what it would need and cost"),
        "run": ("run", "run a pipeline from raw data to promotion"),
        "ci": ("ci", "run a pipeline for a CI job, here or as a deployment"),
        "resume": ("run", "continue a run that was stopped or failed"),
        "search": ("search", "train with other values, and promote the best"),
        "backfill": ("run", "run a pipeline once for each window of a span of time"),
        "deploy": ("deploy", "make a pipeline a Prefect deployment, scheduled or on demand"),
    },
    "run one stage": {verb: ("stages", does) for verb, does in verbs().items()},
    "look at data": {
        "contract": ("data", "write a contract from data, explain it, show a report"),
        "drift": ("data", "compare the data with earlier data, and list what moved most"),
    },
    "look at runs": {
        "status": ("queries", "show the server, and the runs and models of each store"),
        "slo": ("reports", "show objectives: how often runs do their work, and in which time"),
        "report": ("reports", "make the page of a run: one HTML file"),
        "logs": ("queries", "print the output of the ranks of a run's training"),
        "checkpoints": ("queries", "list the checkpoints of a run's training"),
        "diff": ("reports", "compare two runs or versions: data, spec, code, metrics, weights"),
        "cost": ("costs", "show what runs cost, by tag, pipeline, stage or cause"),
        "budget": ("operations", "show what is left of each budget; `budget apply FILE` sets them"),
        "policy": ("operations", "show which tags specs must have; `policy apply FILE` sets them"),
    },
    "decide about models": {
        "show": ("queries", "show a model version, an alias or a run"),
        "history": ("queries", "list who moved an alias, from which version to which, and why"),
        "approve": ("decisions", "approve the promotion that a run waits for"),
        "refuse": ("decisions", "refuse the promotion that a run waits for"),
        "protect": ("decisions", "require an approval for each promotion to an alias"),
        "rollback": ("decisions", "move an alias back, and put the checkpoint it leaves on hold"),
        "release": ("decisions", "lift the hold that a rollback put on a checkpoint"),
        "affected": ("decisions", "list what was made with a package, and put its versions on hold"),
    },
    "use and prove models": {
        "predict": ("models", "write what a model version predicts for the rows of files"),
        "export": ("models", "write a model version in a form that runs without Trainwright"),
        "prove": ("queries", "re-read every byte from a model back to the raw data"),
        "reproduce": ("models", "make a model again from what is sealed, and compare every id"),
        "key": ("project", "make a pair of keys to sign receipts with (`key new DIR`)"),
        "mirror": ("models", "send MLflow what is due, or everything about a run again"),
    },
    "operate": {
        "up": ("server", "start the local Prefect server, the pool and a worker"),
        "ui": ("server", "print a link that opens the Prefect pages and signs you in"),
        "down": ("server", "stop the local Prefect server and its worker"),
        "worker": ("server", "execute a work pool's runs, until SIGTERM, which hands them over"),
        "server": ("server", "a team's Prefect server: start, proxy"),
        "reap": ("operations", "find runs whose process died, and have them resumed"),
        "sensor": ("operations", "look whether data has arrived, or set the cursor of such looks"),
        "nodes": ("operations", "list what went wrong on nodes, and which of them are drained"),
        "drain": ("operations", "keep a node out of trainings, from their next generation on"),
        "restore": ("operations", "let trainings use a node again"),
        "gameday": ("gameday", "inject faults into short trainings, and say how the line recovers"),
        "store": ("project", "make a store (`store init URI`), or approve a credential"),
        "gc": ("operations", "delete what nothing in a store refers to any more"),
    },
}
for _absent in absent_commands():
    for _group in GROUPS.values():
        _group.pop(_absent, None)
SUBCOMMANDS: dict[str, tuple[str, str]] = {name: one for group in GROUPS.values() for name, one in group.items()}


class _Misuse(Exception):
    """Arguments that cannot be parsed: the parser that refused them, and its sentence."""

    def __init__(self, refused_by: argparse.ArgumentParser, sentence: str) -> None:
        super().__init__(sentence)
        self.refused_by = refused_by


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print, so that `--json` holds for wrong arguments, too."""

    def error(self, message: str) -> NoReturn:
        raise _Misuse(self, message)

    def print_help(self, file: Any = None) -> None:
        """Print the help as an answer is printed."""
        try:
            print(self.format_help(), end="", file=file, flush=True)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                print(f"trainwright: stdout did not take the help: {error.strerror}.", file=sys.stderr)
                sys.exit(5)  # as for storage that fails


class _Messages(io.FileIO):
    """stderr without errors: a reader that is gone, or a full disk, must not end the work that messages are about."""

    def write(self, text: Any) -> int:
        """Write what can be written; the rest is lost."""
        try:
            return super().write(text)
        except OSError:
            return len(text)


def parser() -> argparse.ArgumentParser:
    """The argument parser with every command."""
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object on stdout; logs go to stderr")
    common.add_argument("--no-color", action="store_true", help="print no colours")
    common.add_argument("--quiet", "-q", action="store_true", help="print only errors and the final line")
    top = _Parser(
        prog="trainwright",
        usage="trainwright [-h] COMMAND ...",
        description=_overview(),
        epilog="`trainwright COMMAND --help` lists a command's arguments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # argparse cannot group commands, so the description lists them.
    commands = top.add_subparsers(
        prog="trainwright", dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    for name, (room, line) in SUBCOMMANDS.items():
        command = commands.add_parser(name, description=line[0].upper() + line[1:] + ".", parents=[common])
        arguments_of(name, is_stage=room == "stages")(command)
    return top


def _overview() -> str:
    """What Trainwright does, and one line for each command."""
    lines = ["From raw data to a promoted model, with every step provable."]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<11}  {does}" for name, (_, does) in group.items())]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command; returns its exit code (see docs/exit-codes.md)."""
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed, as by `>&-`; a file that is opened later must not get its number
            setattr(sys, stream, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if stream == "stdin" else "w"))
    if sys.stderr is sys.__stderr__:
        messages = io.BufferedWriter(_Messages(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(messages, errors="backslashreplace", line_buffering=True)
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

    from flows.commands.guard import refuse

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
    return refuse(sentence, remedy, as_json=as_json)


def _apart(argv: Sequence[str]) -> str:
    """The remedy if a field and its value follow `--set` as two arguments; else ""."""
    for option, field, value in zip(argv, argv[1:], argv[2:], strict=False):
        if option == "--set" and "=" not in field and not value.startswith("-"):
            return f"--set takes one argument: --set {field}={value}. "
    return ""


if __name__ == "__main__":
    sys.exit(main())
