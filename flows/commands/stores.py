"""`store`: work on a store itself, apart from any pipeline."""

from __future__ import annotations

import argparse

from data_contracts.load import load_store
from flows.commands.guard import Answer
from infra.machine.settings import remember_store
from infra.store import absolute_address, layout, open_store


def store(arguments: argparse.Namespace) -> Answer:
    """The `store init` command: makes a store, or says how the existing store was made."""
    spec = load_store(absolute_address(arguments.uri), arguments.pointers, arguments.set)
    opened = open_store(spec.uri, spec.storage_options, pointers=spec.pointers)
    remember_store(opened.uri, spec.storage_options, opened.pointers)
    about = opened.read_json(layout.STORE)
    where = "itself" if about["pointers"] == "store" else about["pointers"]
    text = f"{opened.uri} is a store, made {about['made']}, with its pointers in {where}."
    return Answer(text, {"uri": opened.uri, "pointers": about["pointers"], "made": about["made"]})
