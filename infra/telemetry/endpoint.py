"""The page that Prometheus pulls: `GET /metrics`, for whoever shows the secret as a bearer token, and nothing else."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from infra.telemetry.exposition import Common, Samples, page

# A client that sends nothing for so long is left.
CLIENT_S = 10.0
# Whoever reaches the port may connect, and each client takes a thread and a file descriptor of the run.
MOST_CLIENTS = 16
PATH = "/metrics"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Another process must not be able to listen on the same port, and this one not beside another.
    allow_reuse_address = False
    allow_reuse_port = False

    def __init__(self, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__(*arguments)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a place for another client; `process_request_thread` frees it."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's fault."""


class Endpoint:
    """Serves one process's metrics until `close`.

    Raises: OSError if no port of `ports` is free, or the address is not of this machine.
    """

    def __init__(self, address: str, ports: Sequence[int], token: str, common: Common, samples: Samples) -> None:
        handler = _handler(token.encode(), common, samples)
        self._server = _first_free(address, ports, handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _first_free(address: str, ports: Sequence[int], handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    refused = OSError("no port is named")
    for port in ports:
        try:
            return Server((address, port), handler)
        except OSError as error:
            refused = error
    raise refused


def _handler(token: bytes, common: Common, samples: Samples) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S
        server_version, sys_version = "trainwright", ""

        def do_GET(self) -> None:
            shown = self.headers.get("Authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(shown, b"Bearer " + token):
                self._answer(HTTPStatus.UNAUTHORIZED, b"", "text/plain", {"WWW-Authenticate": "Bearer"})
            elif self.path.partition("?")[0] != PATH:
                self._answer(HTTPStatus.NOT_FOUND, b"", "text/plain", {})
            else:
                body, kind = page(common, samples(), self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, body, kind, {})

        def _answer(self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads who scraped."""

    return Handler
