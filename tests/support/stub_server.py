"""A small HTTP server on loopback whose answers a test scripts, and one that keeps runs and versions as MLflow does."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Asked:
    """One request: the method, the path without its query, the query, the headers and the body."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


# Returns the status and the bytes or JSON of the answer, and more headers; None: the connection is closed without one.
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]] | None


@contextlib.contextmanager
def serving(answer: Callable[[Asked], Answer]) -> Iterator[tuple[str, list[Asked]]]:
    """The server's address, and the requests that it got."""
    got: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            asked = Asked(
                self.command, url.path, query, {name.lower(): value for name, value in self.headers.items()}, body
            )
            got.append(asked)
            said = answer(asked)
            if said is None:
                self.close_connection = True
                return
            data = said[1] if isinstance(said[1], bytes) else json.dumps(said[1]).encode()
            self.send_response(said[0])
            for name, value in said[2].items() if len(said) == 3 else ():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do_PUT = _answer

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class FakeMlflow:
    """What MLflow keeps, without MLflow. `lose`: how many answers to requests that make something are lost."""

    lose: int = 0
    broken: bool = False
    runs: list[dict[str, Any]] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, asked: Asked) -> Answer:
        if self.broken:
            return 503, {}
        if asked.method == "PUT":
            self.files[asked.path.partition("/artifacts/")[2]] = asked.body
            return 200, {}
        what = asked.path.removeprefix("/api/2.0/mlflow/")
        said = getattr(self, "_" + what.replace("/", "_").replace("-", "_"))(asked)
        if what.endswith("create") and self.lose:
            self.lose -= 1
            return None
        return said

    def _experiments_get_by_name(self, _: Asked) -> Answer:
        return 200, {"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}}

    def _runs_search(self, asked: Asked) -> Answer:
        wanted = asked.json["filter"].rpartition("= ")[2].strip("'")
        found = [one for one in self.runs if one["tags"]["trainwright.run_id"] == wanted]
        return 200, {"runs": [{"info": one["info"]} for one in found]}

    def _runs_create(self, asked: Asked) -> Answer:
        number = len(self.runs)
        info = {"run_id": f"r{number}", "artifact_uri": f"mlflow-artifacts:/1/r{number}/artifacts"}
        self.runs.append({"info": info, "tags": _mapping(asked.json["tags"]), "params": {}, "metrics": set()})
        return 200, {"run": {"info": info}}

    def _runs_log_batch(self, asked: Asked) -> Answer:
        run = self._run(asked)
        run["tags"].update(_mapping(asked.json.get("tags", [])))
        run["params"].update(_mapping(asked.json.get("params", [])))
        run["metrics"] |= {tuple(sorted(one.items())) for one in asked.json.get("metrics", [])}
        return 200, {}

    def _runs_update(self, asked: Asked) -> Answer:
        self._run(asked)["status"] = asked.json["status"]
        return 200, {}

    def _registered_models_create(self, _: Asked) -> Answer:
        return 400, {"error_code": "RESOURCE_ALREADY_EXISTS", "message": "there is one"}

    def _model_versions_search(self, asked: Asked) -> Answer:
        wanted = asked.query["filter"].rpartition("= ")[2].strip("'")
        return 200, {"model_versions": [one for one in self.versions if one["tags"]["trainwright.version"] == wanted]}

    def _model_versions_create(self, asked: Asked) -> Answer:
        number = str(len(self.versions) + 10)
        self.versions.append({"version": number, "tags": _mapping(asked.json["tags"]), "source": asked.json["source"]})
        return 200, {}

    def _registered_models_alias(self, asked: Asked) -> Answer:
        self.aliases[f"{asked.json['name']}@{asked.json['alias']}"] = asked.json["version"]
        return 200, {}

    def _run(self, asked: Asked) -> dict[str, Any]:
        return next(one for one in self.runs if one["info"]["run_id"] == asked.json["run_id"])


def _mapping(pairs: list[dict[str, str]]) -> dict[str, str]:
    return {one["key"]: one["value"] for one in pairs}
