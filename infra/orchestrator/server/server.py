"""Trainwright's own Prefect server, started if it does not run.

It runs below the state folder with its own PREFECT_HOME and SQLite database, on the loopback interface, with a password
and without analytics. It uses the same port again if that is free. It runs until `down`.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import logging
import os
import socket
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from data_contracts.errors import StorageUnavailable, UsageError
from infra.orchestrator import api, password
from infra.orchestrator.api import REACH_TIMEOUT_S, Server
from infra.orchestrator.server import services
from infra.orchestrator.server.services import Service
from infra.orchestrator.variables import (
    ANY_SERVER,
    API_URL,
    HOME,
    PAGES_URL,
    SERVER_AUTH,
    SERVER_HOST,
    SIGN_IN_LINKS,
    SIGN_IN_PAGE,
)
from infra.processes.processes import module_command, new_mark
from infra.settings import state_folder

FIRST_PORT = 4210
PORTS = 100
# Making a new SQLite database takes 10 to 15 s on an idle machine.
START_TIMEOUT_S = 180.0
STOP_GRACE_S = 10.0
# The caller's Prefect settings that apply to our server, too; all others describe other servers and databases.
_KEPT = ("PREFECT_LOGGING_", PAGES_URL)

log = logging.getLogger("trainwright")


def ensure_server() -> Server:
    """The server to use, started if it is ours and does not run; from then on Prefect in this process uses it.

    Raises:
        StorageUnavailable: the server that the person named does not answer, or ours does not start.
        UsageError: it refuses the credentials, is not a Prefect API, would listen to the network with a password that
            nobody chose, or has flow runs in progress while it must be restarted with a password.
    """
    if theirs := api.chosen_server(_own_url()):
        server = api.reach(*theirs)
        api.warn_if_open(server)
        return server
    with services.locked():
        service = services.running("server")
        if service is not None and not _asks_for_password(service):
            _end_unprotected(service)
            service = None
        started = service is None
        if service is None:
            service = _start()
        else:
            _wait_until_healthy(service)
    api.connect_to(service.url, password.read())
    return Server(service.url, api.pages(service.url), started)


def sign_in_link(server: Server) -> str:
    """An address that signs a browser in to the server's pages, once, within 60 seconds; else the pages' address.

    Our own server and a team's give one; a server that Prefect started, one behind a proxy and Prefect Cloud do not.

    Anyone who sees it in time can sign in with it, so only the person sees it: it is never written to a log that others
    read, and never passed to another program, whose arguments any user of this machine can list.
    """
    import httpx

    known = password.read() if server.ours else api.auth_string()
    if known is None or server.ui_url != api.pages(server.url):
        return server.ui_url
    try:
        # Follows no redirect, which could carry the password elsewhere.
        with httpx.Client(trust_env=not server.ours, timeout=REACH_TIMEOUT_S) as client:
            answer = client.post(f"{server.ui_url}{SIGN_IN_LINKS}", headers=_authorization(known)).raise_for_status()
        return f"{server.ui_url}{SIGN_IN_PAGE}#{answer.json()['token']}"
    except (httpx.HTTPError, OSError, ValueError, LookupError, TypeError) as error:
        log.debug("The Prefect server gave no sign-in link: %s", error)
        return server.ui_url


def server_status() -> Server | None:
    """The server that a command would use now, if it answers; starts nothing."""
    try:
        return expected_server()
    except (StorageUnavailable, UsageError):
        return None


def expected_server() -> Server | None:
    """The server that a command would use now; None if none was started here, or `down` stopped it. Starts nothing.

    Raises:
        StorageUnavailable: it should run and does not answer.
        UsageError: the server that the person named refuses the credentials, or is not a Prefect API.
    """
    if theirs := api.chosen_server(_own_url()):
        return api.reach(*theirs)
    service = services.read("server")
    if service is None or password.read() is None:
        return None
    if not service.is_running():
        raise StorageUnavailable(
            f"The Prefect server of this machine (pid {service.pid}) has died.",
            remedy=f"Start it again: `trainwright up`. Its log is {service.log}.",
        )
    if not _answers(service.url):
        raise StorageUnavailable(
            f"The Prefect server of this machine (pid {service.pid}) runs and does not answer.",
            remedy=f"Restart it: `trainwright down`, then `trainwright up`. Its log is {service.log}.",
        )
    return Server(service.url, api.pages(service.url), started=False)


def connect_if_running() -> bool:
    """Whether a server that a command would use answers; if so, Prefect in this process uses it from then on."""
    server = server_status()
    if server is not None and server.ours:
        api.connect_to(server.url, password.read())
    return server is not None


def stop_server() -> str | None:
    """Stop our server and all its descendants, and delete its password; its address, or None if it did not run.

    Browsers and programs that still know the password send it to the next process that listens at the address.
    """
    with services.locked():
        service = services.read("server")
        stopped = service is not None and service.stop(STOP_GRACE_S)
        password.forget()
        return service.url if service is not None and stopped else None


def _own_url() -> str | None:
    service = services.read("server")
    return service.url if service is not None else None


def _asks_for_password(service: Service) -> bool:
    """Whether the server was started with the password in the state folder; earlier versions' servers were not."""
    known = password.read()
    return known is not None and service.variable(SERVER_AUTH) == known


def _end_unprotected(service: Service) -> None:
    """Stop a server that must be restarted with the password; UsageError if it has flow runs in progress."""
    asked = urllib.request.Request(
        f"{service.url}/flow_runs/count",
        data=json.dumps({"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}).encode(),
        headers={"Content-Type": "application/json", **_authorization(service.variable(SERVER_AUTH))},
    )
    try:
        with _direct().open(asked, timeout=REACH_TIMEOUT_S) as answer:
            running = int(json.load(answer))
    except (OSError, ValueError):
        running = 0  # a server that does not answer serves no run
    if running:
        raise UsageError(
            f"The Prefect server at {service.url} was started without the password that it should ask for, and has "
            f"flow runs in progress ({running}), so it is not restarted.",
            remedy="Wait for them or cancel them with `trainwright down`, then run `trainwright up`.",
        )
    log.warning("The Prefect server at %s was started without the password and is restarted with it.", service.url)
    service.stop(STOP_GRACE_S)


def _start() -> Service:
    host = _host()
    mark = new_mark()
    with _listen(host) as listener:
        port = listener.getsockname()[1]
        if port != urlsplit(_own_url() or "").port:
            # Another process may listen at the last address and may have received the password.
            password.forget()
        reached_at = "127.0.0.1" if ipaddress.ip_address(host).is_unspecified else host
        place = f"[{reached_at}]:{port}" if ":" in reached_at else f"{reached_at}:{port}"
        env = {
            name: value
            for name, value in services.environment(mark).items()
            if not name.startswith("PREFECT_") or name.startswith(_KEPT)
        }
        env |= {
            **ANY_SERVER,
            HOME: str(state_folder() / "prefect"),
            API_URL: f"http://{place}/api",
            SERVER_HOST: host,
            "PREFECT_SERVER_API_PORT": str(port),
            SERVER_AUTH: password.ensure(os.environ.get(SERVER_AUTH)),
            # By default any web page that the person opens may start flow runs here.
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{place},http://localhost:{port}",
        }
        command = module_command("infra.orchestrator.server.serve", str(listener.fileno()))
        url, inherit = env[API_URL], [listener.fileno()]

        def healthy(service: Service) -> None:
            # Otherwise requests to a server that has ended would wait for an answer.
            listener.close()
            _wait_until_healthy(service)

        return services.start("server", command, mark=mark, env=env, url=url, wait=healthy, inherit=inherit)


def _host() -> str:
    """The IP address to listen on: Prefect's own setting, which defaults to this machine alone."""
    address = ip_address_of(os.environ.get(SERVER_HOST) or "127.0.0.1")
    if not address.is_loopback and not os.environ.get(SERVER_AUTH):
        raise UsageError(
            f"{SERVER_HOST} is {address}, which is reachable from the network, but no password is set.",
            remedy=f"Set {SERVER_AUTH} (user:password), or leave the host out.",
        )
    return str(address)


def ip_address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address that PREFECT_SERVER_API_HOST says to listen on; UsageError for another name than `localhost`."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise UsageError(
            f"PREFECT_SERVER_API_HOST is {host!r}, which is not an IP address.",
            remedy="Give an IP address, or leave it out.",
        ) from None


def _listen(host: str) -> socket.socket:
    """A listening socket on the last port, else on the first free port from 4210 up, else on any."""
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
    raise UsageError(f"This machine cannot listen on {host}.", remedy=f"Check {SERVER_HOST}.")


def _wait_until_healthy(service: Service) -> None:
    """Wait until the service answers. Its socket listens from the start, so a request simply waits for the answer."""
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
    try:
        with _direct().open(f"{url}/health", timeout=REACH_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _authorization(known: str | None) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(known.encode()).decode()}"} if known else {}


def _direct() -> urllib.request.OpenerDirector:
    # Without a proxy: HTTP_PROXY would send requests for this machine elsewhere.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
