"""The place of a process in a trace and in a run, as its logs and spans say it. Nothing decides by it.

W3C's `traceparent` is handed on from the conductor to nodes and ranks. The id of a child is computed from its parent
and its name, so a node knows its own before anybody has seen it. If asked for, logs are lines of JSON, each with the
run, the generation, the node and the rank that it comes from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from data_contracts.errors import UsageError
from infra.processes.environment import FLOW_RUN

# The variable by which processes hand it on, as OpenTelemetry names it.
TRACEPARENT = "TRACEPARENT"
_FORM = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
# `text`, or `json`.
LOG_FORMAT = "TRAINWRIGHT_LOG_FORMAT"
# The logging of Prefect's own processes, workers and servers included.
PREFECT_IN_JSON = Path(__file__).with_name("prefect_logging.yaml")
# What a process adds to each of its lines, as JSON; given by the process that starts it.
LOG_FIELDS = "TRAINWRIGHT_LOG_FIELDS"


@dataclass(frozen=True)
class Context:
    """A span of a trace; ids in hexadecimal digits."""

    trace: str
    span: str
    sampled: bool = True

    def child(self, *names: object) -> Context:
        """The context of a span below this one."""
        text = "/".join([self.trace, self.span, *map(str, names)])
        return Context(self.trace, hashlib.sha256(text.encode()).hexdigest()[:16], self.sampled)

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"


def new_context(*, sampled: bool = True) -> Context:
    """The first span of a trace."""
    return Context(secrets.token_hex(16), secrets.token_hex(8), sampled)


def parsed(text: str) -> Context | None:
    """The context that a `traceparent` names; None for one that is malformed, as its specification asks."""
    found = _FORM.fullmatch(text.strip())
    return None if found is None else Context(found[1], found[2], bool(int(found[3], 16) & 1))


def current(environ: Mapping[str, str] = os.environ) -> Context | None:
    """The context that this process was given, or gives to its children."""
    return parsed(environ.get(TRACEPARENT, ""))


def json_asked(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether logs are to be JSON; UsageError for a format that nobody knows."""
    asked = environ.get(LOG_FORMAT, "").strip() or "text"
    if asked not in ("text", "json"):
        raise UsageError(f"{LOG_FORMAT} is neither text nor json.")
    return asked == "json"


def fields_env(environ: Mapping[str, str] = os.environ, **fields: Any) -> dict[str, str]:
    """The variable that gives a child its fields, beside this process's; {} where logs are text."""
    return {LOG_FIELDS: json.dumps({**_given(environ), **fields})} if environ.get(LOG_FORMAT) == "json" else {}


def prefect_env(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable by which a process of Prefect logs in JSON, too; {} where logs are text."""
    return {"PREFECT_LOGGING_SETTINGS_PATH": str(PREFECT_IN_JSON)} if environ.get(LOG_FORMAT) == "json" else {}


def json_line(level: str, message: str, *, at_s: float | None = None, **fields: Any) -> str:
    """One line; `at_s`: when, in seconds since the epoch, by default now."""
    at = datetime.now(UTC) if at_s is None else datetime.fromtimestamp(at_s, UTC)
    trace = current()
    about = {} if trace is None else {"trace_id": trace.trace, "span_id": trace.span}
    known = {"time": at.isoformat(timespec="milliseconds"), "level": level, "message": message}
    return json.dumps({**known, **fields, **about}, default=str)


class JsonFormatter(logging.Formatter):
    """One record as one line of JSON, in ASCII: no control character of a text reaches a terminal."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.fields = {**_given(os.environ), **fields}
        # Else Prefect writes that its server took no lines, as text without a line end, which our next line joins.
        logging.raiseExceptions = False

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        more = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        # Prefect's loggers, also those of a worker, name the flow run; a worker tells it to the run's own process.
        if flow_run := getattr(record, "flow_run_id", None) or os.environ.get(FLOW_RUN):
            more["flow_run"] = str(flow_run)
        return json_line(
            record.levelname.lower(),
            record.getMessage(),
            at_s=record.created,
            logger=record.name,
            **self.fields,
            **more,
        )


def begin_json_logs(name: str | None = None, stream: TextIO | None = None, **fields: Any) -> None:
    """Log in JSON from here on, if asked for; a logger that does already, by itself or the root, gets the fields.

    Args:
        name: of the logger; None: of all.
    """
    if os.environ.get(LOG_FORMAT) != "json":
        return
    logger = logging.getLogger(name)
    handlers = [*logger.handlers, *(logging.root.handlers if logger.propagate else ())]
    known = [one.formatter for one in handlers if isinstance(one.formatter, JsonFormatter)]
    for formatter in known:
        formatter.fields.update(fields)
    if not known:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(JsonFormatter(**fields))
        logger.addHandler(handler)


def _given(environ: Mapping[str, str]) -> dict[str, object]:
    fields: dict[str, object] = json.loads(environ.get(LOG_FIELDS) or "{}")
    return fields
