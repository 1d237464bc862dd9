"""A headless Chromium, told what to do by its own protocol: opens pages, sets media, runs scripts, takes pictures.

Scripts of the protocol run although a page's content security policy forbids those of the page.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.waiting import until

_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


class Browser:
    """One tab. Every request that a page makes is in `requested`, its own address too."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.requested: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self._ask(f"{domain}.enable")

    def open(self, page: Path, *, width: int, dark: bool = False, media: str = "screen") -> None:
        """Show a page of this machine in a window of a width, in light or dark, on a screen or printed."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._ask("Page.navigate", url=page.as_uri())
        self.wait(f"document.readyState == 'complete' && location.href == {json.dumps(page.as_uri())}")

    def visit(self, url: str, wanted: str) -> None:
        """Open an address, and wait until an expression in its page is true."""
        self._ask("Page.navigate", url=url)
        self.wait(wanted)

    def wait(self, wanted: str) -> None:
        """Wait until an expression in the page is true."""
        shown = "location.href + document.body.innerText"
        until(lambda: self.run(f"Boolean({wanted})"), what=lambda: self.run(shown))

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, to: Path) -> Path:
        """A picture of the whole page."""
        high = self.run("document.documentElement.scrollHeight")
        wide = self.run("innerWidth")
        clip = {"x": 0, "y": 0, "width": wide, "height": high, "scale": 1}
        data = self._ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        to.write_bytes(base64.b64decode(data))
        return to

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            asked["sessionId"] = self._session
        self._socket.send(json.dumps(asked))
        while True:
            said = json.loads(self._socket.recv(timeout=180))
            if said.get("method") == "Network.requestWillBeSent":
                self.requested.append(said["params"]["request"]["url"])
            if said.get("id") == self._number:
                assert "error" not in said, said["error"]
                return said.get("result", {})


@contextmanager
def chromium(profile: Path, *more: str) -> Iterator[Browser]:
    """A browser with a profile of its own, and more options; it is ended at the end."""
    options = [*_OPTIONS, *more, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    process = subprocess.Popen(["chromium", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        place = profile / "DevToolsActivePort"
        until(lambda: place.exists() and "\n" in place.read_text(), what=lambda: "Chromium does not start")
        port, path = place.read_text().split("\n")[:2]
        patient: dict[str, Any] = {"open_timeout": 120, "ping_interval": None}
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None, **patient) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(timeout=480)
