"""Pushes a process's metrics to a Pushgateway, at intervals and at the end; a gateway that is away is named once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from infra.telemetry.exposition import Common, Samples, collector

EVERY_S = 15.0
# A gateway that takes longer is away; the run's end waits for it once.
REQUEST_S = 5.0
JOB = "trainwright"
log = logging.getLogger("trainwright")


@contextlib.contextmanager
def pushing(url: str, token: str | None, common: Common, samples: Samples, every_s: float = EVERY_S) -> Iterator[None]:
    """Push while the block runs, and once more after it.

    The group is the pipeline's: its next run replaces the values of this one.

    Args:
        token: sent as a bearer token; None: none is sent.
    """
    over, gateway = threading.Event(), _Gateway(url, token, common, samples)

    def push() -> None:
        while not over.wait(every_s):
            gateway.push()

    thread = threading.Thread(target=push, name="metrics-push", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(REQUEST_S)
        gateway.push()


class _Gateway:
    def __init__(self, url: str, token: str | None, common: Common, samples: Samples) -> None:
        self._url, self._token, self._common, self._samples = url, token, common, samples
        self._warned = False

    def push(self) -> None:
        from prometheus_client import push_to_gateway

        registry = collector(self._common, self._samples)
        group = {"pipeline": self._common["pipeline"]}
        try:
            push_to_gateway(self._url, JOB, registry, group, timeout=REQUEST_S, handler=self._handler)
        except Exception as error:  # the library raises what its sockets and its parser raise
            if not self._warned:
                self._warned = True
                log.warning(
                    "The metrics cannot be pushed to %s (%s); the run continues, and tries again without saying so.",
                    self._url,
                    type(error).__name__,
                )

    def _handler(self, url: str, method: str, timeout: float, headers: Any, data: bytes) -> Callable[[], None]:
        from prometheus_client.exposition import default_handler

        own = [] if self._token is None else [("Authorization", f"Bearer {self._token}")]
        return default_handler(url, method, timeout, [*headers, *own], data)
