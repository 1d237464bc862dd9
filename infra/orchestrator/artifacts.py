"""The small page that each stage leaves in Prefect, for people. Nothing of ours ever reads one back."""

from __future__ import annotations

import atexit
import functools
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# A stage that is done does not wait longer than this for a server that does not answer, and does not ask again.
TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


def stage_artifact(key: str, markdown: str, description: str) -> None:
    """Store a markdown page under `key` (a-z, 0-9 and `-`), tied to the task and flow run it is called in, if any.

    A page is never worth a stage: when the server is away, one sentence is logged as a warning and nothing is raised.
    """
    from prefect.client.schemas.actions import ArtifactCreate
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings
    from prefect.utilities.context import get_task_and_flow_run_ids

    task_run_id, flow_run_id = get_task_and_flow_run_ids()
    url = get_current_settings().api.url
    if url is None and flow_run_id is None:
        # Prefect would start a server for this call alone.
        log.warning("The page %s is not stored in Prefect, because no server is in use.", key)
        return
    try:
        page = ArtifactCreate(
            type="markdown",
            key=key,
            description=description,
            data=markdown,
            task_run_id=task_run_id,
            flow_run_id=flow_run_id,
        )
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            _client(url).create_artifact(page)
    except Exception as error:  # pages are for people: whatever goes wrong with one, the stage's result stands
        reason = " ".join(str(error).split()) or type(error).__name__
        log.warning("The page %s is not stored in Prefect: %s", key, reason)


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
