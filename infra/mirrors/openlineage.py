"""Where OpenLineage events go: posted to a server, or appended to a file."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from infra.machine.written_files import record_written
from infra.mirrors.endpoint import Endpoint

PATH = "/api/v1/lineage"
_TAIL_BYTES = 64 * 2**20


def post_events(endpoint: Endpoint, events: Sequence[dict[str, Any]]) -> None:
    """Post each event; the same event may be posted again, and says so by its run and time."""
    for event in events:
        endpoint.ask("POST", PATH, json=event)


def append_events(path: Path, events: Sequence[dict[str, Any]]) -> None:
    """Append the events that the file's end does not have yet, one a line; UsageError if it cannot be written."""
    lines = [json.dumps(event, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() for event in events]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            tail = file.read()
            known = set(tail.splitlines())
            # A process that was killed while it wrote may have left half a line.
            start = b"" if not tail or tail.endswith(b"\n") else b"\n"
            file.write(start + b"".join(line + b"\n" for line in lines if line not in known))
            file.flush()
            os.fsync(file.fileno())
            record_written(path)
    except OSError as error:
        raise UsageError(
            f"mirrors.openlineage.file: {path} cannot be written: {error.strerror}.", remedy="Name a file of yours."
        ) from error
