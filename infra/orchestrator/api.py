"""Decide which Prefect API this process uses, and ask it.

The order is the one that a Prefect user expects: `PREFECT_API_URL` in the environment, else the server of the person's
active Prefect profile, else Trainwright's own (`server.py`). Profiles are read, never written.

Prefect also takes settings from `prefect.toml`, `pyproject.toml` and `.env` of the current folder. Some of them choose
a server, which is then sent the user's own key, or a file of logging settings, which may name any program. Those of a
server say where it listens, which `server proxy` believes, and which module passes its messages on. So these come from
the environment or a profile alone: `refuse_settings_of` looks before Prefect is imported.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from data_contracts.errors import AWAY, SERVER, StorageUnavailable, UsageError
from data_contracts.foreign_files import read_plain
from data_contracts.quoting import text_of
from infra.settings import state_folder

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


T = TypeVar("T")
API_URL = "PREFECT_API_URL"
# The `user:password` that a client shows, and the one that a server asks for.
API_AUTH = "PREFECT_API_AUTH_STRING"
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
SERVER_HOST = "PREFECT_SERVER_API_HOST"
PAGES_URL = "PREFECT_SERVER_UI_API_URL"
HOME = "PREFECT_HOME"
LEASE_STORAGE = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"

# Where our servers sign a browser in, and where they give a link for it.
SIGN_IN_PAGE = "/trainwright/sign-in"
SIGN_IN_LINKS = "/trainwright/links"
# Begins the name of who answers a form if a team's proxy checked it; nobody can state such a name.
SIGNED_IN = "signed in as "

NO_ANALYTICS = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
ANY_SERVER = {
    **NO_ANALYTICS,
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # By default leases are in the server's memory: after a restart it would count their slots for ever.
    LEASE_STORAGE: "prefect.server.concurrency.lease_storage.filesystem",
}


REACH_TIMEOUT_S = 5.0
# Of a command's first question: a server that is only busy must not end the command.
FIRST_ANSWER_S = 20.0
# The most that a Prefect server returns in one answer by default (PREFECT_API_DEFAULT_LIMIT).
MOST_ITEMS = 200
# Between two questions of one who waits for something on the server.
ASK_S = 2.0
# As variables, without PREFECT_.
_NOT_BY_A_FOLDER = (
    "API_", "CLIENT_", "EXPERIMENTS_PLUGINS", "HOME", "LOGGING_CONFIG_PATH", "LOGGING_SETTINGS_PATH", "MEMO_STORE_PATH",
    "MESSAGING_", "PLUGINS", "PROFILE", "SERVER_", "UI_",
)  # fmt: skip
_PREFIX = "PREFECT_"

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Server:
    """A Prefect server that answers.

    Attributes:
        url: address of its API.
        ui_url: address of its pages.
        started: whether this call started it.
        ours: whether it is the server that `trainwright up` starts and `down` stops.
    """

    url: str
    ui_url: str
    started: bool
    ours: bool = True


def chosen_server(own_url: str | None) -> tuple[str, str] | None:
    """The server that the person chose: its address and where they named it; None if it is ours at `own_url`."""
    for url, where in ((os.environ.get(API_URL), API_URL), _from_profile()):
        if url:
            # Child processes inherit our own address; the person did not choose it.
            return None if url.rstrip("/") == own_url else (url.rstrip("/"), where)
    return None


def reach(url: str, where: str) -> Server:
    """The person's own server, if it answers as a Prefect API that accepts our credentials.

    Raises:
        StorageUnavailable: it does not answer, or answers with an error.
        UsageError: it refuses the credentials, or is not a Prefect API.
    """
    _expect(url)
    import httpx
    from prefect.client.base import ServerType
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings

    shown = f"The Prefect server at {_without_password(url)} (from {where})"
    try:
        with (
            client_retries(0),
            get_client(sync_client=True, httpx_settings=client_settings(FIRST_ANSWER_S)) as client,
        ):
            if problem := client.api_healthcheck():
                raise problem
            if client.server_type == ServerType.SERVER:
                # /health needs no credentials, and any web server may have one.
                client.api_version()
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise UsageError(
                f"{shown} refuses the credentials ({status}).",
                remedy="Set PREFECT_API_KEY (Prefect Cloud) or PREFECT_API_AUTH_STRING.",
            ) from error
        if status < 500:
            raise UsageError(f"{shown} is not a Prefect API ({status}).", remedy="Its address ends in /api.") from error
        raise StorageUnavailable(f"{shown} answers with an error ({status}).", remedy="Look at its log.") from error
    except (httpx.TransportError, OSError) as error:
        raise StorageUnavailable(
            f"{shown} does not answer: {error}.",
            remedy="Start that server on its machine (a team's: `systemctl start trainwright-server`, or `trainwright "
            f"server start`), or remove the setting from {where}: `trainwright up` then starts one of your own.",
        ) from error
    except (ValueError, httpx.InvalidURL) as error:
        raise UsageError(f"{shown} is not a Prefect API.", remedy="Its address ends in /api.") from error
    return Server(url, get_current_settings().ui_url or pages(url), started=False, ours=False)


def auth_string() -> str | None:
    """The `user:password` that Prefect in this process shows to the person's own server; None if there is none."""
    from prefect.settings import get_current_settings

    known = get_current_settings().api.auth_string
    return known.get_secret_value() if known is not None else None


@contextlib.contextmanager
def asking(retries: int = 0) -> Iterator[SyncPrefectClient]:
    """A client that gives up soon on a silent server.

    Raises:
        StorageUnavailable: no server is known here. Prefect would start one of its own, which takes seconds, has no
            password, and knows nothing of the pipeline. Within a flow that was called so, it is there already.
    """
    from prefect.client.orchestration import get_client
    from prefect.context import FlowRunContext
    from prefect.settings import get_current_settings

    if get_current_settings().api.url is None and FlowRunContext.get() is None:
        raise StorageUnavailable(
            "No Prefect server is known here.", remedy="Start one (`trainwright up`), or set PREFECT_API_URL."
        )
    with (
        client_retries(retries),
        get_client(sync_client=True, httpx_settings=client_settings(REACH_TIMEOUT_S)) as client,
    ):
        yield client


def if_there(read: Callable[[], T]) -> T | None:
    """What `read` gets from the server; None if the server has no such thing."""
    from prefect.exceptions import ObjectNotFound

    with contextlib.suppress(ObjectNotFound):
        return read()
    return None


def every_page(read: Callable[[int], Sequence[T]]) -> list[T]:
    """All that the server has: `read` gets a page from an offset on, until one is empty."""
    found: list[T] = []
    while page := read(len(found)):
        found += page
    return found


@contextlib.contextmanager
def client_retries(number: int) -> Iterator[None]:
    """Within this context, Prefect's clients repeat a failed request `number` times; their default takes minutes.

    Only this setting is replaced. `temporary_settings` would read all settings from their sources again: 50 ms.
    """
    from prefect.context import SettingsContext, get_settings_context

    context = get_settings_context()
    client = context.settings.client.model_copy(update={"max_retries": number})
    with SettingsContext(profile=context.profile, settings=context.settings.model_copy(update={"client": client})):
        yield


def client_settings(timeout_s: float, **more: Any) -> dict[str, Any]:
    """Settings of a Prefect client that waits so long for an answer.

    For each client, Prefect reads the certificates of all authorities, which takes longer than a request. A server
    without TLS shows none; should it lead elsewhere, that place is not trusted.
    """
    import ssl

    from prefect.settings import get_current_settings

    if urlsplit(get_current_settings().api.url or "").scheme == "http":
        more["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {"timeout": timeout_s, **more}


def unreachable(error: BaseException) -> StorageUnavailable | None:
    """StorageUnavailable if this error or a cause of it means that the Prefect server is unreachable; else None."""
    import httpx

    link: BaseException | None = error
    while link is not None:
        happened = None
        if isinstance(link, httpx.HTTPStatusError) and link.response.status_code >= 500:
            happened = f"answers with an error ({link.response.status_code})"
        elif isinstance(link, httpx.TransportError):
            happened = f"no longer answers: {type(link).__name__}: {link}"
        if happened is not None:
            return StorageUnavailable(
                f"The Prefect server {happened}.",
                remedy="Look at its log, and whether its database answers. Start what has died (`trainwright up` for "
                "your own server, a team's as it was started) and resume the run; sealed results are kept.",
                details={AWAY: SERVER},
            )
        link = link.__cause__ or link.__context__
    return None


@contextlib.contextmanager
def unreachable_is_unavailable() -> Iterator[None]:
    """Within this context, an error that means that the Prefect server is unreachable becomes StorageUnavailable."""
    try:
        yield
    except Exception as error:
        away = unreachable(error)
        if away is None:
            raise
        raise away from error


def connect_to(url: str, password: str | None) -> None:
    """Make Prefect in this process and its children use our own server at `url`; call this before importing Prefect.

    Args:
        password: the server's password; it goes into the environment, which only this user can read.
    """
    _expect(url)
    host = urlsplit(url).hostname or ""
    direct = [part for part in os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")).split(",") if part]
    if host not in direct:
        # HTTP_PROXY would send requests for this machine elsewhere.
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join([*direct, host])
    os.environ[API_URL] = url
    # A home of its own: a key in the person's profile is not for this server.
    os.environ[HOME] = str(state_folder() / "prefect")
    os.environ.update(NO_ANALYTICS)
    # Without an address Prefect would start a server of its own, which has no password.
    os.environ["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "false"
    os.environ.pop(API_AUTH, None)
    if password:
        os.environ[API_AUTH] = password


def pages(url: str) -> str:
    """Address of the pages of a self-hosted server."""
    return url.removesuffix("/api")


def _from_profile() -> tuple[str | None, str]:
    home = Path(os.environ.get(HOME) or Path.home() / ".prefect").expanduser()
    path = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    try:
        known = tomllib.loads(path.read_text())
        active = os.environ.get("PREFECT_PROFILE") or known["active"]
        return known["profiles"][active].get(API_URL), f"the active Prefect profile {active!r}"
    except (OSError, ValueError, KeyError, AttributeError):
        return None, ""


def _expect(url: str) -> None:
    """Check that Prefect uses `url`: it reads its settings once, and imported too early it starts a server."""
    settings = sys.modules.get("prefect.settings")
    if settings is not None:
        known = settings.get_current_settings().api.url
        assert known is not None, "Prefect was imported before its server was known"
        assert known.rstrip("/") == url, f"Prefect in this process already talks to {known}, not to {url}"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def refuse_settings_of(folder: Path) -> None:
    """UsageError if a file of a folder sets what only its user may; the `prefect.toml` that `up` writes may stay."""
    for path, name, value in _settings_in(folder):
        if name == "PROFILES_PATH" and _is_of_this_user(value, folder):
            continue
        if name.startswith(_NOT_BY_A_FOLDER):
            raise UsageError(
                f"{path}: sets Prefect's PREFECT_{name}, by which files of a project could choose the server that gets "
                "your key, or a program.",
                remedy="Take it out, and set it in the environment or in a profile if you want it.",
            )


def _is_of_this_user(profiles: object, folder: Path) -> bool:
    """Whether a file of profiles is this user's own and did not come with the folder."""
    path = Path(str(profiles)).resolve()
    return path.is_file() and path.stat().st_uid == os.geteuid() and not path.is_relative_to(folder.resolve())


def _settings_in(folder: Path) -> Iterator[tuple[Path, str, Any]]:
    for name, section in (("prefect.toml", ()), ("pyproject.toml", ("tool", "prefect"))):
        path = folder / name
        settings: Any = _read(path, tomllib.loads)
        for part in section:
            settings = settings.get(part, {})
            if not isinstance(settings, dict):
                raise _unreadable(path, f"{part} is not a table")
        yield from ((path, *setting) for setting in _flat(settings, ""))
    path = folder / ".env"
    if path.is_file() or path.is_fifo():
        from dotenv import dotenv_values  # as Prefect reads it: a name may be in quotation marks

        variables = _read(path, lambda text: dotenv_values(stream=io.StringIO(text), interpolate=False))
        for variable, text in variables.items():
            if variable.upper().startswith(_PREFIX):
                yield from ((path, *setting) for setting in _flat({variable: _value(text)}, ""))


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    """What a file holds; {} if there is none. UsageError where importing Prefect would hang or crash."""
    try:
        return parse(read_plain(path).decode())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise _unreadable(path, text_of(error)) from error


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} cannot be read: {why}.", remedy="Mend it, or take it away: Prefect reads it, too.")


def _value(text: str | None) -> Any:
    """What a variable sets: `PREFECT_API` may hold all settings whose names begin so, as JSON."""
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return text


def _flat(settings: Mapping[str, object], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        # Inside a group, a setting may also have its whole name.
        name = f"{before}{key}".upper().rpartition(_PREFIX)[2]
        if isinstance(value, dict):
            yield from _flat(value, f"{name}_")
        else:
            yield name, value
