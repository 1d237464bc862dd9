"""The arguments of `init` and `ci`. Only the standard library is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable

EXTRAS = ("prefect", "dvc", "github", "gitlab")


def of_init(command: argparse.ArgumentParser) -> None:
    """`init`: where to, and what beside the pipeline."""
    command.add_argument("folder", metavar="DIR", help="folder to write to; created if it does not exist")
    with_ = (
        "also write a file, may be repeated: prefect (prefect.yaml), dvc (dvc.yaml), github or gitlab (the workflow); "
        "if DIR has a pipeline.yaml, only these files are written"
    )
    origins = ("digits", "huggingface")
    help_ = (
        "digits: a classifier that runs as it is (default); huggingface: adapters (LoRA) for a model of transformers"
    )
    command.add_argument("--from", dest="origin", choices=origins, default="digits", help=help_)
    command.add_argument("--with", dest="extras", action="append", default=[], choices=EXTRAS, help=with_)


def of_ci(command: argparse.ArgumentParser, of_spec: Callable[[argparse.ArgumentParser], None]) -> None:
    """`ci`: a spec, where it runs, and which files are written."""
    of_spec(command)
    help_ = "start this deployment on the Prefect server and wait for it; default: run here"
    command.add_argument("--deployment", metavar="NAME", help=help_)
    help_ = "idempotency key; default: from commit, code, spec, window and inputs"
    command.add_argument("--key", help=help_)
    command.add_argument("--new", action="store_true", help="begin a new training of the same key")
    command.add_argument("--junit", metavar="FILE", help="write JUnit XML to FILE")
    help_ = "write the summary to FILE, as Markdown; default: add it to the file that GITHUB_STEP_SUMMARY names"
    command.add_argument("--summary", metavar="FILE", help=help_)
    help_ = "write GitLab's Code Quality report to FILE"
    command.add_argument("--code-quality", metavar="FILE", help=help_)
    command.add_argument("--dotenv", metavar="FILE", help="write the outputs to FILE, as variables for GitLab")
