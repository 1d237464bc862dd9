"""The arguments of `predict`. Only the standard library is imported."""

from __future__ import annotations

import argparse

from flows.model_arguments import store_option


def of_predict(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `predict`."""
    command.add_argument("name", metavar="NAME[@ALIAS]", help="model, with an alias or a version (NAME@3)")
    command.add_argument("input", metavar="INPUT", help="a file, a folder or a glob: CSV, JSON Lines or Parquet")
    command.add_argument("output", metavar="OUTPUT", help="the file to write: .parquet, .csv or .jsonl")
    help_ = "columns of the input to copy to the output; default none"
    command.add_argument("--keep", metavar="COLUMN,…", help=help_)
    help_ = "columns that the input may lack, besides those that the metrics call their target"
    command.add_argument("--label", metavar="COLUMN,…", help=help_)
    command.add_argument("--batch-size", type=int, metavar="ROWS", help="rows per batch; default: as in evaluate")
    help_ = "check the rows first: against the model's own suite, or another"
    command.add_argument("--contract", nargs="?", const="", metavar="SUITE", help=help_)
    command.add_argument("--overwrite", action="store_true", help="replace OUTPUT if it exists")
    store_option(command)
