"""`up`, `ui`, `down`, `worker`, `server`: control the local Prefect server, its pool and its worker, and a team's.

A team's server is on PostgreSQL: it is started, and nginx is put in front. `connect` points this process at a server,
before Prefect is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from data_contracts.errors import StorageUnavailable, UsageError
from flows.commands.guard import Answer, log
from infra.audit import TRIGGER
from infra.orchestrator import lifecycle, team_server
from infra.orchestrator.api import NO_ANALYTICS, Server, auth_string
from infra.orchestrator.server import ensure_server, expected_server, sign_in_link
from infra.orchestrator.worker import ensure_pool, work
from infra.store import absolute_address

# Prefect's settings for a command that shows its own progress.
QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLI_PROMPT": "false",
    **NO_ANALYTICS,
}


def up(arguments: argparse.Namespace) -> Answer:
    """The `up` command."""
    server = lifecycle.up()
    link = sign_in_link(server) if sys.stdout.isatty() and not arguments.json else server.ui_url
    lines = [f"Prefect server and worker are up; UI: {link}"]
    elsewhere = f"PREFECT_API_URL={server.url}"
    if server.ours:
        lines.append("To sign in to the UI: trainwright ui (it prints a link that works once, within 60 seconds)")
        elsewhere = f"PREFECT_PROFILES_PATH={shlex.quote(str(lifecycle.profiles()))}"
    for _, obstacle in lifecycle.obstacles_here(server):
        log.warning("%s %s", obstacle.sentence, obstacle.remedy)
    lines += ["Deploy a pipeline: trainwright deploy SPEC", f"To use prefect in other folders: export {elsewhere}"]
    return Answer("\n".join(lines), {"ui": server.ui_url, "api": server.url, "started": server.started})


def ui(arguments: argparse.Namespace) -> Answer:
    """The `ui` command; StorageUnavailable if no server runs."""
    server = expected_server()
    if server is None:
        raise StorageUnavailable("No Prefect server is running here.", remedy="Start it with `trainwright up`.")
    link = sign_in_link(server)
    if link != server.ui_url:
        log.info("This link signs you in, once, within 60 seconds:")
    elif not server.ours and auth_string():
        log.info(
            "If these pages ask for a password, paste the whole line `name:password` that PREFECT_API_AUTH_STRING has "
            "here. If a proxy asks for a name, enter your own name and password."
        )
    return Answer(link, {"ui": server.ui_url, "link": link})


def down(arguments: argparse.Namespace) -> Answer:
    """The `down` command."""
    stopped = lifecycle.down()
    return Answer(f"stopped: {', '.join(stopped)}" if stopped else "nothing of ours was running", {"stopped": stopped})


def worker(arguments: argparse.Namespace) -> Answer:
    """The `worker` command: ends with SIGTERM or Ctrl-C, once its flow runs are handed over."""
    server = ensure_server()
    ensure_pool(arguments.pool)
    log.info("A worker of the pool %s for the Prefect server at %s.", arguments.pool, server.url)
    handed_over = work(arguments.pool, [] if arguments.limit is None else ["--limit", str(arguments.limit)])
    text = f"The worker has stopped. Flow runs that it handed over: {len(handed_over)}."
    return Answer(text, {"pool": arguments.pool, "handed_over": handed_over})


def server(arguments: argparse.Namespace) -> Answer:
    """The `server` command."""
    if (arguments.folder is None) != (arguments.action == "start"):
        wants = "takes no folder" if arguments.action == "start" else "needs a folder"
        raise UsageError(f"server {arguments.action} {wants}.")
    if arguments.action == "start":
        return _start_server()
    return _write_proxy(Path(arguments.folder))


def _start_server() -> Answer:
    # How a server ends: uvicorn has answered the signal, and raises it again.
    with contextlib.suppress(KeyboardInterrupt):
        team_server.start()
    return Answer("The Prefect server has stopped.", {"stopped": True})


def _write_proxy(folder: Path) -> Answer:
    settings = team_server.read_settings()
    team_server.check_settings(settings)
    team_server.write_proxy(folder, settings)
    text = f"{folder}/proxy.conf is nginx's configuration for this server. {folder}/server-password holds its password."
    return Answer(text, {"folder": str(folder)})


def flow_parameters(arguments: argparse.Namespace) -> dict[str, object]:
    """What the flow `retrain` gets of a command's arguments, beside the spec."""
    asked = {name: getattr(arguments, name, None) for name in ("window", "key", "new", "rehash")}
    asked |= {"set": shlex.join(arguments.set), "store": arguments.store and absolute_address(arguments.store)}
    return {field: value for field, value in asked.items() if value}


def connect(trigger: str) -> str:
    """Point this process at the Prefect server (started if necessary) before Prefect is imported; returns its UI.

    A person at a terminal gets a link that signs in; a log file, which others may read, gets only the address.
    """
    os.environ.update({**QUIET, TRIGGER: trigger})
    server = ensure_server()
    _log_ui(replace(server, started=False))
    return server.ui_url


@functools.cache
def _log_ui(server: Server) -> None:
    """Log the address of a server's pages; once, however many flows a command runs."""
    log.info("Prefect UI: %s", sign_in_link(server) if sys.stderr.isatty() else server.ui_url)
