"""`up`, `ui`, `down` and `worker`: control the local Prefect server, its pool and its worker."""

from __future__ import annotations

import argparse
import shlex
import sys

from data_contracts.errors import StorageUnavailable
from flows.commands.guard import Answer, log


def up(arguments: argparse.Namespace) -> Answer:
    """The `up` command."""
    from infra.orchestrator.lifecycle import obstacles_here, profiles
    from infra.orchestrator.lifecycle import up as start
    from infra.orchestrator.server import sign_in_link

    server = start()
    link = sign_in_link(server) if sys.stdout.isatty() and not arguments.json else server.ui_url
    lines = [f"Prefect server and worker are up; UI: {link}"]
    elsewhere = f"PREFECT_API_URL={server.url}"
    if server.ours:
        lines.append("To sign in to the UI: trainwright ui (it prints a link that works once, within 60 seconds)")
        elsewhere = f"PREFECT_PROFILES_PATH={shlex.quote(str(profiles()))}"
    for _, obstacle in obstacles_here(server):
        log.warning("%s %s", obstacle.sentence, obstacle.remedy)
    lines += ["Deploy a pipeline: trainwright deploy SPEC", f"To use prefect in other folders: export {elsewhere}"]
    return Answer("\n".join(lines), {"ui": server.ui_url, "api": server.url, "started": server.started})


def ui(arguments: argparse.Namespace) -> Answer:
    """The `ui` command; StorageUnavailable if no server runs."""
    from infra.orchestrator.api import auth_string
    from infra.orchestrator.server import expected_server, sign_in_link

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
    from infra.orchestrator.lifecycle import down as stop

    stopped = stop()
    return Answer(f"stopped: {', '.join(stopped)}" if stopped else "nothing of ours was running", {"stopped": stopped})


def worker(arguments: argparse.Namespace) -> Answer:
    """The `worker` command: ends with SIGTERM or Ctrl-C, once its flow runs are handed over."""
    from infra.orchestrator.server import ensure_server
    from infra.orchestrator.worker import ensure_pool, work

    server = ensure_server()
    ensure_pool(arguments.pool)
    log.info("A worker of the pool %s for the Prefect server at %s.", arguments.pool, server.url)
    handed_over = work(arguments.pool, [] if arguments.limit is None else ["--limit", str(arguments.limit)])
    text = f"The worker has stopped. Flow runs that it handed over: {len(handed_over)}."
    return Answer(text, {"pool": arguments.pool, "handed_over": handed_over})
