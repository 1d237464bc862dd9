"""Settings of this machine: Trainwright's own state folder, and the stores that were used from here."""

from __future__ import annotations

import json
import os
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
