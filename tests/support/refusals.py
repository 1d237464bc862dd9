"""What a reader says of what it refuses, as one text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refusal(error: type[Exception], read: Callable[..., Any], *arguments: Any, **settings: Any) -> str:
    """The text of the error of this class that `read` raises; "" if it takes the arguments."""
    try:
        read(*arguments, **settings)
    except error as raised:
        return str(raised)
    return ""
