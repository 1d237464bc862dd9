"""The arguments of the commands about models: what people decide about them, and what they show and export."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def name_argument(command: argparse.ArgumentParser) -> None:
    """Which model, and in which store it is searched."""
    command.add_argument("name", metavar="NAME[@ALIAS]", help="model, with an alias or a version (NAME@3)")
    store_option(command)


def store_option(command: argparse.ArgumentParser) -> None:
    """In which store a command searches."""
    command.add_argument(
        "--store", help="store to search; default: .trainwright in this folder, then stores used before"
    )


def _approval(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="id of the run that waits")
    store_option(command)
    help_ = "private key (PEM) that signs the answer: a path or env:NAME; needed if the alias has approvers' keys"
    command.add_argument("--key", metavar="FILE", help=help_)
    command.add_argument("--reason", required=True, metavar="WHY", help="why; recorded in the alias's history for ever")
    command.add_argument("--yes", action="store_true", help="at a terminal: do not ask whether this is meant")


def _protect(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME[@ALIAS]", help="model and alias; default alias: champion")
    store_option(command)
    help_ = "public key (PEM) of an approver, may be repeated: only signed answers count then"
    command.add_argument("--key", action="append", default=[], metavar="PUBLIC.pem", help=help_)
    command.add_argument("--off", action="store_true", help="end the protection; its records stay")
    command.add_argument("--reason", required=True, metavar="WHY", help="why; recorded in the store")


def _reproducing(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    command.add_argument("--into", metavar="DIR", help="new folder to work in; default: reproduced-NAME-VERSION here")
    _data(command)
    help_ = "install the packages that this installation lacks from this folder of wheels, and ask no index"
    command.add_argument("--wheels", metavar="DIR", help=help_)
    help_ = "use this installation, which must have the recorded versions, instead of a new environment"
    command.add_argument("--here", action="store_true", help=help_)


def _show(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME[@ALIAS]|RUN", help="model, alias, version or run id")
    store_option(command)


def _prove(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    help_ = "public key (PEM) that signed the receipts; may be repeated, for keys of different times"
    command.add_argument("--key", action="append", default=[], metavar="PUBLIC.pem", help=help_)
    help_ = "seal of a receipt, kept elsewhere, that must be in the alias's history"
    command.add_argument("--at-least", default="", metavar="SEAL", help=help_)
    _data(command)


def _data(command: argparse.ArgumentParser) -> None:
    help_ = (
        "where the raw data lies: the folder that has the files now, or is in their DVC repository; s3://… once for "
        "each place on S3. Places on S3 and repositories that only the store names are not opened"
    )
    command.add_argument("--data", action="append", default=[], metavar="DIR|s3://…", help=help_)


def _key(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", choices=("new",), help="new: make a pair of keys")
    command.add_argument("folder", metavar="DIR", help="folder to write to; existing files are never replaced")


def _rollback(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    help_ = "version to go back to; default: the previous version that is not on hold"
    command.add_argument("--to", type=int, metavar="VERSION", help=help_)
    command.add_argument("--reason", default="", metavar="WHY", help="why; recorded in the receipt and the hold")
    help_ = "a link or a figure that shows it; recorded in the receipt; may be repeated"
    command.add_argument("--evidence", action="append", default=[], metavar="TEXT", help=help_)


def _canary(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the model")
    store_option(command)
    command.add_argument("--withdraw", action="store_true", help="take the canary back")
    command.add_argument("--reason", metavar="WHY", help="with --withdraw: why; recorded in the receipt and the hold")


def _release(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    help_ = "version to release; default: the only version on hold"
    command.add_argument("version", nargs="?", type=int, metavar="VERSION", help=help_)
    help_ = "checkpoint to release instead of a version: its id, or the first characters of the id"
    command.add_argument("--checkpoint", metavar="ID", help=help_)
    command.add_argument("--reason", required=True, metavar="WHY", help="why; recorded in the receipt")


def _affected(command: argparse.ArgumentParser) -> None:
    help_ = "a package with its versions: lightning==2.6.2, 'lightning>=2.6.2,<2.6.4', or a name alone"
    command.add_argument("package", metavar="PACKAGE", help=help_)
    store_option(command)
    command.add_argument("--hold", action="store_true", help="put the affected versions on hold for all their aliases")
    command.add_argument("--reason", default="", metavar="WHY", help="with --hold: why; recorded in the holds")


def _export(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    command.add_argument("dir", metavar="DIR", help="folder to write; a new or an empty one")
    help_ = (
        "torch: a torch.export program; onnx: an ONNX model; safetensors: the tensors; huggingface: tensors, config "
        "and model card; mlflow: a folder for MLflow's load_model"
    )
    targets = ("safetensors", "torch", "onnx", "huggingface", "mlflow")
    command.add_argument("--to", required=True, choices=targets, help=help_)
    help_ = "how far an output may differ from the checkpoint's, besides --rtol; default: by its type"
    command.add_argument("--atol", type=float, metavar="X", help=help_)
    help_ = "how far an output may differ from the checkpoint's, as a share of its value; default: by its type"
    command.add_argument("--rtol", type=float, metavar="X", help=help_)
    help_ = "the model's licence, for the card: an id of a model hub, such as apache-2.0; default: not known"
    command.add_argument("--license", default="", metavar="ID", help=help_)


MODELS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "approve": _approval,
    "refuse": _approval,
    "protect": _protect,
    "rollback": _rollback,
    "release": _release,
    "canary": _canary,
    "affected": _affected,
    "show": _show,
    "export": _export,
    "reproduce": _reproducing,
    "prove": _prove,
    "key": _key,
}
