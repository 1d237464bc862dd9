"""A proxy in front of any S3 server that makes chosen requests fail on their way; faults are data.

    proxy = FaultProxy(server_url)
    proxy.faults.append(Fault("lose", "PUT", "/p", nth=2))       # the second PUT of a path with /p in it

A fault counts how often it fired, so that a test can prove that it did.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.approved import approve_here
from tests.support.damage import flipped

Answer = tuple[int, list[tuple[str, str]], bytes]
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}
PIECES = 20


@dataclass
class Fault:
    """What is done to some of the requests that have this method and this text in path or query.

    do: `status` (answer with it; the server never hears of the request), `reset` (the connection, likewise), `lose`
    (have it carried out, then reset), `stall` (have it carried out, then say nothing for a while), `mute` (say nothing
    from the start and read no body, then reset), `cut` (hang up in the middle of the answer's body, or of its head),
    `slow` (answer in small pieces with pauses), `flip` (change a bit of the answer's body).

    Attributes:
        nth: the first of them that it is done to, from 1; `times`: to how many from there on.
        once_per: a header; of the requests with the same value of it, only the first is counted.
        seconds: of `stall`, `mute` and `slow`; status: of `status`; at: of `flip`, as a share of the body's length.
    """

    do: str
    method: str = ""
    match: str = ""
    nth: int = 1
    times: int = 1
    seconds: float = 0.0
    status: int = 500
    at: float = 0.5
    once_per: str = ""
    seen: int = 0
    fired: int = 0
    values: set[str] = field(default_factory=set)

    def takes(self, method: str, path: str, headers: dict[str, str]) -> bool:
        """Whether the fault is done to this request, which it counts."""
        if self.method not in ("", method) or self.match not in path:
            return False
        if self.once_per:
            value = headers[self.once_per]
            if value in self.values:
                return False
            self.values.add(value)
        self.seen += 1
        if not self.nth <= self.seen < self.nth + self.times:
            return False
        self.fired += 1
        return True


class FaultProxy:
    """A running proxy. `requests` are (method, path with query, headers) of all that came.

    With `hides_checksums` answers have none, as from a server that keeps none.
    """

    def __init__(self, server: str) -> None:
        self.upstream = urllib.parse.urlsplit(server).netloc
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.hides_checksums = False
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        approve_here(self.url)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fault_for(self, method: str, path: str, headers: dict[str, str]) -> Fault | None:
        """The first fault that takes a request."""
        with self._lock:
            self.requests.append((method, path, headers))
            return next((fault for fault in self.faults if fault.takes(method, path, headers)), None)

    def clear(self) -> None:
        """Forget all faults and requests."""
        with self._lock:
            self.faults.clear()
            self.requests.clear()
            self.hides_checksums = False

    def stop(self) -> None:
        """Answer nothing any more."""
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"

    def _carry(self) -> None:
        fault = self.proxy.fault_for(self.command, self.path, dict(self.headers.items()))
        if fault is not None and fault.do == "mute":
            self.proxy.stopping.wait(fault.seconds)
            self._reset(fault, b"")
        asked = self._body()
        if fault is None:
            self._tell(self._ask(asked))
        else:
            getattr(self, f"_{fault.do}")(fault, asked)

    def handle_expect_100(self) -> bool:
        return True  # said in `_body`, when it is wanted

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _carry

    def _status(self, fault: Fault, asked: bytes) -> None:
        code = {409: "ConditionalRequestConflict", 503: "SlowDown"}.get(fault.status, "InternalError")
        body = f"<Error><Code>{code}</Code><Message>as asked</Message></Error>".encode()
        self._tell((fault.status, [("Content-Type", "application/xml")], b"" if self.command == "HEAD" else body))

    def _reset(self, fault: Fault, asked: bytes) -> None:
        # Zero seconds to linger: the peer sees a reset and no orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for held in (self.rfile, self.wfile, self.connection):
            held.close()
        raise ConnectionAbortedError

    def _lose(self, fault: Fault, asked: bytes) -> None:
        self._ask(asked)
        self._reset(fault, asked)

    def _stall(self, fault: Fault, asked: bytes) -> None:
        answer = self._ask(asked)
        self.proxy.stopping.wait(fault.seconds)
        self._tell(answer)

    def _cut(self, fault: Fault, asked: bytes) -> None:
        self._tell(self._ask(asked), cut=True)
        self.close_connection = True

    def _slow(self, fault: Fault, asked: bytes) -> None:
        self._tell(self._ask(asked), pause=fault.seconds / PIECES)

    def _flip(self, fault: Fault, asked: bytes) -> None:
        status, headers, body = self._ask(asked)
        at = min(int(fault.at * len(body)), len(body) - 1)
        self._tell((status, headers, flipped(body, 8 * at + at % 8)))

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _ask(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        # The Host header stays the client's: a server that checks signatures sees what was signed.
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in (*_HOP_BY_HOP, "expect"):
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
        if self.proxy.hides_checksums:
            headers = [header for header in headers if not header[0].lower().startswith("x-amz-checksum")]
        if self.command == "HEAD":
            headers.append(("Content-Length", answer.getheader("Content-Length", "0")))
        found = answer.status, headers, answer.read()
        connection.close()
        return found

    def _tell(self, answer: Answer, *, pause: float = 0.0, cut: bool = False) -> None:
        status, headers, body = answer
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD" and status != 204:
            self.send_header("Content-Length", str(len(body)))
        if cut and not body:  # there is nothing to cut but the head
            self.wfile.write(b"".join(self._headers_buffer)[:12])
            self._headers_buffer.clear()
        else:
            self.end_headers()
        whole = len(body) // 2 if cut else len(body)
        step = max(1, -(-whole // PIECES)) if pause else max(1, whole)
        for start in range(0, max(1, whole), step):
            self.wfile.flush()
            time.sleep(pause)
            self.wfile.write(body[start : min(start + step, whole)])
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
