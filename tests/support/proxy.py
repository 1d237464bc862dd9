"""A real nginx as `trainwright server proxy` configures it, and a server behind it that takes notes."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from infra.orchestrator import team_server
from infra.orchestrator.team_server import ROLES, rules
from tests.support.waiting import listens, until

_LISTED: dict[str, Any] = tomllib.loads(Path(team_server.__file__).with_name("proxy_paths.toml").read_text())
_PAGES = _LISTED.pop("pages")
# Role, method and path below /api; the paths of pages.
API = [(role, method, path) for role, methods in _LISTED.items() for method, paths in methods.items() for path in paths]
PAGES = [*_PAGES["paths"], *(f"/{folder}{rest}" for folder in _PAGES["folders"] for rest in ("", "/", "/a/b-1.js"))]
_RULES = [(re.compile(pattern), role) for pattern, role in rules()]
# Who has which role; nobody has none.
PEOPLE = {"grace": "reader", "ada": "reviewer", "linus": "operator", "nobody": ""}
SECRET = "a password of {}"


def role_of(asked: str) -> str:
    """The least role for `METHOD path`, as nginx finds it."""
    return next((role for pattern, role in _RULES if pattern.search(asked)), "nobody")


def may(role: str, least: str) -> bool:
    """Whether a role may do what another may, too."""
    return role in ROLES and least in ROLES[: ROLES.index(role) + 1]


@contextmanager
def nginx(folder: Path, port: int) -> Iterator[None]:
    """Nginx with the configuration in a folder, to which a certificate and the lists of people are added."""
    asked = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-nodes"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *asked, *files]
    subprocess.run(command, check=True, capture_output=True)
    secrets = "\n".join(SECRET.format(name) for name in PEOPLE)
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"], input=secrets, check=True, capture_output=True, text=True
    ).stdout.split()
    (folder / "people").write_text("".join(f"{name}:{one}\n" for name, one in zip(PEOPLE, hashed, strict=True)))
    (folder / "people").chmod(0o644)
    (folder / "roles").write_text("".join(f"{name} {role};\n" for name, role in PEOPLE.items() if role))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    # pytest's folders are closed to the user that nginx's workers are by default.
    user = "user root;" if os.geteuid() == 0 else ""
    main = f"pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off; {user} events {{}}\n"
    (folder / "nginx.conf").write_text(f"{main}http {{ {places} include {folder}/proxy.conf; }}\n")
    with (folder / "nginx.txt").open("wb") as output:
        process = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")], stdout=output, stderr=output)
    try:
        until(lambda: listens(port), what=(folder / "nginx.txt").read_text)
        yield
    finally:
        process.terminate()
        process.wait(timeout=480)


class Notes(ThreadingHTTPServer):
    """Stands where Prefect's server does, answers 200 to everything and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Noting)
        self.requests: list[tuple[str, str, list[tuple[str, str]]]] = []
        Thread(target=self.serve_forever, daemon=True).start()


class _Noting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Notes

    def parse_request(self) -> bool:
        """Answer every method, and keep the connection as it is."""
        if not super().parse_request():
            return False
        self.server.requests.append((self.command, self.path, self.headers.items()))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def sent(port: int, request: bytes) -> list[int]:
    """The statuses of what the proxy answers to these bytes, sent as they are over TLS."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=120) as plain, trusting.wrap_socket(plain) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]
