"""Refuses settings of Prefect that a folder's files bring along, before Prefect is imported.

Prefect also takes settings from `prefect.toml`, `pyproject.toml` and `.env` of the current folder. Some of them choose
a server, which is then sent the user's own key, or a file of logging settings, which may name any program. Those of a
server say where it listens, which `server proxy` believes, and which module passes its messages on. So these come from
the environment or a profile alone.
"""

from __future__ import annotations

import io
import json
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.foreign_files import read_plain
from data_contracts.quoting import text_of

# As variables, without PREFECT_.
_NOT_BY_A_FOLDER = (
    "API_", "CLIENT_", "EXPERIMENTS_PLUGINS", "HOME", "LOGGING_CONFIG_PATH", "LOGGING_SETTINGS_PATH", "MEMO_STORE_PATH",
    "MESSAGING_", "PLUGINS", "PROFILE", "SERVER_", "UI_",
)  # fmt: skip
_PREFIX = "PREFECT_"


def refuse_settings_of(folder: Path) -> None:
    """UsageError if a file of a folder sets what only its user may; the `prefect.toml` that `up` writes may stay."""
    for path, name, value in _settings_in(folder):
        if name == "PROFILES_PATH" and _is_of_this_user(value, folder):
            continue
        if name.startswith(_NOT_BY_A_FOLDER):
            raise UsageError(
                f"{path}: sets Prefect's PREFECT_{name}, by which files of a project could choose the server that gets "
                "your key, or a program.",
                remedy="Take it out, and set it in the environment or in a profile if you want it.",
            )


def _is_of_this_user(profiles: object, folder: Path) -> bool:
    """Whether a file of profiles is this user's own and did not come with the folder."""
    path = Path(str(profiles)).resolve()
    return path.is_file() and path.stat().st_uid == os.geteuid() and not path.is_relative_to(folder.resolve())


def _settings_in(folder: Path) -> Iterator[tuple[Path, str, Any]]:
    for name, section in (("prefect.toml", ()), ("pyproject.toml", ("tool", "prefect"))):
        path = folder / name
        settings: Any = _read(path, tomllib.loads)
        for part in section:
            settings = settings.get(part, {})
            if not isinstance(settings, dict):
                raise _unreadable(path, f"{part} is not a table")
        yield from ((path, *setting) for setting in _flat(settings, ""))
    path = folder / ".env"
    if path.is_file() or path.is_fifo():
        from dotenv import dotenv_values  # as Prefect reads it: a name may be in quotation marks

        variables = _read(path, lambda text: dotenv_values(stream=io.StringIO(text), interpolate=False))
        for variable, text in variables.items():
            if variable.upper().startswith(_PREFIX):
                yield from ((path, *setting) for setting in _flat({variable: _value(text)}, ""))


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    """What a file holds; {} if there is none. UsageError where importing Prefect would hang or crash."""
    try:
        return parse(read_plain(path).decode())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise _unreadable(path, text_of(error)) from error


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} cannot be read: {why}.", remedy="Mend it, or take it away: Prefect reads it, too.")


def _value(text: str | None) -> Any:
    """What a variable sets: `PREFECT_API` may hold all settings whose names begin so, as JSON."""
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return text


def _flat(settings: dict[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        # Inside a group, a setting may also have its whole name.
        name = f"{before}{key}".upper().rpartition(_PREFIX)[2]
        if isinstance(value, dict):
            yield from _flat(value, f"{name}_")
        else:
            yield name, value
