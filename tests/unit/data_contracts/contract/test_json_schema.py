"""A suite's JSON Schema is looked up in itself alone: no address that it names is opened."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.contract.engine import check
from data_contracts.contract.suites import ForeignReference, local_schema
from data_contracts.errors import SpecError
from tests.support.expectations import E, reader, run

ROWS = pa.table({"t": ['{"n": 1}', '{"n": "a"}', "[]"]})


@pytest.fixture
def address() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the paths that were asked of it."""
    asked: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/schema", asked
        server.shutdown()


FOREIGN: list[dict[str, Any]] = [
    {"$ref": "@"},
    {"items": {"$ref": "@#/a"}},
    {"anyOf": [{"$dynamicRef": "@"}]},
    {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "@"},
    {"$id": "@", "$ref": "other"},
    {"$defs": {"a": {"$id": "@", "$ref": "#/b"}}, "$ref": "#/$defs/a"},
    {"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "#/a", "a": {"id": "@", "allOf": [{"$ref": "#/b"}]}},
    {"$ref": "#/x/a", "x": {"a": {"$id": "@", "$ref": "#"}}},
]


@pytest.mark.parametrize("schema", FOREIGN, ids=str)
def test_a_schema_that_leads_out_is_refused_and_nothing_is_fetched(
    schema: dict[str, Any], address: tuple[str, list[str]]
) -> None:
    url, asked = address
    named = json.loads(json.dumps(schema).replace("@", url))
    entry = E("column_values_to_match_json_schema", column="t", json_schema=named)
    stored = {"name": "stored", "expectations": [entry]}
    with pytest.raises(SpecError, match=r"^contract.suite: expectations.0.kwargs.json_schema: "):
        check(stored, reader(ROWS), fail_on="critical", sensitive=[], resources=None)
    assert asked == []


def test_references_within_a_schema_are_followed_and_its_own_name_is_not(address: tuple[str, list[str]]) -> None:
    url, asked = address
    number = {"type": "object", "properties": {"n": {"$ref": "#/$defs/number"}, "id": {"type": "string"}}}
    schema = {"$id": f"{url}#frag", **number, "$defs": {"number": {"$anchor": "n", "type": "number"}}}
    (failure,) = run(ROWS, E("column_values_to_match_json_schema", column="t", json_schema=schema)).failures
    assert (failure.rows, failure.row_numbers) == (2, [1, 2])
    assert asked == []


def test_a_schema_of_any_form_is_looked_at() -> None:
    assert local_schema(None) is None
    assert local_schema({"properties": {"$ref": {"type": "string"}}}) == {"properties": {"$ref": {"type": "string"}}}
    deep: Any = {"$ref": "x"}
    for _ in range(5000):
        deep = {"not": deep}
    with pytest.raises(ForeignReference):
        local_schema(deep)
