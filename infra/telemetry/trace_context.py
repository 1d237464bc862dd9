"""The place of a process in a trace, as W3C's `traceparent` says it: handed on from the conductor to nodes and ranks.

The id of a child is computed from its parent and its name. So a node knows its own before anybody has seen it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

# The variable by which processes hand it on, as OpenTelemetry names it.
TRACEPARENT = "TRACEPARENT"
_FORM = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


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
