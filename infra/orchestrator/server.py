"""Trainwright's own Prefect server, started if it does not run; its password; how it and the worker are found again.

The server runs below the state folder with its own PREFECT_HOME and SQLite database, on the loopback interface, with a
password and without analytics. It uses the same port again if that is free. It runs until `down`.

The password is in a file that only its owner can read. Prefect calls it the auth string (`user:password`) and expects
all of it wherever it asks for a password. It is made when a server first starts and deleted by `trainwright down`.
Processes pass it on in environments, which only the owner can read as well; it never appears in an address, an argument
or a log.

A service, the server or the worker, outlives the command that started it. It is known by a state file (pid, mark,
address) in the state folder, and counts as ours only while the process with that pid carries that mark in its
environment. So a pid that was reused, or a stranger's process on the same port, is never used and never signalled. The
mark is safer than a start time, which shifts when the clock is set.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from data_contracts.errors import StorageUnavailable, UsageError
from infra import files, scratch
from infra.files import replace_private
from infra.orchestrator import api
from infra.orchestrator.api import (
    ANY_SERVER,
    API_URL,
    HOME,
    PAGES_URL,
    REACH_TIMEOUT_S,
    SERVER_AUTH,
    SERVER_HOST,
    SIGN_IN_LINKS,
    SIGN_IN_PAGE,
    Server,
)
from infra.processes.processes import (
    MARK,
    find_marked,
    is_alive,
    kill_marked,
    marked_env,
    module_command,
    new_mark,
    uninterrupted,
)
from infra.settings import state_folder

FIRST_PORT = 4210
PORTS = 100
# Making a new SQLite database takes 10 to 15 s on an idle machine.
START_TIMEOUT_S = 180.0
STOP_GRACE_S = 10.0
# The caller's Prefect settings that apply to our server, too; all others describe other servers and databases.
_KEPT = ("PREFECT_LOGGING_", PAGES_URL)
# A shell starts jobs with `&` with SIGINT ignored, and all children inherit that. A worker that inherits it ignores its
# first signal and continues to take runs.
_FRESH_SIGNALS = (
    "import os, signal, sys\n"
    "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)

log = logging.getLogger("trainwright")


def ensure_server() -> Server:
    """The server to use, started if it is ours and does not run; from then on Prefect in this process uses it.

    Raises:
        StorageUnavailable: the server that the person named does not answer, or ours does not start.
        UsageError: it refuses the credentials, is not a Prefect API, would listen to the network with a password that
            nobody chose, or has flow runs in progress while it must be restarted with a password.
    """
    if theirs := api.chosen_server(_own_url()):
        return api.reach(*theirs)
    with locked_services():
        service, password = running_service("server"), read_password()
        if service is not None and (password is None or service.variable(SERVER_AUTH) != password):
            log.warning("The Prefect server at %s has another password than its file and is restarted.", service.url)
            service.stop(STOP_GRACE_S)
            service = None
        started = service is None
        if service is None:
            service = _start()
        else:
            _wait_until_healthy(service)
    api.connect_to(service.url, read_password())
    return Server(service.url, api.pages(service.url), started)


def sign_in_link(server: Server) -> str:
    """An address that signs a browser in to the server's pages, once, within 60 seconds; else the pages' address.

    Our own server and a team's give one; a server that Prefect started, one behind a proxy and Prefect Cloud do not.

    Anyone who sees it in time can sign in with it, so only the person sees it: it is never written to a log that others
    read, and never passed to another program, whose arguments any user of this machine can list.
    """
    import httpx

    known = read_password() if server.ours else api.auth_string()
    if known is None or server.ui_url != api.pages(server.url):
        return server.ui_url
    credentials = f"Basic {base64.b64encode(known.encode()).decode()}"
    try:
        # Follows no redirect, which could carry the password elsewhere.
        with httpx.Client(trust_env=not server.ours, timeout=REACH_TIMEOUT_S) as client:
            answer = client.post(
                f"{server.ui_url}{SIGN_IN_LINKS}", headers={"Authorization": credentials}
            ).raise_for_status()
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
    service = read_service("server")
    if service is None or read_password() is None:
        return None
    if not service.is_running():
        raise StorageUnavailable(
            f"The Prefect server of this machine (pid {service.pid}) has died.",
            remedy=f"Start it again: `trainwright up`. Its log is {service.log}.",
        )
    if not _answers(service.url, api.FIRST_ANSWER_S):
        raise StorageUnavailable(
            f"The Prefect server of this machine (pid {service.pid}) runs and does not answer.",
            remedy=f"Restart it: `trainwright down`, then `trainwright up`. Its log is {service.log}.",
        )
    return Server(service.url, api.pages(service.url), started=False)


def connect_if_running() -> bool:
    """Whether a server that a command would use answers; if so, Prefect in this process uses it from then on."""
    server = server_status()
    if server is not None and server.ours:
        api.connect_to(server.url, read_password())
    return server is not None


def stop_server() -> str | None:
    """Stop our server and all its descendants, and delete its password; its address, or None if it did not run.

    Browsers and programs that still know the password send it to the next process that listens at the address.
    """
    with locked_services():
        service = read_service("server")
        stopped = service is not None and service.stop(STOP_GRACE_S)
        forget_password()
        return service.url if service is not None and stopped else None


def _own_url() -> str | None:
    service = read_service("server")
    return service.url if service is not None else None


def _start() -> Service:
    host = _host()
    mark = new_mark()
    with _listen(host) as listener:
        port = listener.getsockname()[1]
        if port != urlsplit(_own_url() or "").port:
            # Another process may listen at the last address and may have received the password.
            forget_password()
        reached_at = "127.0.0.1" if ipaddress.ip_address(host).is_unspecified else host
        place = f"[{reached_at}]:{port}" if ":" in reached_at else f"{reached_at}:{port}"
        env = {
            name: value
            for name, value in service_environment(mark).items()
            if not name.startswith("PREFECT_") or name.startswith(_KEPT)
        }
        env |= {
            **ANY_SERVER,
            HOME: str(state_folder() / "prefect"),
            API_URL: f"http://{place}/api",
            SERVER_HOST: host,
            "PREFECT_SERVER_API_PORT": str(port),
            SERVER_AUTH: ensure_password(os.environ.get(SERVER_AUTH)),
            # By default any web page that the person opens may start flow runs here.
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{place},http://localhost:{port}",
        }
        command = module_command("infra.orchestrator.serve", str(listener.fileno()))
        url, inherit = env[API_URL], [listener.fileno()]

        def healthy(service: Service) -> None:
            # Otherwise requests to a server that has ended would wait for an answer.
            listener.close()
            _wait_until_healthy(service)

        return start_service("server", command, mark=mark, env=env, url=url, wait=healthy, inherit=inherit)


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
    for port in [*([last] if last else []), *range(FIRST_PORT, FIRST_PORT + PORTS), 0]:
        with contextlib.suppress(OSError):
            return listen_on(host, port)
    raise UsageError(f"This machine cannot listen on {host}.", remedy=f"Check {SERVER_HOST}.")


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket on an IP address; that of `::` takes connections by IPv4, too."""
    by_ipv6 = ":" in host
    family = socket.AF_INET6 if by_ipv6 else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=by_ipv6)


def _wait_until_healthy(service: Service) -> None:
    """Wait until the service answers. Its socket listens from the start, so a request simply waits for the answer."""
    name, is_late = "The local Prefect server", "did not answer"
    service.wait_until(lambda: _answers(service.url), START_TIMEOUT_S, name, is_late)


def _answers(url: str, timeout_s: float = REACH_TIMEOUT_S) -> bool:
    try:
        # Without a proxy: HTTP_PROXY would send requests for this machine elsewhere.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def password_path() -> Path:
    """The file that holds the password."""
    return state_folder() / "password"


def read_password() -> str | None:
    """The password; None if there is none.

    Raises:
        UsageError: other users of this machine may have read it.
    """
    try:
        with password_path().open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            known = file.read().strip()
    except FileNotFoundError:
        return None
    if mode & 0o077:
        raise UsageError(
            f"Other users of this machine may have read the password in {password_path()} (its mode is {mode:04o}).",
            remedy="Delete the file and run `trainwright up`: it makes a new password and restarts the server and the "
            "worker.",
        )
    return known or None


def ensure_password(chosen: str | None = None) -> str:
    """The password, made if there is none; `chosen`, set by the person, replaces it. Call this under `locked`."""
    known = read_password()
    wanted = chosen or known or f"trainwright:{secrets.token_urlsafe(32)}"
    if wanted != known:
        replace_private(password_path(), f"{wanted}\n")
    return wanted


def forget_password() -> None:
    """Delete the password: the next server gets another."""
    password_path().unlink(missing_ok=True)


@dataclass(frozen=True)
class Service:
    """One started service.

    Attributes:
        name: `server` or `worker`; the state file is `<name>.json`, its log `<name>.log`.
        mark: the mark in the environment of the process and all its descendants.
        url: address of the Prefect API that it serves or uses.
    """

    name: str
    pid: int
    mark: str
    url: str

    @property
    def log(self) -> Path:
        """The file with what the service printed since its start."""
        return state_folder() / f"{self.name}.log"

    def is_running(self) -> bool:
        """Whether the process runs and is ours."""
        return self.pid in find_marked(self.mark)

    def variable(self, name: str) -> str | None:
        """A variable of the process's environment; None if it is not set, or the process has ended."""
        try:
            return psutil.Process(self.pid).environ().get(name)
        except psutil.Error:
            return None

    def last_words(self) -> str:
        """The last line of the service's log, or ''."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float, name: str, is_late: str) -> None:
        """Wait until the service, which was started just now, is ready.

        Args:
            name: of the service, at the beginning of a sentence.
            is_late: what it did not do in time, in a sentence.

        Raises:
            StorageUnavailable: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running():
                raise StorageUnavailable(
                    f"{name} ended while starting: {self.last_words() or 'it said nothing'}",
                    remedy=f"Its log is {self.log}.",
                )
            if time.monotonic() > deadline:
                raise StorageUnavailable(
                    f"{name} (pid {self.pid}) {is_late} within {timeout_s:.0f} s.",
                    remedy=f"Its log is {self.log}; `trainwright down` stops it.",
                )
            time.sleep(0.05)

    def stop(self, grace_s: float) -> bool:
        """End the service and all its descendants, with SIGTERM and `grace_s` seconds first; False if nothing ran."""
        running = self.is_running()
        if running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while is_alive(self.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
        # Also if it ended by itself: its descendants may still run.
        return bool(kill_marked(self.mark)) or running


def read_service(name: str) -> Service | None:
    """The service that the state file names, running or not; None without a readable file."""
    try:
        return Service(name, **json.loads((state_folder() / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def forget_service(name: str) -> None:
    """Delete the state file of a service that was stopped on purpose; one that died keeps it."""
    (state_folder() / f"{name}.json").unlink(missing_ok=True)


def running_service(name: str) -> Service | None:
    """The service, if it runs and is ours; else None."""
    service = read_service(name)
    return service if service is not None and service.is_running() else None


def start_service(
    name: str,
    command: Sequence[str],
    *,
    mark: str,
    env: Mapping[str, str],
    url: str,
    wait: Callable[[Service], None],
    inherit: Sequence[int] = (),
) -> Service:
    """Start a service detached from this terminal, in the state folder, with its output in its log.

    Args:
        env: its whole environment, from `environment`.
        wait: returns once the service is ready; any exception in it, including a signal's, ends the service again.
        inherit: file descriptors that the service takes over.
    """
    folder = state_folder()
    log = folder / f"{name}.log"
    if log.exists():
        log.replace(folder / f"{name}.previous.log")
    try:
        with open(log, "wb", opener=partial(os.open, mode=0o600)) as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _FRESH_SIGNALS, *command],
                env=dict(env),
                # Not the caller's folder: Prefect would read its .env and prefect.toml.
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherit,
            )
        service = Service(name, process.pid, mark, url)
        fields = asdict(service)
        del fields["name"]
        # Another user who knows the mark could present their own process as ours.
        replace_private(folder / f"{name}.json", json.dumps(fields))
        wait(service)
    except BaseException:
        with uninterrupted():
            kill_marked(mark)
        raise
    return service


def service_environment(mark: str) -> dict[str, str]:
    """This process's environment for a service, with `mark` as its only mark.

    A service outlives the run that happened to start it, so it must not be found as that run's descendant. In its
    TMPDIR no other user can take a name that Prefect is about to use.
    """
    return {**marked_env(mark), MARK: mark, "TMPDIR": str(scratch.unshared_root())}


@contextlib.contextmanager
def locked_services() -> Iterator[None]:
    """Hold this state folder's lock, so that of two commands one starts a service and the other finds it."""
    with files.locked(state_folder() / "services.lock"):
        yield
