"""A real receiver of messages, and the blocks of a Prefect server that send to it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.pool import Site


class Receiver(ThreadingHTTPServer):
    """Keeps each message that it gets, as (path, JSON object)."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def subjects(self, path: str) -> list[str]:
        return sorted(message["subject"] for where, message in self.messages if where == path)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Receiver)
        self.server.messages.append((self.path, json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that answers."""
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def block(site: Site, name: str, data: dict[str, Any]) -> str:
    """Make a block, as a person makes it in the Prefect UI; its id."""
    kind, _, own = name.partition("/")
    of = site.ask(f"/block_types/slug/{kind}", method="GET")
    [schema, *_] = site.ask("/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [of["id"]]}}})
    about = {"block_type_id": of["id"], "block_schema_id": schema["id"]}
    return str(site.ask("/block_documents/", {"name": own, "data": data, **about})["id"])
