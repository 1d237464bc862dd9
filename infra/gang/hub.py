"""How a gang's nodes and its conductor talk: one TLS connection for each node, which the node opens and keeps.

The conductor listens (`Hub`), and the launch names its address and its certificate. A node (`Line`) trusts no other
certificate, and shows a word that only a process with the generation's key knows. It says `Joined`, a `Heartbeat` per
interval, and `NodeExit` at its end; it hears its `Place` and a `CancelMarker`. So the conductor needs no request to a
store for any node, and a node needs none while it has its connection. One that is cut is opened again, and both sides
repeat what still holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hmac
import json
import logging
import resource
import ssl
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from data_contracts.errors import CorruptError, NodeLost, TrainwrightError
from data_contracts.messages import Message
from data_contracts.messages.gang import CancelMarker, ConductorAddress, Heartbeat, Joined, NodeExit, Place
from infra import scratch
from infra.gang.rank_files import Codes
from infra.gang.ranks import listen

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response
    from websockets.sync.connection import Connection

SAID: dict[str, type[Message]] = {kind.__name__: kind for kind in (Joined, Heartbeat, NodeExit, Place, CancelMarker)}
# So long a connection may take that has shown nothing yet; and so many files this process may have open, for nodes.
HANDSHAKE_S, MOST_FILES = 5.0, 65_536
# The longest is a NodeExit with the stacks of a node's ranks.
MOST_BYTES = 2**26
# So often a node asks whether its connection still leads somewhere, and so long it waits for an answer.
PING_S = 10.0
RECONNECT_S = 0.5
# So long a node waits for the answer to its last word before it says it again.
HEARD_S = 5.0
# The close code for a process that joins as a node that another process is already.
_TAKEN = 4009
log = logging.getLogger("trainwright")
# Whoever connects with anything else than a right word is no news.
_QUIET = logging.Logger("hub", logging.CRITICAL + 1)


class Ended(NamedTuple):
    """How a node ended that did not say so itself.

    Attributes:
        how: as what runs it says, the end of a sentence (`ended with exit code 1`).
        cause: the class of error, where that knows it, as of a node that it preempted.
        is_sure: whether it says that the node's machine failed, and that all others ended for it.
    """

    how: str
    cause: type[TrainwrightError] = NodeLost
    is_sure: bool = False


class News(NamedTuple):
    """What a node said, or how it ended, and when that was known (`time.monotonic`)."""

    node: int
    at: float
    message: Message | Ended


class Hub:
    """The conductor's side of one generation; a thread listens until `close`.

    Args:
        address: at which the nodes reach this process, and the only one at which it listens.

    Attributes:
        at: what the nodes need to find it.
        codes: of the generation; nobody is admitted before they are set.
        joined: the instance of each node that has joined; left: the nodes that have said how they ended.
    """

    def __init__(self, address: str) -> None:
        self.codes: Codes | None = None
        self.left: set[int] = set()
        self.joined: dict[int, str] = {}
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < MOST_FILES:
            most = MOST_FILES if hard < 0 else min(hard, MOST_FILES)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        self._listener = listen(address)
        self._tls, certificate = _server_tls()
        self.at = ConductorAddress(address=address, port=self._listener.getsockname()[1], certificate=certificate)
        self._lock = threading.Lock()
        # The newest of each kind and node: a conductor that waits for its store misses nothing that still holds.
        self._news: dict[tuple[int, type], News | CorruptError] = {}
        self._told: dict[int, str] = {}
        self._connections: dict[int, ServerConnection] = {}
        self._loop, self._closing = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self._thread.start()

    def news(self) -> list[News]:
        """What the nodes have said since the last call, as it arrived; CorruptError for what no node of ours says."""
        with self._lock:
            found, self._news = self._news, {}
        for one in found.values():
            if isinstance(one, CorruptError):
                raise one
        return sorted((one for one in found.values() if isinstance(one, News)), key=lambda one: one.at)

    def tell(self, node: int, message: Place | CancelMarker) -> None:
        """Tell a node something, now and whenever it connects again; it takes the place of what it was told before."""
        self._loop.call_soon_threadsafe(self._tell, node, _text(message))

    def close(self) -> None:
        """End all connections and the thread."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()
            self._listener.close()

    async def _serve(self) -> None:
        from websockets.asyncio.server import serve

        async with serve(
            self._hear, sock=self._listener, ssl=self._tls, process_request=self._admit, compression=None,
            max_size=MOST_BYTES, ping_interval=None, logger=_QUIET, ssl_handshake_timeout=HANDSHAKE_S,
        ):  # fmt: skip
            await self._closing.wait()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        shown = request.headers.get("Authorization", "")
        if self.codes is not None and hmac.compare_digest(shown.encode(), self.codes.word().encode()):
            return None
        return connection.respond(HTTPStatus.FORBIDDEN, "This generation has another key.\n")

    async def _hear(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        assert connection.request is not None, "it was admitted"
        node = int(connection.request.path.strip("/"))
        with contextlib.suppress(ConnectionClosed):
            async for text in connection:
                message = _parsed(text, node)
                entry = message if isinstance(message, CorruptError) else News(node, time.monotonic(), message)
                if isinstance(message, Joined):
                    if self.joined.setdefault(node, message.instance) != message.instance:
                        await connection.close(_TAKEN)
                        return
                    self._connections[node] = connection
                    if node in self._told:
                        await connection.send(self._told[node])
                if isinstance(message, NodeExit):
                    self.left.add(node)
                with self._lock:
                    self._news[node, type(message)] = entry
                if isinstance(message, NodeExit):
                    await connection.close()  # which says that it was heard
                    return

    def _tell(self, node: int, text: str) -> None:
        from websockets.asyncio.server import broadcast

        self._told[node] = text
        # One that is closed is left out; its node hears it when it connects again.
        broadcast([self._connections[node]] if node in self._connections else [], text)


class Line(threading.Thread):
    """A node's side: connects, and connects again, until `end`.

    Args:
        joined: said whenever it connects.
        codes: of the generation.

    Attributes:
        place, marker: what the conductor has told; None: nothing yet.
        is_taken: whether another process is this node already.
        trouble: why there is no connection; "" while there is one.
    """

    def __init__(self, at: ConductorAddress, joined: Joined, codes: Codes) -> None:
        super().__init__(name="line", daemon=True)
        self.place: Place | None = None
        self.marker: CancelMarker | None = None
        self.is_taken = False
        self.trouble = "it has not connected yet"
        self._at, self._joined, self._codes = at, joined, codes
        self._connection: Connection | None = None
        # Whether the node said how it ended; whether the conductor closed the connection because it heard that.
        self._said_last, self._heard = False, threading.Event()
        self._ended = threading.Event()

    @property
    def is_cut(self) -> bool:
        """Whether nothing can be said or heard now."""
        return self._connection is None

    def run(self) -> None:
        """Keep a connection until `end`, or until another process is this node."""
        from websockets.exceptions import ConnectionClosed, InvalidHandshake
        from websockets.sync.client import connect

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname = False  # no other certificate is trusted than the one that the launch names
        tls.load_verify_locations(cadata=self._at.certificate)
        host = f"[{self._at.address}]" if ":" in self._at.address else self._at.address
        while not (self._ended.is_set() or self.is_taken):
            try:
                with connect(
                    f"wss://{host}:{self._at.port}/{self._joined.node}",
                    ssl=tls, additional_headers={"Authorization": self._codes.word()}, proxy=None, compression=None,
                    ping_interval=PING_S, ping_timeout=PING_S, max_size=MOST_BYTES, logger=_QUIET,
                ) as connection:  # fmt: skip
                    connection.send(_text(self._joined))
                    self._connection, self.trouble = connection, ""
                    for text in connection:
                        self._hear(text)
                    if self._said_last and connection.close_code == 1000:
                        self._heard.set()
            except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed) as error:
                before, self.trouble = self.trouble, f"{type(error).__name__}: {error}"
                if self.trouble != before:
                    log.warning("no connection to the conductor at %s:%d: %s", host, self._at.port, self.trouble)
                self.is_taken = isinstance(error, ConnectionClosed) and error.code == _TAKEN
            self._connection = None
            self._ended.wait(RECONNECT_S)

    def say(self, message: Heartbeat | NodeExit) -> bool:
        """Whether a message was sent; not while there is no connection."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed, OSError):
            if (connection := self._connection) is not None:
                connection.send(_text(message))
                return True
        return False

    def end(self, last: NodeExit | None, patience_s: float) -> bool:
        """Say how the node ended, and close; whether the conductor has it. Tries again while the connection is cut."""
        deadline = time.monotonic() + patience_s
        while last is not None and not self._heard.is_set():
            self._said_last = self.say(last) or self._said_last
            if self._heard.wait(HEARD_S if self._said_last else 0.05) or time.monotonic() > deadline:
                break
        self._ended.set()
        if (connection := self._connection) is not None:
            connection.close()
        return self._heard.is_set()

    def _hear(self, text: str | bytes) -> None:
        message = _parsed(text, self._joined.node)
        if isinstance(message, Place):
            self.place = message
        elif isinstance(message, CancelMarker):
            self.marker = message


def _text(message: Message) -> str:
    return json.dumps({"says": type(message).__name__, **message.to_json()})


def _parsed(text: str | bytes, node: int) -> Message | CorruptError:
    try:
        value = json.loads(text)
        return SAID[value.pop("says")].from_json(value)
    except (ValueError, TypeError, KeyError, AttributeError, TrainwrightError) as error:
        return CorruptError(f"The connection of node {node} carries what no process of this training says: {error}.")


def _server_tls() -> tuple[ssl.SSLContext, str]:
    """What a hub shows, and its certificate as PEM."""
    secret, certificate = _certified()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with scratch.make("hub") as folder:  # OpenSSL reads a key only from a file
        (folder.path / "hub.pem").write_bytes(secret + certificate)
        context.load_cert_chain(folder.path / "hub.pem")
    return context, certificate.decode()


def _certified() -> tuple[bytes, bytes]:
    """A new key and its certificate, as PEM. It names nobody and is valid at any time: clocks differ, and its use is
    limited by the launch that names it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainwright conductor")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime.datetime(2000, 1, 1)).not_valid_after(datetime.datetime(9999, 1, 1))
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return secret, builder.sign(key, hashes.SHA256()).public_bytes(pem)
