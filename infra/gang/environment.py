"""The environment variables that a gang's processes pass to each other; no other code sets or reads them.

Variables that other processes get, too, are named lower down: PROJECT and LOG in `data_contracts.quoting`,
STORE_POINTERS in `infra.store.opening`, PARENT and MARK in `infra.processes`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from data_contracts.quoting import APPROVED
from infra.machine.approved_credentials import approved_in_environment
from infra.store.opening import STORE_POINTERS
from infra.store.s3 import credentials_sent, database_password

# The file with the launch of this generation.
LAUNCH = "TRAINWRIGHT_LAUNCH"
# Address of the store, and the options to connect to it (JSON).
STORE = "TRAINWRIGHT_STORE"
STORE_OPTIONS = "TRAINWRIGHT_STORE_OPTIONS"
# The folder in which a node's ranks and its supervisor leave files for each other.
SCRATCH = "TRAINWRIGHT_SCRATCH"
# Local folder of the sealed dataset; "" with `data: external`.
DATASET = "TRAINWRIGHT_DATASET"
# The key of the generation, in hexadecimal; see `infra.gang.codes`. Only the supervisor gets it.
NODE_KEY = "TRAINWRIGHT_NODE_KEY"
# The address under which the other nodes reach this host.
ADDRESS = "TRAINWRIGHT_ADDRESS"


def store_env(store_options: Mapping[str, Any], pointers: str | None) -> dict[str, str]:
    """The variables for a node's store: its connection options, the database it may connect to, and what both get.

    The machine of this process has approved that, or it could not have opened the store.
    """
    fields, address = credentials_sent(store_options)
    approved = approved_in_environment() | ({address: list(fields)} if fields else {})
    if pointers:
        approved[pointers] = [*database_password(pointers), "env:PGPASSWORD"]
    named = {STORE_OPTIONS: json.dumps(dict(store_options)), APPROVED: json.dumps(approved)}
    return {**named, STORE_POINTERS: pointers} if pointers else named


def store_options(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The connection options that `store_env` wrote; {} if there are none."""
    return json.loads(environ.get(STORE_OPTIONS) or "{}")
