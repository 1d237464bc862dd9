"""Replace files of this machine as a whole: a reader sees the old content or the new, never a mixture.

Files of a store belong to `infra.store`, which also syncs them to the disk.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def replace_bytes(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write `content` to `path`, in one step for every reader; others may write the same path, also from elsewhere.

    Args:
        mode: permissions of the file, less the process's umask.
    """
    # Not the process's number, which a process of another machine may have, too, in a folder that both share.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # O_EXCL: what someone put in the draft's place, perhaps a link, is neither followed nor removed.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write `text` to `path` in UTF-8, in one step for every reader; `mode` as in `replace_bytes`."""
    replace_bytes(path, text.encode(), mode=mode)


def replace_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path`, in one step for every reader."""
    replace_text(path, json.dumps(value))


def replace_private(path: Path, text: str) -> None:
    """Write `text` to `path`, in one step for every reader; only this user may read it."""
    replace_text(path, text, mode=0o600)
