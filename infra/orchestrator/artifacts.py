"""The small page that each stage leaves in Prefect, and a bar while it works, for people. We never read them back."""

from __future__ import annotations

import atexit
import functools
import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# A stage that is done does not wait longer than this for a server that does not answer, and does not ask again.
TIMEOUT_S = 5.0

T = TypeVar("T")

log = logging.getLogger(__name__)


def stage_artifact(key: str, markdown: str, description: str) -> None:
    """Store a markdown page under `key` (a-z, 0-9 and `-`), tied to the task and flow run it is called in, if any.

    A page is never worth a stage: when the server is away, one sentence is logged as a warning and nothing is raised.
    """
    _store(key, "markdown", markdown, description)


class ProgressArtifact:
    """A progress bar under `key`, made when it is first told something; failures as with `stage_artifact`.

    Args:
        every_s: the server is not asked more often than this.
    """

    def __init__(self, key: str, every_s: float = 5.0) -> None:
        self._key, self._every_s = key, every_s
        self._id: UUID | None = None
        self._next = 0.0

    def show(self, percent: float, description: str) -> None:
        """Move the bar; what comes too soon after the last move, or after a failure, is left out."""
        now = time.monotonic()
        if now < self._next:
            return
        known = self._id
        if known is None:
            self._id = _store(self._key, "progress", percent, description)
        else:
            self._id = _warned(self._key, lambda: _updated(known, percent, description))
        self._next = math.inf if self._id is None else now + self._every_s


def _updated(artifact: UUID, percent: float, description: str) -> UUID:
    from prefect.client.schemas.actions import ArtifactUpdate
    from prefect.settings import get_current_settings

    change = ArtifactUpdate(data=percent, description=description)
    _client(get_current_settings().api.url).update_artifact(artifact, change)
    return artifact


def _store(key: str, kind: str, data: str | float, description: str) -> UUID | None:
    """Store an artifact; its id, or None with a warning."""
    from prefect.client.schemas.actions import ArtifactCreate
    from prefect.settings import get_current_settings
    from prefect.utilities.context import get_task_and_flow_run_ids

    task_run_id, flow_run_id = get_task_and_flow_run_ids()
    url = get_current_settings().api.url
    if url is None and flow_run_id is None:
        # Prefect would start a server for this call alone.
        log.warning("The page %s is not stored in Prefect, because no server is in use.", key)
        return None

    def create() -> UUID:
        page = ArtifactCreate(
            type=kind, key=key, description=description, data=data, task_run_id=task_run_id, flow_run_id=flow_run_id
        )
        return _client(url).create_artifact(page).id

    return _warned(key, create)


def _warned(key: str, call: Callable[[], T]) -> T | None:
    """What a call to the server answers, asked once; None with a warning if it fails."""
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    try:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            return call()
    except Exception as error:  # pages are for people: whatever goes wrong with one, the stage's result stands
        reason = " ".join(str(error).split()) or type(error).__name__
        log.warning("The page %s is not stored in Prefect: %s", key, reason)
        return None


@functools.cache
def _client(url: str | None) -> SyncPrefectClient:
    """One client for all pages of this process: making one takes longer than a page does."""
    import httpx
    from prefect.client.orchestration import get_client

    # Stages are minutes apart: a connection kept open would be closed by the server just when it is used again.
    afresh = httpx.Limits(max_keepalive_connections=0)
    client = get_client(sync_client=True, httpx_settings={"timeout": TIMEOUT_S, "limits": afresh})
    client.__enter__()
    atexit.register(client.__exit__, None, None, None)
    return client
