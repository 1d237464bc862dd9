"""Another user of this machine, who tries everything without a password: `python -m tests.support.stranger URL PID…`.

Reads a list of files as JSON from its standard input and prints what it got as JSON. Started as root, it becomes the
user nobody before the first attempt: so it is another user although nobody may not read the interpreter's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

NOBODY = 65534
SOCKETS = (
    "/api/events/in",
    "/api/events/out",
    "/api/logs/out",
    "/api/task_runs/subscriptions/scheduled",
    "/api/work_pools/trainwright/workers/connect",
)


def attempted(read: Callable[[], object]) -> str:
    """The outcome of an attempt to read."""
    try:
        return f"read {len(str(read()))}"
    except OSError as error:
        return type(error).__name__


def listen(url: str, *, token: str | None, subprotocol: bool, **options: Any) -> str:
    """Whether a subscription is open to one who shows this token: `open`, or how it was closed."""
    return asyncio.run(_listen(url, token, [Subprotocol("prefect")] if subprotocol else None, options))


async def _listen(url: str, token: str | None, subprotocols: list[Subprotocol] | None, options: dict[str, Any]) -> str:
    # Not websockets' client with threads: while its reader takes the session tickets of TLS 1.3, its writer may wait
    # for them, too, so that the request is never sent and nginx closes the connection after 60 s.
    try:
        async with connect(
            url, subprotocols=subprotocols, open_timeout=120, close_timeout=5, proxy=None, **options
        ) as socket:
            await socket.send(json.dumps({"type": "auth", "token": token}))
            answer = await asyncio.wait_for(socket.recv(), 120)
            return "open" if json.loads(answer).get("type") == "auth_success" else f"said {answer!r}"
    except ConnectionClosed as error:
        return f"closed {error.rcvd.code if error.rcvd else ''}"
    except (InvalidHandshake, OSError) as error:
        return f"refused {error}"


def requests(client: httpx.Client) -> dict[str, int]:
    """The status of each request that the server knows, made without a password."""
    paths = client.get("/openapi.json").raise_for_status().json()["paths"]
    known = [(method, path) for path, methods in paths.items() for method in methods]
    # It lists them as they stand below /api.
    filled = [(method, f"/api{path}".replace("{", "").replace("}", "")) for method, path in known]
    return {f"{method.upper()} {path}": client.request(method, path).status_code for method, path in filled}


def main() -> None:
    """Try everything and print the outcomes."""
    url, *pids = sys.argv[1:]
    files = json.load(sys.stdin)
    sockets = f"ws://{urlsplit(url).netloc}"
    client = httpx.Client(base_url=url, trust_env=False, verify=False, timeout=60)
    # Some libraries import more with their first request.
    client.get("/api/health").raise_for_status()
    listen(f"{sockets}{SOCKETS[0]}", token=None, subprotocol=True)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    arguments = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments.append((process / "cmdline").read_bytes().decode(errors="replace"))
    attempts = {
        "uid": os.getuid(),
        "files": {file: attempted(Path(file).read_bytes) for file in files},
        "environments": [attempted(Path(f"/proc/{pid}/environ").read_bytes) for pid in pids],
        "arguments": "\n".join(arguments),
        "requests": requests(client),
        "links": client.post("/trainwright/links").status_code,
        "sign_in": client.post("/trainwright/sign-in", json={"token": "x" * 43}).status_code,
        "sockets": {
            f"{path} {subprotocol} {token}": listen(f"{sockets}{path}", token=token, subprotocol=subprotocol)
            for path in SOCKETS
            for subprotocol in (True, False)
            for token in (None, "guessed:password")
        },
    }
    print(json.dumps(attempts))


if __name__ == "__main__":
    main()
