"""Trainwright's own Prefect server, started if it is not there.

It runs under the state folder with a PREFECT_HOME and an SQLite database of its own, on the loopback interface,
without analytics, and keeps its port from one start to the next where that is free. It stays until `down`.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from data_contracts.errors import StorageUnavailable, UsageError
from infra.launch.processes import module_command, new_mark
from infra.orchestrator import api, services
from infra.orchestrator.api import REACH_TIMEOUT_S, Server
from infra.orchestrator.services import Service
from infra.settings import state_folder

FIRST_PORT = 4210
PORTS = 100
# A new SQLite database takes 10 to 15 s on an idle machine.
START_TIMEOUT_S = 180.0
STOP_GRACE_S = 10.0
# What of the caller's Prefect settings means our server too; all others speak of servers and databases of their own.
_KEPT = ("PREFECT_LOGGING_", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_SERVER_UI_API_URL")


def ensure_server() -> Server:
    """The server to use, started if it is ours and not there; from then on Prefect in this process talks to it.

    Raises:
        StorageUnavailable: the server that the person named does not answer, or ours does not start.
        UsageError: it refuses the credentials, is no Prefect API, or would listen to the network unprotected.
    """
    if theirs := api.named(_own_url()):
        return api.reach(*theirs)
    with services.locked():
        service = services.running("server")
        started = service is None
        if service is None:
            service = _start()
        else:
            _wait_until_healthy(service)
    api.use(service.url)
    return Server(service.url, api.pages(service.url), started)


def server_status() -> Server | None:
    """The server that a command would use now, if it answers; starts nothing."""
    if theirs := api.named(_own_url()):
        try:
            return api.reach(*theirs)
        except (StorageUnavailable, UsageError):
            return None
    service = services.running("server")
    if service is None or not _answers(service.url):
        return None
    return Server(service.url, api.pages(service.url), started=False)


def stop_server() -> str | None:
    """Stop our server and all its descendants; its address, or None if it did not run."""
    with services.locked():
        service = services.read("server")
        return service.url if service is not None and service.stop(STOP_GRACE_S) else None


def _own_url() -> str | None:
    service = services.read("server")
    return service.url if service is not None else None


def _start() -> Service:
    host = _host()
    mark = new_mark()
    with _listen(host) as listener:
        port = listener.getsockname()[1]
        reached_at = "127.0.0.1" if ipaddress.ip_address(host).is_unspecified else host
        place = f"[{reached_at}]:{port}" if ":" in reached_at else f"{reached_at}:{port}"
        env = {
            name: value
            for name, value in services.environment(mark).items()
            if not name.startswith("PREFECT_") or name.startswith(_KEPT)
        }
        env |= {
            "PREFECT_HOME": str(state_folder() / "prefect"),
            "PREFECT_API_URL": f"http://{place}/api",
            "PREFECT_SERVER_API_HOST": host,
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            # By default leases live in the server's memory: restarted, it would count their slots for ever.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            # By default any web page that the person opens may start flow runs here.
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{place},http://localhost:{port}",
            "DO_NOT_TRACK": "1",
        }
        command = module_command("infra.orchestrator.serve", str(listener.fileno()))
        url, inherit = env["PREFECT_API_URL"], [listener.fileno()]

        def healthy(service: Service) -> None:
            # Else requests to a server that has ended would wait for an answer.
            listener.close()
            _wait_until_healthy(service)

        return services.start("server", command, mark=mark, env=env, url=url, wait=healthy, inherit=inherit)


def _host() -> str:
    """The IP address to listen on: Prefect's own setting, which defaults to this machine alone."""
    host = os.environ.get("PREFECT_SERVER_API_HOST") or "127.0.0.1"
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise UsageError(
            f"PREFECT_SERVER_API_HOST is {host!r}, which is no IP address.", remedy="Give one, or leave it out."
        ) from None
    if not address.is_loopback and not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        raise UsageError(
            f"PREFECT_SERVER_API_HOST is {host}, which the network reaches, but the server would ask for no password.",
            remedy="Set PREFECT_SERVER_API_AUTH_STRING (user:password), or leave the host out.",
        )
    return str(address)


def _listen(host: str) -> socket.socket:
    """A listening socket on the port used last, else on the first free one from 4210 up, else on any."""
    last = urlsplit(_own_url() or "").port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in [*([last] if last else []), *range(FIRST_PORT, FIRST_PORT + PORTS), 0]:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
            return listener
        except OSError:
            listener.close()
    raise UsageError(f"This machine cannot listen on {host}.", remedy="Check PREFECT_SERVER_API_HOST.")


def _wait_until_healthy(service: Service) -> None:
    """Until the service answers. Its socket listens from the start, so a request simply waits until it can."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(service.url):
        if not service.is_running():
            raise StorageUnavailable(
                f"The local Prefect server ended while starting: {service.last_words() or 'it said nothing'}",
                remedy=f"Its log is {service.log}.",
            )
        if time.monotonic() > deadline:
            raise StorageUnavailable(
                f"The local Prefect server (pid {service.pid}) did not answer within {START_TIMEOUT_S:.0f} s.",
                remedy=f"Its log is {service.log}; `trainwright down` stops it.",
            )
        time.sleep(0.02)


def _answers(url: str) -> bool:
    # Without a proxy: HTTP_PROXY would send what is meant for this machine elsewhere.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=REACH_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
