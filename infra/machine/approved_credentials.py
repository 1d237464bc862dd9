"""Which credentials of this machine may be sent to which addresses, as its user approved them.

A spec names both, and whoever wrote it may be somebody else. So the list lies in the state folder, or comes from the
operator's environment, and never from a spec or a store.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.quoting import APPROVED
from infra.files.atomic import replace_private
from infra.files.locks import locked
from infra.machine.settings import state_folder

FILE = "approved.json"
# What a Dask cluster is sent: Prefect's settings, with its password and API key.
PREFECT_SETTINGS = "prefect:settings"
# Keys that sign, and what opens the Prefect server, which runs any program.
_NEVER = re.compile(r"env:(?:TRAINWRIGHT|PREFECT)_", re.IGNORECASE)


def check_approved(fields: Mapping[str, str], address: str, also: Mapping[str, Any] | None = None) -> None:
    """UsageError unless this machine's user has approved that credentials are sent to an address.

    Args:
        fields: the field that names each credential (`env:NAME`, `profile:NAME`), by the credential.
        also: approvals that were recorded elsewhere.
    """
    refuse_own(fields)
    if not fields:
        return
    lists = (also or {}, approved_in_environment(), _approved_in_file())
    approved = {name for approvals in lists for name in approvals.get(address, ())}
    if missing := [name for name in fields if name not in approved]:
        command = shlex.join(["trainwright", "store", "approve", address, *missing])
        raise UsageError(
            f"{fields[missing[0]]}: nobody on this machine has approved that {' and '.join(missing)} may be sent to "
            f"{address}; nothing was sent.",
            remedy=f"If that address may have it, run `{command}`; without a terminal, set {APPROVED}.",
        )


def refuse_own(fields: Mapping[str, str]) -> None:
    """UsageError for a credential that no address ever gets."""
    for name, field in fields.items():
        if _NEVER.match(name):
            raise UsageError(
                f"{field} names {name.partition(':')[2]}, a variable of Trainwright's or Prefect's own, which is sent "
                "to no address.",
                remedy="Name a variable that holds the credential of this address alone.",
            )


def approve(address: str, names: Iterable[str]) -> list[str]:
    """Record that credentials may be sent to an address; returns all that may. UsageError as `refuse_own`."""
    refuse_own({name: name for name in names})
    folder = state_folder()
    with locked(folder):
        approvals = _approved_in_file()
        approvals[address] = sorted({*approvals.get(address, ()), *names})
        replace_private(folder / FILE, json.dumps(approvals))
    return approvals[address]


def approved_in_environment() -> dict[str, list[str]]:
    """The credentials for each address that the operator set for this process; UsageError if they cannot be read."""
    return _parsed(os.environ.get(APPROVED) or "{}", APPROVED)


def _approved_in_file() -> dict[str, list[str]]:
    file = state_folder() / FILE
    return _parsed(file.read_text() if file.exists() else "{}", str(file))


def _parsed(text: str, where: str) -> dict[str, list[str]]:
    try:
        return {str(address): [str(name) for name in names] for address, names in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{where} does not list approved credentials.",
            remedy='Write {"ADDRESS": ["env:NAME"]}, in JSON; `trainwright store approve --json` prints it.',
        ) from error
