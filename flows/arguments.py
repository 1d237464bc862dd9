"""The arguments of each command; `flows/cli.py` lists the commands.

Only the standard library is imported, so `--help` answers at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from flows.features import is_present

EXTRAS = ("prefect", "dvc", "github", "gitlab")
TIMES = "part of the data to read: START..END (ISO times, END excluded)"


def of_init(command: argparse.ArgumentParser) -> None:
    """`init`: where to, and what beside the pipeline."""
    command.add_argument("folder", metavar="DIR", help="folder to write to; created if it does not exist")
    command.add_argument(
        "--from",
        dest="origin",
        choices=("digits", "huggingface"),
        default="digits",
        help=(
            "digits: a classifier that runs as it is (default); huggingface: adapters (LoRA) for a model of "
            "transformers"
        ),
    )
    command.add_argument(
        "--with",
        dest="extras",
        action="append",
        default=[],
        choices=EXTRAS,
        help=(
            "also write a file, may be repeated: prefect (prefect.yaml), dvc (dvc.yaml), github or gitlab (the "
            "workflow); if DIR has a pipeline.yaml, only these files are written"
        ),
    )


def of_ci(command: argparse.ArgumentParser) -> None:
    """`ci`: a spec, where it runs, and which files are written."""
    _spec(command)
    command.add_argument(
        "--deployment",
        metavar="NAME",
        help="start this deployment on the Prefect server and wait for it; default: run here",
    )
    command.add_argument("--key", help="idempotency key; default: from commit, code, spec, window and inputs")
    command.add_argument("--new", action="store_true", help="begin a new training of the same key")
    command.add_argument("--junit", metavar="FILE", help="write JUnit XML to FILE")
    command.add_argument(
        "--summary",
        metavar="FILE",
        help="write the summary to FILE, as Markdown; default: add it to the file that GITHUB_STEP_SUMMARY names",
    )
    command.add_argument("--dotenv", metavar="FILE", help="write the outputs to FILE, as variables for GitLab")


def name_argument(command: argparse.ArgumentParser) -> None:
    """Which model, and in which store it is searched."""
    command.add_argument("name", metavar="NAME[@ALIAS]", help="model, with an alias or a version (NAME@3)")
    store_option(command)


def _alias_argument(command: argparse.ArgumentParser, default: str = "default alias: champion") -> None:
    """Which alias of which model, and in which store it is searched."""
    command.add_argument("name", metavar="NAME[@ALIAS]", help=f"model and alias; {default}")
    store_option(command)


def _history(command: argparse.ArgumentParser) -> None:
    _alias_argument(command, "default: all aliases of the model")


def store_option(command: argparse.ArgumentParser) -> None:
    """In which store a command searches."""
    command.add_argument(
        "--store", help="store to search; default: .trainwright in this folder, then stores used before"
    )


def _approval(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="id of the run that waits")
    store_option(command)
    command.add_argument(
        "--key",
        metavar="FILE",
        help="private key (PEM) that signs the answer: a path or env:NAME; needed if the alias has approvers' keys",
    )
    command.add_argument("--reason", required=True, metavar="WHY", help="why; recorded in the alias's history for ever")
    command.add_argument("--yes", action="store_true", help="at a terminal: do not ask whether this is meant")


def _protect(command: argparse.ArgumentParser) -> None:
    _alias_argument(command)
    command.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="PUBLIC.pem",
        help="public key (PEM) of an approver, may be repeated: only signed answers count then",
    )
    command.add_argument("--off", action="store_true", help="end the protection; its records stay")
    command.add_argument("--reason", required=True, metavar="WHY", help="why; recorded in the store")


def _reproducing(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    command.add_argument(
        "--into", type=Path, metavar="DIR", help="new folder to work in; default: reproduced-NAME-VERSION here"
    )
    _data(command)
    command.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="install the packages that this installation lacks from this folder of wheels, and ask no index",
    )
    command.add_argument(
        "--here",
        action="store_true",
        help="use this installation, which must have the recorded versions, instead of a new environment",
    )


def _show(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME[@ALIAS]|RUN", help="model, alias, version or run id")
    store_option(command)


def _prove(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    command.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="PUBLIC.pem",
        help="public key (PEM) that signed the receipts; may be repeated, for keys of different times",
    )
    command.add_argument(
        "--at-least",
        default="",
        metavar="SEAL",
        help="seal of a receipt, kept elsewhere, that must be in the alias's history",
    )
    _data(command)


def _data(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="DIR|s3://…",
        help=(
            "where the raw data lies: the folder that has the files now, or is in their DVC repository; s3://… once "
            "for each place on S3. Places on S3 and repositories that only the store names are not opened"
        ),
    )


def _key(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", choices=("new",), help="new: make a pair of keys")
    command.add_argument("folder", metavar="DIR", help="folder to write to; existing files are never replaced")


def _rollback(command: argparse.ArgumentParser) -> None:
    _alias_argument(command)
    command.add_argument(
        "--to",
        type=int,
        metavar="VERSION",
        help="version to go back to; default: the previous version that is not on hold",
    )
    command.add_argument("--reason", default="", metavar="WHY", help="why; recorded in the receipt and the hold")
    command.add_argument(
        "--evidence",
        action="append",
        default=[],
        metavar="TEXT",
        help="a link or a figure that shows it; recorded in the receipt; may be repeated",
    )


def _release(command: argparse.ArgumentParser) -> None:
    _alias_argument(command)
    command.add_argument(
        "version", nargs="?", type=int, metavar="VERSION", help="version to release; default: the only version on hold"
    )
    command.add_argument(
        "--checkpoint",
        metavar="ID",
        help="checkpoint to release instead of a version: its id, or the first characters of the id",
    )
    command.add_argument("--reason", required=True, metavar="WHY", help="why; recorded in the receipt")


def _affected(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "package",
        metavar="PACKAGE",
        help="a package with its versions: lightning==2.6.2, 'lightning>=2.6.2,<2.6.4', or a name alone",
    )
    store_option(command)
    command.add_argument("--hold", action="store_true", help="put the affected versions on hold for all their aliases")
    command.add_argument("--reason", default="", metavar="WHY", help="with --hold: why; recorded in the holds")


def _export(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    command.add_argument("dir", metavar="DIR", help="folder to write; a new or an empty one")
    command.add_argument(
        "--to",
        required=True,
        choices=("safetensors", "torch", "onnx", "huggingface", "mlflow"),
        help=(
            "torch: a torch.export program; onnx: an ONNX model; safetensors: the tensors; huggingface: tensors, "
            "config and model card; mlflow: a folder for MLflow's load_model"
        ),
    )
    command.add_argument(
        "--atol",
        type=float,
        metavar="X",
        help="how far an output may differ from the checkpoint's, besides --rtol; default: by its type",
    )
    command.add_argument(
        "--rtol",
        type=float,
        metavar="X",
        help="how far an output may differ from the checkpoint's, as a share of its value; default: by its type",
    )
    command.add_argument(
        "--license",
        default="",
        metavar="ID",
        help="the model's licence, for the card: an id of a model hub, such as apache-2.0; default: not known",
    )


def of_predict(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `predict`."""
    command.add_argument("name", metavar="NAME[@ALIAS]", help="model, with an alias or a version (NAME@3)")
    command.add_argument("input", metavar="INPUT", help="a file, a folder or a glob: CSV, JSON Lines or Parquet")
    command.add_argument("output", metavar="OUTPUT", help="the file to write: .parquet or .csv")
    command.add_argument("--keep", metavar="COLUMN,…", help="columns of the input to copy to the output; default none")
    command.add_argument(
        "--label",
        metavar="COLUMN,…",
        help="columns that the input may lack, besides those that the metrics call their target",
    )
    command.add_argument("--batch-size", type=int, metavar="ROWS", help="rows per batch; default: as in evaluate")
    command.add_argument("--overwrite", action="store_true", help="replace OUTPUT if it exists")
    store_option(command)


def of_cost(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `cost`."""
    command.add_argument(
        "place",
        nargs="?",
        metavar="STORE",
        help="store to count; default: .trainwright in this folder, then stores used before",
    )
    command.add_argument("--store", help="the same as STORE")
    command.add_argument(
        "--by",
        default="pipeline",
        metavar="WORDS",
        help=(
            "what to sum by, separated by commas: pipeline, model, run, execution, stage, cause, machine, generation, "
            "node, day, or a tag; default pipeline"
        ),
    )
    command.add_argument(
        "--since",
        default="30d",
        metavar="WHEN",
        help="since when: a length such as 30d or 12h, a day, or START..END; default 30d",
    )
    command.add_argument(
        "--month",
        metavar="MONTH",
        help="a calendar month such as 2026-10, also if gc has deleted its runs; instead of --since",
    )
    command.add_argument(
        "--html", metavar="FILE", help="with --month: write its page, which loads nothing, to this file"
    )
    command.add_argument(
        "--format",
        choices=("table", "focus"),
        default="table",
        help="how to print it; focus: rows of the FinOps Open Cost and Usage Specification 1.2 as CSV; default table",
    )


def of_budget(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `budget`."""
    _applied(command, "budgets")
    command.add_argument("--month", metavar="YYYY-MM", help="month (UTC) to show; default: this one")


def of_policy(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `policy`."""
    _applied(command, "policy")


def _applied(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "action",
        nargs="?",
        choices=("apply",),
        help=f"apply: make FILE the next version of the {what}; default: show what holds",
    )
    command.add_argument("file", nargs="?", metavar="FILE", help="the file to apply (YAML)")
    command.add_argument(
        "--store", help="the store; default: .trainwright in this folder, and the stores used from this machine"
    )


def _reap(command: argparse.ArgumentParser) -> None:
    """`reap`: which store, and whose workers resume."""
    command.add_argument(
        "store",
        nargs="?",
        metavar="STORE",
        help="store to look at; default: .trainwright in this folder, and the stores used from this machine",
    )
    command.add_argument(
        "--pool",
        default="trainwright",
        help="work pool whose workers resume runs that cannot be executed again where they were; default: trainwright",
    )


def _worker(command: argparse.ArgumentParser) -> None:
    """`worker`: of which pool, and how many runs at a time."""
    command.add_argument(
        "--pool",
        default="trainwright",
        help="process pool whose runs are executed, made if it does not exist; default: trainwright",
    )
    command.add_argument("--limit", type=int, metavar="N", help="flow runs at a time; default: no limit")


def _gc(command: argparse.ArgumentParser) -> None:
    command.add_argument("--store", help="store to clean; default: only .trainwright in this folder")
    command.add_argument("--dry-run", action="store_true", help="list what would be deleted, and delete nothing")
    command.add_argument(
        "--keep-days",
        type=float,
        default=31.0,
        metavar="N",
        help="days to keep runs, and results that nothing refers to, after their last use; default 31",
    )
    command.add_argument(
        "--grace-hours",
        type=float,
        default=24.0,
        metavar="N",
        help="hours to keep everything else, such as unfinished work; default 24",
    )


def _nodes(command: argparse.ArgumentParser) -> None:
    """`nodes`: which store."""
    command.add_argument(
        "place",
        nargs="?",
        metavar="STORE",
        help="store to look at; default: .trainwright in this folder, and the stores used from this machine",
    )
    command.add_argument("--store", help="the same as STORE")


def _status(command: argparse.ArgumentParser) -> None:
    """`status`: which store, and the page of a day."""
    command.add_argument(
        "--store", help="store to look at; default: .trainwright in this folder, then stores used before"
    )
    if not is_present("pages"):
        return
    command.add_argument(
        "--html",
        metavar="FILE",
        help="write the page of the day, which loads nothing, to this file; an earlier page of a day is replaced",
    )
    command.add_argument(
        "--since",
        metavar="WHEN",
        help="with --html: since when runs are listed: a length such as 12h or 7d, or a day; default 1d",
    )
    _objectives(command, "with --html: ")


def _slo(command: argparse.ArgumentParser) -> None:
    """`slo`: which store, which objectives, and whether a missed one is a failure."""
    command.add_argument(
        "store",
        nargs="?",
        metavar="STORE",
        help="store to look at; default: .trainwright in this folder, and the stores used from this machine",
    )
    _objectives(command)
    command.add_argument(
        "--check",
        action="store_true",
        help="exit with code 4 if an objective is missed; one without data is not missed",
    )


def _objectives(command: argparse.ArgumentParser, when: str = "") -> None:
    command.add_argument(
        "--objectives", metavar="FILE", help=f"{when}file of objectives (YAML); default: those that Trainwright ships"
    )


def _node_and_reason(command: argparse.ArgumentParser) -> None:
    """`drain`, `restore`: which node, and why."""
    command.add_argument(
        "node", metavar="NODE", help="its name, as `trainwright nodes` lists it: usually its host name"
    )
    command.add_argument("--reason", required=True, metavar="WHY", help="why; recorded in the store")
    command.add_argument(
        "--store", help="the store whose trainings are meant; default: the known store that has a record of the node"
    )


def _backfill(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="the pipeline spec (YAML), with data.window")
    command.add_argument(
        "--from",
        dest="from_",
        required=True,
        metavar="START",
        help="start of the first window (ISO; without a zone: UTC)",
    )
    command.add_argument("--to", required=True, metavar="END", help="end of the last window; not in the future")
    command.add_argument("--every", default="1d", metavar="LENGTH", help="length of a window, such as 12h; default: 1d")
    command.add_argument(
        "--parallel",
        type=int,
        default=1,
        metavar="N",
        help="windows that run at the same time, each in a process of its own; default: 1",
    )
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    command.add_argument("--store", help="store to use instead of the store in the spec")
    command.add_argument("--rehash", action="store_true", help="read every raw file again to take its digest")


def _search(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="the pipeline spec (YAML), with search")
    command.add_argument("--name", help="name of the search; one of a name is continued; default: the pipeline's name")
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    command.add_argument("--window", help=f"{TIMES}, or a length such as 7d that ends when the search begins")
    command.add_argument("--store", help="store to use instead of the store in the spec")


def _sensor(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="the pipeline spec (YAML), with schedule.sensor")
    command.add_argument(
        "--reset",
        choices=["now", "beginning"],
        help="set the cursor: `now` takes all files that are there as seen, `beginning` none",
    )
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    command.add_argument("--store", help="store to use instead of the store in the spec")


def _server(command: argparse.ArgumentParser) -> None:
    """`server`: what to do, and the folder of nginx's configuration."""
    command.add_argument(
        "action",
        type=_server_action,
        choices=("start", "proxy"),
        help=(
            "start: serve in the foreground; proxy: write nginx's configuration, with a password and a role for each "
            "person. Prefect's variables say which database: PREFECT_SERVER_DATABASE_CONNECTION_URL"
        ),
    )
    command.add_argument("folder", nargs="?", metavar="FOLDER", help="proxy: the folder of nginx's configuration")


def _server_action(action: str) -> str:
    """The action; an error that names PostgreSQL's commands for those that were dropped."""
    if action in ("backup", "restore"):
        raise argparse.ArgumentTypeError(f"{action} was dropped: use pg_dump and pg_restore (docs/team-server.md)")
    return action


def _gameday(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", nargs="?", metavar="SPEC", help="the pipeline spec (YAML)")
    command.add_argument(
        "--yes",
        action="store_true",
        help="begin; without it, the command only says what it would do and what that costs at most",
    )
    command.add_argument(
        "--only",
        action="append",
        metavar="FAULT",
        help="a fault to inject, may be repeated; default: every one that the pipeline can try",
    )
    command.add_argument("--list", action="store_true", help="list the faults and what is promised about each")
    command.add_argument(
        "--at-most",
        default="30m",
        metavar="TIME",
        help="end everything after this time, such as 30m or 2h; default: 30m",
    )
    command.add_argument("--window", help="part of the data to read: START..END (ISO times, END excluded)")
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace a field of the spec")
    command.add_argument("--store", help="the store beside which the game day makes its own; default: the spec's")


def arguments_of(name: str, *, is_stage: bool) -> Callable[[argparse.ArgumentParser], None]:
    """Functions that add a command's arguments to its parser; stages without arguments of their own share some."""
    return _ARGUMENTS.get(name, _stage if is_stage else _nothing)


def _nothing(_: argparse.ArgumentParser) -> None:
    """Add no arguments, for a command without its own."""


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
    command.add_argument(
        "--no-shakedown",
        action="store_true",
        help="do not try the training, and what follows it, on its first rows beforehand",
    )


def _planning(command: argparse.ArgumentParser) -> None:
    _spec(command)
    _untried(command)
    command.add_argument("--no-estimate", action="store_true", help="leave out memory, time, cost and machines")


def _stage(command: argparse.ArgumentParser) -> None:
    _spec(command, f"{TIMES}; the same for each stage command")
    command.add_argument("--out", metavar="FILE", help="also write the stage's hand-off as JSON")


def _training(command: argparse.ArgumentParser) -> None:
    _stage(command)
    if is_present("queries"):
        command.add_argument(
            "--curves", metavar="DIR", help="also write the logged values to DIR, a JSON table per metric"
        )
    command.add_argument("--new", action="store_true", help="begin a new training of the same key")
    _untried(command)
    if is_present("step profile"):
        command.add_argument("--profile", action="store_true", help="instead of training: say what bounds its steps")


def _evaluating(command: argparse.ArgumentParser) -> None:
    _stage(command)
    command.add_argument("--metrics", metavar="FILE", help="also write the metrics as one JSON object")


def _promoting(command: argparse.ArgumentParser) -> None:
    _stage(command)
    command.add_argument(
        "--force",
        action="store_true",
        help="promote a checkpoint that is on hold, if it meets the gates; needs --reason",
    )
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
    command.add_argument(
        "--trigger",
        choices=("cli", "ci"),
        default="cli",
        help="ci: derive the key from commit, code, spec, window and inputs, unless --key is given",
    )


def _deploy(command: argparse.ArgumentParser) -> None:
    _spec(command, f"{TIMES}, or a length such as 7d that ends at the scheduled time")
    command.add_argument(
        "--pool", default="trainwright", help="work pool whose workers execute its runs; default: trainwright"
    )
    command.add_argument("--cron", help="when it runs, such as '0 3 * * *'; off: only on demand; default: keep")
    command.add_argument("--timezone", help="time zone of --cron, such as Europe/Berlin; default: UTC")
    command.add_argument("--name", help="name of the deployment; default: the pipeline's name")
    command.add_argument("--replace", action="store_true", help="replace any deployment of this name, and keep nothing")
    command.add_argument("--start", action="store_true", help="also start a run now, if a worker is online")


def _of_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="run id")
    store_option(command)


def _mirror(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", nargs="?", metavar="RUN", help="run id; default: everything that is due")
    command.add_argument("--wait", type=float, default=600.0, metavar="S", help="seconds to wait in all; default 600")
    command.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="PLACE",
        help="with RUN: the place of a mirror that no run of yours on this machine named, as the message shows it",
    )
    store_option(command)


def _logs(command: argparse.ArgumentParser) -> None:
    _of_run(command)
    command.add_argument(
        "--rank",
        type=int,
        metavar="K",
        help="print everything that was kept of rank K; default: the end of each rank's output",
    )


def _report(command: argparse.ArgumentParser) -> None:
    _of_run(command)
    command.add_argument("--out", metavar="FILE", help="write the page to FILE; an existing file is not replaced")


def _diff(command: argparse.ArgumentParser) -> None:
    for name, which in (("before", "first"), ("after", "second")):
        command.add_argument(
            name,
            metavar="V1" if name == "before" else "V2",
            help=f"the {which} run id, model, alias (NAME@ALIAS) or version (NAME@3 or NAME:3)",
        )
    command.add_argument("--out", metavar="FILE", help="also write a page to FILE; an existing file is not replaced")
    store_option(command)


def _resume(command: argparse.ArgumentParser) -> None:
    _of_run(command)
    command.add_argument(
        "--from",
        dest="from_step",
        type=int,
        metavar="STEP",
        help="continue from the committed checkpoint of this step; later checkpoints are set aside",
    )


def _making(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "action",
        choices=("init", "approve"),
        help=(
            "init: make the store, or show how an existing store was made; approve: let specs send credentials of this "
            "machine to an address"
        ),
    )
    command.add_argument(
        "address",
        metavar="ADDRESS",
        help="init: s3://bucket/prefix, or a folder; approve: where they are sent, such as http://minio:9000",
    )
    command.add_argument("names", metavar="NAME", nargs="*", help="approve: env:NAME or profile:NAME, as specs name it")
    command.add_argument(
        "--pointers",
        metavar="DATABASE",
        help="postgresql://… or sqlite:////…: the database that decides pointers and names; cannot be changed later",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help="a field of the spec's store section, such as storage_options.endpoint_url=http://127.0.0.1:9000",
    )


def _contract(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "action",
        choices=("infer", "explain", "docs"),
        help=(
            "infer: write a suite from data; explain: say what a suite expects; docs: write a run's report as a page "
            "of Great Expectations' Data Docs"
        ),
    )
    command.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="infer: a file, glob or s3:// address; explain: a suite or a spec; docs: a run",
    )
    command.add_argument("--out", metavar="DIR", help="infer, docs: write to DIR; existing files are never replaced")
    store_option(command)


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "init": of_init,
    "ci": of_ci,
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
    "history": _history,
    "predict": of_predict,
    "report": _report,
    "diff": _diff,
    "store": _making,
    "cost": of_cost,
    "budget": of_budget,
    "policy": of_policy,
    "approve": _approval,
    "refuse": _approval,
    "protect": _protect,
    "rollback": _rollback,
    "release": _release,
    "affected": _affected,
    "show": _show,
    "export": _export,
    "reproduce": _reproducing,
    "prove": _prove,
    "key": _key,
    "backfill": _backfill,
    "search": _search,
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
    "contract": _contract,
}
