"""To which mirrors this user's own runs have been sent. What a store says of others is not followed.

The records in a store name addresses, credentials and files. Whoever can write there could otherwise have any variable
of this user's environment sent to a server of theirs, or lines appended to a file of this user's.
"""

from __future__ import annotations

import json
from typing import Any

from data_contracts.canonical import digest
from infra.files.atomic import replace_private
from infra.files.locks import locked
from infra.machine import settings

FILE = "mirrors.json"
_MOST = 1000


def accept(*mirrors: dict[str, Any]) -> None:
    """Record that this user sends to these mirrors, each with everything that says where and with what."""
    folder = settings.state_folder()
    with locked(folder):  # of two processes at once, neither loses the other's entry
        known = _known()
        if new := [one for one in dict.fromkeys(map(digest, mirrors)) if one not in known]:
            replace_private(folder / FILE, json.dumps([*known, *new][-_MOST:]))


def is_accepted(mirror: dict[str, Any]) -> bool:
    """Whether this user sent to exactly this mirror before."""
    return digest(mirror) in _known()


def _known() -> list[str]:
    try:
        return [str(one) for one in json.loads((settings.state_folder() / FILE).read_text())]
    except (FileNotFoundError, ValueError):
        return []
