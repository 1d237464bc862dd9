"""A real receiver of messages, and the blocks of a Prefect server that send to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.pool import Site
from tests.support.stub_server import Asked, serving


@dataclass
class Receiver:
    """Keeps each message that it gets, as (path, JSON object)."""

    url: str
    requests: list[Asked]

    @property
    def messages(self) -> list[tuple[str, dict[str, Any]]]:
        return [(asked.path, asked.json) for asked in list(self.requests)]

    def subjects(self, path: str) -> list[str]:
        return sorted(message["subject"] for where, message in self.messages if where == path)


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that answers."""
    with serving(lambda asked: (200, {})) as (url, requests):
        yield Receiver(url, requests)


def block(site: Site, name: str, data: dict[str, Any]) -> str:
    """Make a block, as a person makes it in the Prefect UI; its id."""
    kind, _, own = name.partition("/")
    of = site.ask(f"/block_types/slug/{kind}", method="GET")
    [schema, *_] = site.ask("/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [of["id"]]}}})
    about = {"block_type_id": of["id"], "block_schema_id": schema["id"]}
    return str(site.ask("/block_documents/", {"name": own, "data": data, **about})["id"])
