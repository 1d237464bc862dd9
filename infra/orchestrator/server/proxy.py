"""Write nginx's configuration for a team's server: a password and a role for each person.

nginx decides by method and path alone: `proxy_paths.toml` says which role each of Prefect's paths needs, and
`proxy.conf` is the text around it. The server behind it learns a person's name from a header (`signed_in.py`).
"""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from data_contracts.errors import UsageError
from infra.files import replace_private, replace_text
from infra.orchestrator.server.server import ip_address_of
from infra.orchestrator.server.team_server import Settings
from infra.orchestrator.variables import PAGES_URL

# From the role that may do least to the one that may do most.
ROLES = ("reader", "reviewer", "operator")
_HERE = Path(__file__).parent
# One part of a path, in which no character has a second meaning: neither "%2f" nor a leading dot.
_SEGMENT = "(?:[A-Za-z0-9_~-]|%20)(?:[A-Za-z0-9._~:@+-]|%20)*"


def write_proxy(folder: Path, settings: Settings) -> None:
    """Write nginx's configuration of this server into a folder; the lists of people and roles there stay as they are.

    Raises:
        UsageError: no address with https is set, or the folder cannot be written.
    """
    address = re.fullmatch(r"https://([A-Za-z0-9.-]+(?::\d{1,5})?)/api/?", settings.pages_url or "")
    if address is None:
        raise UsageError(
            f"{PAGES_URL} is {settings.pages_url!r}, which is not the address of a proxy with TLS.",
            remedy="Set the address under which people will reach the API, such as https://prefect.example/api.",
        )
    place = folder.resolve()
    if not re.fullmatch(r"[A-Za-z0-9/._-]+", str(place)):
        raise UsageError(f"{place} has a character that nginx reads in another way.", remedy="Name another folder.")
    credentials = base64.b64encode(settings.auth_string.encode()).decode()
    try:
        place.mkdir(parents=True, exist_ok=True)
        replace_private(place / "server-password", f'proxy_set_header Authorization "Basic {credentials}";\n')
        replace_text(place / "proxy.conf", _configuration(place, settings, address[1]))
        for name in ("people", "roles"):
            (place / name).touch(mode=0o640)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}.", remedy="Name another folder.") from error


def rules() -> Iterator[tuple[str, str]]:
    """Regular expressions of `METHOD path`, each with the least role that may do so; the first that matches counts."""
    roles = tomllib.loads((_HERE / "proxy_paths.toml").read_text())
    pages = roles.pop("pages")
    for role in ("nobody", *reversed(ROLES)):
        for method, paths in roles[role].items():
            for path in paths:
                yield f"^{method} /api{_pattern(path)}$", role
    yield f"^GET (?:{'|'.join(map(_pattern, pages['paths']))})$", ROLES[0]
    yield f"^GET /(?:{'|'.join(pages['folders'])})(?:/.*)?$", ROLES[0]


def _pattern(path: str) -> str:
    return "[^/]+".join(re.escape(part) for part in re.split(r"\{[^}]*\}", path))


def _configuration(folder: Path, settings: Settings, address: str) -> str:
    name, _, port = address.partition(":")
    # An address: a name may have another one, too, on which somebody else may listen and would get the password.
    listens = str(ip_address_of(settings.host))
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listens, listens)
    may = ((role, least) for place, role in enumerate(ROLES) for least in ROLES[: place + 1])
    values = {
        "folder": str(folder),
        "segment": _SEGMENT,
        "rules": "\n".join(f'    "~{pattern}" {role};' for pattern, role in rules()),
        "roles": "\n".join(f'    "{role} {least}" yes;' for role, least in may),
        "server": f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}",
        "port": port or "443",
        "name": name,
        "host": address,
    }
    text = (_HERE / "proxy.conf").read_text()
    return re.sub(r"\{(\w+)\}", lambda field: values.get(field[1], field[0]), text)
