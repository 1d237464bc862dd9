"""An S3 protocol server for tests: moto's, as a process of its own, made atomic and able to fail on demand.

Its fixture `s3_server` is imported by `tests/conftest.py` alone, so that a process of tests has one server.
moto looks at a condition and writes in two steps; one lock around every request makes that one step, as S3 does.
The process ends when its parent does.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Address of a server that runs already, which is used then: for runs of the same tests again and again.
RUNNING = "TRAINWRIGHT_TEST_S3_SERVER"
CREDENTIALS = {"TEST_S3_KEY": "an-access-key", "TEST_S3_SECRET": "a-secret-key"}


class S3Server:
    """A running server. `options` are storage options for it, credentials named."""

    def __init__(self) -> None:
        os.environ.update(CREDENTIALS)
        self._process = None if RUNNING in os.environ else start()
        self.url = os.environ[RUNNING] if self._process is None else address(self._process)
        from tests.support.approved import approve_here  # the server's process imports nothing of ours

        approve_here(self.url)
        self.options: dict[str, Any] = {
            "key": "env:TEST_S3_KEY",
            "secret": "env:TEST_S3_SECRET",
            "endpoint_url": self.url,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        self._numbers = itertools.count()

    def bucket(self) -> str:
        """A new bucket's name."""
        name = f"bucket-{os.getpid()}-{next(self._numbers)}"
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT"), timeout=120).close()
        return name

    def fault(self, do: str, *, method: str = "", match: str = "", times: int = 1, **about: Any) -> None:
        """Make the next `times` requests with this method and text in the path fail.

        do: `lose` (carry it out, then hang up), `refuse` (answer `status` and `code`), `ignore` (carry it out without
        its conditions), `flip` (change a bit of the answer's body), `cut` (leave out its last byte), `pass`
        (carry it out), `split` (look at the condition, wait `seconds`, and write: two writers may pass).
        """
        self._post("/_faults", {"do": do, "method": method, "match": match, "times": times, **about})

    def clear(self) -> list[dict[str, Any]]:
        """Forget all faults; those that were not used up."""
        return self._post("/_clear", {})

    def stop(self) -> None:
        """End the process."""
        if self._process is None:
            return
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=480)
        self._process.stdout.close()

    def _post(self, path: str, value: Any) -> Any:
        request = urllib.request.Request(self.url + path, data=json.dumps(value).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)


def start() -> subprocess.Popen[str]:
    """A process that serves until its standard input ends."""
    command = [sys.executable, str(Path(__file__))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def address(server: subprocess.Popen[str]) -> str:
    """Where it listens, once it does."""
    return f"http://127.0.0.1:{int(server.stdout.readline())}"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for the session."""
    server = S3Server()
    server.clear()
    yield server
    server.stop()


class _Faulty:
    """moto's application, one request at a time, with the faults that a test asked for."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._faults: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        length = environ.get("CONTENT_LENGTH")
        if length:  # read before the lock is taken: a client that stalls must not stall the others
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(length)))
        with self._lock:
            path = environ["PATH_INFO"]
            if path in ("/_faults", "/_clear"):
                left = [fault for fault in self._faults if fault["times"]]
                body = json.load(environ["wsgi.input"])
                self._faults = [*left, body] if path == "/_faults" else []
                start_response("200 OK", [("Content-Type", "application/json")])
                return [json.dumps(left).encode()]
            fault = self._next(environ["REQUEST_METHOD"], f"{path}?{environ.get('QUERY_STRING', '')}")
            if fault.get("do") == "refuse":
                start_response(f"{fault['status']} No", [("Content-Type", "application/xml")])
                body = f"<Error><Code>{fault['code']}</Code><Message>as asked</Message></Error>"
                return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body.encode()]
            if fault.get("do") == "split" and not self._passes(environ):
                fault = {}  # moto itself refuses it
            if fault.get("do") == "split":
                self._lock.release()
                time.sleep(fault["seconds"])
                self._lock.acquire()
            if fault.get("do") in ("ignore", "split"):
                environ.pop("HTTP_IF_MATCH", None)
                environ.pop("HTTP_IF_NONE_MATCH", None)
            answer = list(self._app(environ, start_response))
            if fault.get("do") == "lose":
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                raise ConnectionAbortedError
            if fault.get("do") == "cut":
                answer = [b"".join(answer)[:-1]]  # the announced length is one byte more
            if fault.get("do") == "flip":
                answer = [bytes([b"".join(answer)[0] ^ 1]) + b"".join(answer)[1:]]
            return answer

    def _passes(self, environ: dict[str, Any]) -> bool:
        """Whether the conditions of a request hold now."""
        answer: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            answer.update(there=status.startswith("200"), etag=dict(headers).get("ETag"))

        asked = {**environ, "REQUEST_METHOD": "HEAD", "CONTENT_LENGTH": "0", "wsgi.input": io.BytesIO()}
        list(self._app({name: value for name, value in asked.items() if "HTTP_IF_" not in name}, start))
        if "HTTP_IF_NONE_MATCH" in environ and answer["there"]:
            return False
        return environ.get("HTTP_IF_MATCH", answer["etag"]) == answer["etag"]

    def _next(self, method: str, path: str) -> dict[str, Any]:
        for fault in self._faults:
            if fault["times"] and fault["method"] in ("", method) and fault["match"] in path:
                fault["times"] -= 1
                return fault
        return {}


def _serve() -> None:
    import logging

    # Read when moto is imported; no browser asks.
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").disabled = True
    # Of S3 alone: to find out which service a request is for, moto looks at 180 of its folders each time.
    server = make_server("127.0.0.1", 0, _Faulty(create_backend_app("s3")), threaded=True)
    os.environ["MOTO_PORT"] = str(server.port)
    print(server.port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
