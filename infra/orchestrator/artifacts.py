"""The small page and progress bar that each stage leaves in Prefect for people. Trainwright never reads them back."""

from __future__ import annotations

import atexit
import functools
import logging
import math
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from data_contracts.quoting import escaped, one_line
from infra.orchestrator.api import client_retries, client_settings

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# The longest wait of a finished stage for a server that does not answer; there is no retry.
TIMEOUT_S = 5.0

# What Markdown reads as something other than text.
_MARKS = re.compile(r"[\\`*\[\]<>|!&#~]|(?<!\w)_|_(?!\w)")
# What makes an address a link. Prefect's pages look for it after they have resolved escapes, but never in code.
_ADDRESS = re.compile(r"://|www\.|@", re.IGNORECASE)

T = TypeVar("T")

log = logging.getLogger(__name__)


def as_text(text: str) -> str:
    """Markdown that shows a text as it is, on one line: no link, image, HTML or table cell can begin in it.

    A sentence may come from a store, whose writers must not be able to put a link or an image on a page. A word that a
    page could make a link of is shown as code.
    """
    return " ".join(_word(escaped(word)) for word in text.split())


def _word(word: str) -> str:
    # A bar stays outside of code: in a table it needs a backslash, which code elsewhere would show.
    parts = word.split("|")
    return r"\|".join(as_code(part) if _ADDRESS.search(part) else _MARKS.sub(r"\\\g<0>", part) for part in parts)


def as_code(text: str) -> str:
    """Markdown that shows a text as code, on one line; a backtick becomes an apostrophe."""
    return f"`{one_line(text).replace('`', chr(39)) or ' '}`"


def as_code_block(text: str) -> str:
    """Markdown that shows a text as a block of code; no line of it can end the block."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    lines = "\n".join(map(escaped, text.rstrip().splitlines()))
    return f"{fence}\n{lines}\n{fence}"


def stage_artifact(key: str, markdown: str, description: str) -> bool:
    """Store a markdown page under `key` (a-z, 0-9 and `-`), tied to the current task and flow run, if any.

    A page must never fail a stage: if the server is unreachable, one warning is logged, and False is returned.

    Args:
        description: plain text.
    """
    return _store(key, "markdown", markdown, description) is not None


class ProgressArtifact:
    """A progress bar under `key`, made at the first `show`; failures as with `stage_artifact`.

    Args:
        every_s: least number of seconds between two requests to the server.
    """

    def __init__(self, key: str, every_s: float = 5.0) -> None:
        self._key, self._every_s = key, every_s
        self._id: UUID | None = None
        self._next = 0.0

    def show(self, percent: float, description: str) -> None:
        """Move the bar; a call too soon after the last move, or after a failure, does nothing."""
        now = time.monotonic()
        if now < self._next:
            return
        known = self._id
        if known is None:
            self._id = _store(self._key, "progress", percent, description)
        else:
            self._id = _warned(self._key, lambda: _updated(known, percent, description))
        self._next = math.inf if self._id is None else now + self._every_s

    def end(self, description: str) -> None:
        """Move the bar to its end, if there is one: the last report may have come too soon to be shown."""
        self._next = 0.0 if self._id is not None else math.inf
        self.show(100, description)


def _updated(artifact: UUID, percent: float, description: str) -> UUID:
    from prefect.client.schemas.actions import ArtifactUpdate
    from prefect.settings import get_current_settings

    change = ArtifactUpdate(data=percent, description=as_text(description))
    _client(get_current_settings().api.url).update_artifact(artifact, change)
    return artifact


def _store(key: str, kind: str, data: str | float, description: str) -> UUID | None:
    """Store an artifact; returns its id, or None with a warning. Prefect shows a description as Markdown, too."""
    from prefect.client.schemas.actions import ArtifactCreate
    from prefect.settings import get_current_settings
    from prefect.utilities.context import get_task_and_flow_run_ids

    task_run_id, flow_run_id = get_task_and_flow_run_ids()
    url = get_current_settings().api.url
    if url is None and flow_run_id is None:
        # Prefect would start a server for this call alone.
        log.warning("The page %s is not shown in Prefect, because this command uses no server.", key)
        return None

    def create() -> UUID:
        page = ArtifactCreate(
            type=kind,
            key=key,
            description=as_text(description),
            data=data,
            task_run_id=task_run_id,
            flow_run_id=flow_run_id,
        )
        return _client(url).create_artifact(page).id

    return _warned(key, create)


def _warned(key: str, call: Callable[[], T]) -> T | None:
    """The result of a call to the server, without retries; None with a warning if it fails."""
    try:
        with client_retries(0):
            return call()
    except Exception as error:  # pages are only for people: a page that fails must not fail the stage
        reason = " ".join(str(error).split()) or type(error).__name__
        log.warning("Prefect did not store the page %s; the run continues: %s", key, reason)
        return None


@functools.cache
def _client(url: str | None) -> SyncPrefectClient:
    """One client for all pages of this process, because making a client takes longer than storing a page."""
    import httpx
    from prefect.client.orchestration import get_client

    # Stages are minutes apart: the server would close a kept connection just when it is used again.
    afresh = httpx.Limits(max_keepalive_connections=0)
    client = get_client(sync_client=True, httpx_settings=client_settings(TIMEOUT_S, limits=afresh))
    client.__enter__()
    atexit.register(client.__exit__, None, None, None)
    return client
