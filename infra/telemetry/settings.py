"""What the operator asks for in the environment: where metrics are pulled or pushed, and who may pull them."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from data_contracts.errors import UsageError
from infra.files.atomic import replace_private
from infra.files.locks import locked
from infra.machine.settings import state_folder
from infra.telemetry.otlp_settings import is_url

# A port such as `9400`, or a range such as `9400-9409` of which the first free one is taken.
METRICS_PORT = "TRAINWRIGHT_METRICS_PORT"
# The address that the port is opened on; by default loopback.
METRICS_ADDRESS = "TRAINWRIGHT_METRICS_ADDRESS"
# The file with the secret that a scrape must show; by default `metrics-token` in the state folder, made if absent.
METRICS_TOKEN_FILE = "TRAINWRIGHT_METRICS_TOKEN_FILE"
# The URL of a Pushgateway.
METRICS_PUSH = "TRAINWRIGHT_METRICS_PUSH"
LOOPBACK = "127.0.0.1"
_LEAST_TOKEN = 16


@dataclass(frozen=True)
class MetricsSettings:
    """Where a process's metrics go.

    Attributes:
        ports: to try in order; empty: they are not pulled.
        push: URL of a Pushgateway; "": they are not pushed.
    """

    ports: tuple[int, ...] = ()
    address: str = LOOPBACK
    push: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether anybody wants them."""
        return bool(self.ports or self.push)


def metrics_settings(environ: Mapping[str, str] = os.environ) -> MetricsSettings:
    """The settings in the environment; UsageError that names the variable that is wrong."""
    ports = _ports(environ.get(METRICS_PORT, "").strip())
    push = environ.get(METRICS_PUSH, "").strip().rstrip("/")
    if push:
        _check_url(push)
    return MetricsSettings(ports, environ.get(METRICS_ADDRESS, "").strip() or LOOPBACK, push)


def metrics_token(environ: Mapping[str, str] = os.environ) -> str:
    """The secret of this user's metrics, made if there is none; UsageError if others may have read it."""
    named = environ.get(METRICS_TOKEN_FILE)
    path = Path(named) if named else state_folder() / "metrics-token"
    if not named:
        with locked(path.parent):  # of two processes at once, both have the same secret
            if not path.exists():
                replace_private(path, f"{secrets.token_urlsafe(32)}\n")
    try:
        with path.open() as file:
            mode, token = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The secret of the metrics cannot be read from {path}.", remedy=f"Correct {METRICS_TOKEN_FILE}."
        ) from error
    if mode & 0o077:
        raise UsageError(
            f"Other users of this machine may have read the secret of the metrics in {path} (its mode is {mode:04o}).",
            remedy="Write a new secret into it, with mode 0600, and give it to Prometheus.",
        )
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"The secret of the metrics in {path} is not one word of at least {_LEAST_TOKEN} ASCII characters.",
            remedy="Delete the file and a secret is made, or write one of random characters into it.",
        )
    return token


def _ports(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= 65_535:
        raise UsageError(f"{METRICS_PORT} is not a port such as 9400, nor a range such as 9400-9409.")
    return tuple(range(first, last + 1))


def _check_url(url: str) -> None:
    if not is_url(url):
        raise UsageError(f"{METRICS_PUSH} is not a URL such as http://gateway:9091.")
    if "@" in urlsplit(url).netloc or urlsplit(url).query:
        raise UsageError(
            f"{METRICS_PUSH} holds a password or a query, which logs would show.",
            remedy=f"Leave it out: the secret in {METRICS_TOKEN_FILE} is sent as a bearer token.",
        )
