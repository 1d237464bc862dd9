"""The arguments of each command; `flows/cli.py` lists the commands.

Only the standard library is imported, so `--help` answers at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from flows.cost_arguments import of_budget, of_cost, of_policy
from flows.model_arguments import MODELS, name_argument, store_option
from flows.operating_arguments import OPERATING
from flows.predict_arguments import of_predict
from flows.project_arguments import of_ci, of_init


def arguments_of(name: str, *, is_stage: bool) -> Callable[[argparse.ArgumentParser], None]:
    """Functions that add a command's arguments to its parser; stages without arguments of their own share some."""
    return _ARGUMENTS.get(name, _stage if is_stage else _nothing)


def _nothing(_: argparse.ArgumentParser) -> None:
    """Add no arguments, for a command without its own."""


TIMES = "part of the data to read: START..END (ISO times, END excluded)"


def _spec(command: argparse.ArgumentParser, window: str = f"{TIMES}, or a length such as 7d that ends now") -> None:
    command.add_argument("spec", metavar="SPEC", help="the pipeline spec (YAML)")
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    command.add_argument("--window", help=window)
    command.add_argument("--store", help="store to use instead of the store in the spec")
    command.add_argument(
        "--rehash",
        action="store_true",
        help="ignore what is remembered: read and hash every raw file again, and resolve the environment again",
    )


def _untried(command: argparse.ArgumentParser) -> None:
    help_ = "do not try the training, and what follows it, on its first rows beforehand"
    command.add_argument("--no-shakedown", action="store_true", help=help_)


def _planning(command: argparse.ArgumentParser) -> None:
    _spec(command)
    _untried(command)
    command.add_argument("--no-estimate", action="store_true", help="leave out memory, time, cost and machines")


def _stage(command: argparse.ArgumentParser) -> None:
    _spec(command, f"{TIMES}; the same for each stage command")
    command.add_argument("--out", metavar="FILE", help="also write the stage's hand-off as JSON")


def _training(command: argparse.ArgumentParser) -> None:
    _stage(command)
    command.add_argument("--curves", metavar="DIR", help="also write the logged values to DIR, a JSON table per metric")
    command.add_argument("--new", action="store_true", help="begin a new training of the same key")
    _untried(command)
    command.add_argument("--profile", action="store_true", help="instead of training: say what bounds its steps")


def _evaluating(command: argparse.ArgumentParser) -> None:
    _stage(command)
    command.add_argument("--metrics", metavar="FILE", help="also write the metrics as one JSON object")


def _promoting(command: argparse.ArgumentParser) -> None:
    _stage(command)
    help_ = "promote a checkpoint that is on hold, if it meets the gates; needs --reason"
    command.add_argument("--force", action="store_true", help=help_)
    command.add_argument(
        "--reason", metavar="WHY", help="why the checkpoint is promoted although it is on hold; recorded in the receipt"
    )


def _drift(command: argparse.ArgumentParser) -> None:
    _spec(command, f"{TIMES}; the same for each stage command")
    command.add_argument("--out", metavar="FILE", help="also write the comparison of all columns as JSON")
    command.add_argument("--against", metavar="DATA", help="earlier data, as contract.drift.against; default: champion")
    command.add_argument("--fail-on", choices=("warning", "critical", "never"), help="as contract.drift.fail_on")


def _run(command: argparse.ArgumentParser) -> None:
    _spec(command)
    command.add_argument("--new", action="store_true", help="begin a new training of the same key")
    _untried(command)
    command.add_argument("--key", help="idempotency key: a second call with the same key attaches to the first run")
    help_ = "ci: derive the key from commit, code, spec, window and inputs, unless --key is given"
    command.add_argument("--trigger", choices=("cli", "ci"), default="cli", help=help_)
    command.add_argument("--profile", action="store_true", help="afterwards, say what bounds the training's steps")


def _deploy(command: argparse.ArgumentParser) -> None:
    _spec(command, f"{TIMES}, or a length such as 7d that ends at the scheduled time")
    help_ = "work pool whose workers execute its runs; default: trainwright"
    command.add_argument("--pool", default="trainwright", help=help_)
    command.add_argument("--cron", help="when it runs, such as '0 3 * * *'; off: only on demand; default: keep")
    command.add_argument("--timezone", help="time zone of --cron, such as Europe/Berlin; default: UTC")
    help_ = "also start a run when this model is promoted; may be repeated; off: no longer; default: keep"
    command.add_argument("--after", action="append", metavar="MODEL[@ALIAS]", help=help_)
    command.add_argument("--name", help="name of the deployment; default: the pipeline's name")
    command.add_argument("--replace", action="store_true", help="replace any deployment of this name, and keep nothing")
    command.add_argument("--start", action="store_true", help="also start a run now, if a worker is online")


def _of_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="run id")
    store_option(command)


def _mirror(command: argparse.ArgumentParser) -> None:
    help_ = "run id; default: everything that the mirrors were not told yet"
    command.add_argument("run", nargs="?", metavar="RUN", help=help_)
    command.add_argument("--wait", type=float, default=600.0, metavar="S", help="seconds to wait in all; default 600")
    help_ = "with RUN: the place of a mirror that no run of yours on this machine named, as the message shows it"
    command.add_argument("--accept", action="append", default=[], metavar="PLACE", help=help_)
    store_option(command)


def _logs(command: argparse.ArgumentParser) -> None:
    _of_run(command)
    help_ = "print everything that was kept of rank K; default: the end of each rank's output"
    command.add_argument("--rank", type=int, metavar="K", help=help_)


def _report(command: argparse.ArgumentParser) -> None:
    _of_run(command)
    command.add_argument("--open", action="store_true", help="open the page in a browser")
    command.add_argument("--out", metavar="FILE", help="write the page to FILE; an existing file is not replaced")


def _diff(command: argparse.ArgumentParser) -> None:
    for name, which in (("before", "first"), ("after", "second")):
        help_ = f"the {which} run id, model, alias (NAME@ALIAS) or version (NAME@3 or NAME:3)"
        command.add_argument(name, metavar="V1" if name == "before" else "V2", help=help_)
    command.add_argument("--out", metavar="FILE", help="also write a page to FILE; an existing file is not replaced")
    store_option(command)


def _resume(command: argparse.ArgumentParser) -> None:
    _of_run(command)
    help_ = "continue from the committed checkpoint of this step; later checkpoints are set aside"
    command.add_argument("--from", dest="from_step", type=int, metavar="STEP", help=help_)


def _making(command: argparse.ArgumentParser) -> None:
    help_ = (
        "init: make the store, or show how an existing store was made; approve: let specs send credentials of this "
        "machine to an address"
    )
    command.add_argument("action", choices=("init", "approve"), help=help_)
    help_ = "init: s3://bucket/prefix, or a folder; approve: where they are sent, such as http://minio:9000"
    command.add_argument("address", metavar="ADDRESS", help=help_)
    command.add_argument("names", metavar="NAME", nargs="*", help="approve: env:NAME or profile:NAME, as specs name it")
    help_ = "postgresql://… or sqlite:////…: the database that decides pointers and names; cannot be changed later"
    command.add_argument("--pointers", metavar="DATABASE", help=help_)
    help_ = "a field of the spec's store section, such as storage_options.endpoint_url=http://127.0.0.1:9000"
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help=help_)


def _contract(command: argparse.ArgumentParser) -> None:
    help_ = (
        "infer: write a suite from data; explain: say what a suite expects; diff: compare two reports; docs: write a "
        "run's report as a page of Great Expectations' Data Docs"
    )
    command.add_argument("action", choices=("infer", "explain", "diff", "docs"), help=help_)
    help_ = (
        "infer: a file, glob or s3:// address; explain: a suite or a spec; diff: two reports (files, runs or "
        "addresses); docs: a run"
    )
    command.add_argument("names", nargs="+", metavar="NAME", help=help_)
    command.add_argument("--out", metavar="DIR", help="infer, docs: write to DIR; existing files are never replaced")
    store_option(command)


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "init": of_init,
    "ci": lambda command: of_ci(command, _spec),
    "deploy": _deploy,
    "run": _run,
    "resume": _resume,
    "checkpoints": _of_run,
    "logs": _logs,
    "mirror": _mirror,
    "plan": _planning,
    "train": _training,
    "evaluate": _evaluating,
    "promote": _promoting,
    "drift": _drift,
    "history": name_argument,
    "predict": of_predict,
    "report": _report,
    "diff": _diff,
    "store": _making,
    "cost": of_cost,
    "budget": of_budget,
    "policy": of_policy,
    **MODELS,
    **OPERATING,
    "contract": _contract,
}
