"""`store`: work on a store itself, apart from any pipeline, and on the credentials that addresses are sent."""

from __future__ import annotations

import argparse
import re

from data_contracts.errors import UsageError
from data_contracts.load import load_store
from flows.commands.guard import Answer
from infra.settings import PREFECT_SETTINGS, approve, remember_store
from infra.store import absolute_address, layout, open_store
from infra.store.s3 import credentials_sent, database_password

_CREDENTIAL = re.compile(rf"env:[A-Za-z_]\w*|profile:.+|block:.+|{PREFECT_SETTINGS}")


def store(arguments: argparse.Namespace) -> Answer:
    """The `store` command: `init` makes a store or says how it was made, `approve` records where credentials may go."""
    if arguments.action == "approve":
        return _approve(arguments.address.rstrip("/"), arguments.names)
    if arguments.names:
        raise UsageError("store init takes one address.", remedy="Name options with --set.")
    spec = load_store(absolute_address(arguments.address), arguments.pointers, arguments.set)
    # Whoever types an address and the credentials for it has approved them.
    fields, address = credentials_sent(spec.storage_options)
    for place, names in ((address, fields), (spec.pointers, database_password(spec.pointers or ""))):
        if place and names:
            approve(place, names)
    opened = open_store(spec.uri, spec.storage_options, pointers=spec.pointers)
    remember_store(opened.uri, spec.storage_options, opened.pointers)
    about = opened.read_json(layout.STORE)
    where = "itself" if about["pointers"] == "store" else about["pointers"]
    text = f"{opened.uri} is a store, made {about['made']}, with its pointers in {where}."
    return Answer(text, {"uri": opened.uri, "pointers": about["pointers"], "made": about["made"]})


def _approve(address: str, names: list[str]) -> Answer:
    if not names or not all(map(_CREDENTIAL.fullmatch, names)):
        raise UsageError(
            "store approve needs an address and the credentials that it may be sent.",
            remedy="Name them as a spec does: trainwright store approve http://minio:9000 env:KEY env:SECRET.",
        )
    approved = approve(address, names)
    return Answer(f"{address} may be sent {', '.join(approved)}.", {address: approved})
