"""`server`: a team's Prefect server on PostgreSQL: start it, put nginx in front, back it up, restore it."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from data_contracts.errors import UsageError
from flows.commands.guard import Answer
from infra.orchestrator.team_server import check_settings, read_settings, start, write_proxy
from infra.quantities import size


def server(arguments: argparse.Namespace) -> Answer:
    """The `server` command."""
    if (arguments.folder is None) != (arguments.action == "start"):
        wants = "takes no folder" if arguments.action == "start" else "needs a folder"
        raise UsageError(f"server {arguments.action} {wants}.")
    if arguments.action == "start":
        return _start()
    folder = Path(arguments.folder)
    return {"proxy": _write_proxy, "backup": _back_up, "restore": _restore}[arguments.action](folder)


def _start() -> Answer:
    # How a server ends: uvicorn has answered the signal, and raises it again.
    with contextlib.suppress(KeyboardInterrupt):
        start()
    return Answer("The Prefect server has stopped.", {"stopped": True})


def _write_proxy(folder: Path) -> Answer:
    settings = read_settings()
    check_settings(settings)
    write_proxy(folder, settings)
    text = f"{folder}/proxy.conf is nginx's configuration for this server. {folder}/server-password holds its password."
    return Answer(text, {"folder": str(folder)})


def _back_up(folder: Path) -> Answer:
    from infra.orchestrator.team_server import back_up

    backup = back_up(folder)
    text = (
        f"{folder} is a backup of the Prefect server's database: {size(backup.size)}, schema "
        f"{backup.database_schema}, Prefect {backup.prefect}. It holds the secrets of Prefect's blocks."
    )
    return Answer(text, {"folder": str(folder), **backup.to_json()})


def _restore(folder: Path) -> Answer:
    from infra.orchestrator.team_server import look_at_database, restore

    backup, old = restore(folder)
    paused = look_at_database().paused
    text = f"The database holds the backup of {backup.made}."
    if old:
        text += " Its schema is an earlier Prefect's; next: prefect server database upgrade --yes"
    if paused:
        resume = "; ".join(f"prefect work-pool resume {pool}" for pool in paused)
        text += f" The backup was made while work pools were paused; once the server and the workers run: {resume}"
    return Answer(text, {"folder": str(folder), "upgrade_needed": old, "paused": paused, **backup.to_json()})
