"""Settings of this machine: Trainwright's own state folder, and the stores that were used from here."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path

from data_contracts.errors import UsageError


def state_folder() -> Path:
    """The folder for state of this machine: `TRAINWRIGHT_HOME`, else `~/.local/state/trainwright`; made if absent."""
    named = os.environ.get("TRAINWRIGHT_HOME")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(named) if named else Path(base) / "trainwright"
    remedy = "Name another with TRAINWRIGHT_HOME."
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The state folder {folder} cannot be made ({error.strerror}).", remedy=remedy) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"This user may not write in the state folder {folder}.", remedy=remedy)
    return folder


@contextlib.contextmanager
def on_this_machine(folder: Path) -> Iterator[None]:
    """Raise UsageError naming `folder` where this machine cannot do what is asked of it: a full disk, no permission.

    So that a fault here is never taken for one of a store or a server, and not tried again.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"The folder {folder} on this machine cannot be used ({error.strerror or error}).",
            remedy="Free space on its disk and permit this user to write there, or name another: TRAINWRIGHT_HOME for "
            "state and copies, TMPDIR for scratch.",
        ) from error


def writing(file: RawIOBase, folder: Path) -> Callable[[bytes | memoryview], None]:
    """What writes pieces into `file`, which lies in `folder`; UsageError when the disk is full.

    Unbuffered, so that a full disk shows here and not when the file is closed.
    """

    def write(piece: bytes | memoryview) -> None:
        left = memoryview(piece)
        with on_this_machine(folder):
            while left:
                left = left[file.write(left) or 0 :]

    return write


def remember_store(uri: str, storage_options: dict[str, str]) -> None:
    """Note that a store was used from this machine, so that a run can be found by its id alone."""
    known = {entry["uri"]: entry for entry in known_stores()}
    if known.get(uri, {}).get("storage_options") == storage_options:
        return
    known.pop(uri, None)
    entries = [*known.values(), {"uri": uri, "storage_options": storage_options}][-50:]
    path = state_folder() / "stores.json"
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(entries))
    draft.replace(path)


def known_stores() -> list[dict]:
    """Stores used from this machine, the latest last: `{"uri", "storage_options"}` each."""
    try:
        return json.loads((state_folder() / "stores.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []
