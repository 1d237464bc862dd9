"""Serve a model's champion with ONNX Runtime, and load another version when a promotion or a rollback moves the alias.

    SERVING_SECRET=$(openssl rand -hex 32) python serve.py digits@champion .trainwright 8100

Each request shows `Authorization: Bearer SECRET`: `POST /predict` with `{"column": [values]}`, `GET /` for the version,
`POST /reload` to look at the alias now. Prefect's events only say when to look; the store decides what is served.
"""

import asyncio
import functools
import hmac
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter

LOOK_EVERY_S = 300  # an event may be lost, and a stage verb such as `trainwright promote` sends none
log = logging.getLogger("serving")


class Version:
    """A version of a model that `trainwright export` has compared with its checkpoint, row by row."""

    def __init__(self, name: str, seal: str, store: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trainwright("export", name, f"{folder}/onnx", "--to", "onnx", store=store)
            self.about = json.loads(Path(folder, "onnx/export.json").read_text())
            self.session = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx")
        if self.about["version_ref"]["seal"] != seal:
            raise ValueError(f"{name} is not the version that the alias names")
        self.name = {"model": self.about["model"], "version": self.about["version"]}

    def predict(self, rows: dict[str, Any]) -> dict[str, Any]:
        inputs = {column["name"]: np.asarray(rows[column["name"]], column["dtype"]) for column in self.about["inputs"]}
        outputs = zip(self.about["outputs"], self.session.run(None, inputs), strict=True)
        return {**self.name, "outputs": {output["name"]: values.tolist() for output, values in outputs}}


class Served:
    """The version that an alias names; the one before is served until it is loaded."""

    def __init__(self, alias: str, store: str) -> None:
        self.alias, self.store = alias, store
        self.version: Version | None = None
        self.look = threading.Event()
        # The version before stays in memory, so that a rollback is served at once.
        self.load = functools.lru_cache(maxsize=2)(Version)

    def follow(self) -> None:
        """Load what the alias names: at once, whenever `look` is set, and every LOOK_EVERY_S."""
        while True:
            self.look.clear()
            try:
                shown = json.loads(trainwright("show", self.alias, store=self.store))
                version = self.load(f"{shown['name']}@{shown['version']}", shown["ref"]["seal"], self.store)
                if version is not self.version:
                    self.version = version
                    log.info("serving %s", version.name)
            except Exception as error:
                log.error("%s is served as before: %s", self.alias, getattr(error, "stdout", None) or error)
            self.look.wait(LOOK_EVERY_S)

    async def listen(self) -> None:
        """Set `look` at each event of the model, and at each connection: what came before it was not heard."""
        model = EventResourceFilter(id=[f"trainwright.model.{self.alias.partition('@')[0]}"])
        events = EventFilter(event=EventNameFilter(prefix=["trainwright.model."]), resource=model)
        while True:
            try:
                async with get_events_subscriber(filter=events, reconnection_attempts=0) as subscriber:
                    self.look.set()
                    async for _ in subscriber:
                        self.look.set()
            except Exception as error:
                log.warning("no events from Prefect, connecting again: %s", error)
            await asyncio.sleep(5)


def trainwright(*words: str, store: str) -> str:
    """What a command answers, as JSON."""
    command = ["trainwright", *words, "--store", store, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Handler(BaseHTTPRequestHandler):
    """Answers requests that show the secret."""

    served: Served
    secret: str
    timeout = 30

    def do_POST(self) -> None:
        shown = self.headers.get("Authorization", "")
        try:
            allowed = hmac.compare_digest(shown.encode(), f"Bearer {self.secret}".encode())
            status, value = self.answer(self.served.version) if allowed else (401, {"error": "not the secret"})
        except Exception as error:  # ONNX Runtime's errors have no base class of their own
            status, value = 400, {"error": str(error)}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    do_GET = do_POST

    def answer(self, version: Version | None) -> tuple[int, dict[str, Any]]:
        match self.command, self.path:
            case "POST", "/reload":
                self.served.look.set()
                return 202, {}
            case _ if version is None:
                return 503, {"error": "no version is loaded yet"}
            case "POST", "/predict":
                body = self.rfile.read(int(self.headers["Content-Length"]))
                return 200, version.predict(json.loads(body))
            case "GET", "/":
                return 200, version.name
        return 404, {}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    Handler.secret = os.environ.pop("SERVING_SECRET")  # so programs that this one starts do not inherit it
    alias, store, port = sys.argv[1:]
    Handler.served = served = Served(alias, store)
    for work in (served.follow, lambda: asyncio.run(served.listen())):
        threading.Thread(target=work, daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
