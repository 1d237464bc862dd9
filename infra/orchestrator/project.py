"""Let a person's `prefect` command find our server, through `prefect.toml` in the folder with `prefect.yaml`.

Prefect reads that file from the folder in which it is called; the environment takes precedence. The file names a
profiles file in the state folder, which holds the server's address and password and which only its owner can read. A
folder that may be shared or published never holds the password. So after `trainwright up`, `prefect deploy --all` works
there in any shell without further settings, and the person's own profiles and other uses of Prefect stay as they are. A
`prefect.toml` that the person wrote is left alone. In other folders they use `export PREFECT_PROFILES_PATH=…`, as `up`
prints it.
"""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path

from infra.files import replace_private, replace_text
from infra.orchestrator.variables import API_AUTH, API_URL
from infra.processes.processes import CODE_ROOT
from infra.settings import state_folder
from infra.written_files import record_written

_HEADER = "# Written by `trainwright up`, taken away by `trainwright down`: `prefect` here talks to its server."

log = logging.getLogger(__name__)


def profiles() -> Path:
    """The profiles file through which `prefect` finds our server and its password, in any folder."""
    return state_folder() / "profiles.toml"


def link(url: str, password: str | None) -> Path | None:
    """Point `prefect` at our server, in the current folder, else in this checkout; the file, or None."""
    settings = {API_URL: url} | ({API_AUTH: password} if password else {})
    # A JSON string is a TOML string, unless it has escapes that TOML lacks.
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    replace_private(profiles(), "\n".join([_HEADER, 'active = "trainwright"', "[profiles.trainwright]", *lines, ""]))
    folder = next((place for place in (Path.cwd(), CODE_ROOT) if (place / "prefect.yaml").is_file()), None)
    if folder is None:
        return None
    path = folder / "prefect.toml"
    advice = f"Before `prefect deploy`, say: export PREFECT_PROFILES_PATH={shlex.quote(str(profiles()))}"
    if path.exists() and not _is_ours(path):
        log.warning("%s is not Trainwright's and is left as it is. %s", path, advice)
        return None
    try:
        replace_text(path, f"{_HEADER}\nprofiles_path = {json.dumps(str(profiles()))}\n")
        record_written(path)
    except OSError as error:
        log.warning("%s cannot be written (%s). %s", path, error.strerror, advice)
        return None
    _note().write_text("".join(f"{known}\n" for known in sorted({*_linked(), path})))
    return path


def unlink() -> None:
    """Remove the files that `link` wrote, unless someone has changed them since."""
    profiles().unlink(missing_ok=True)
    for path in _linked():
        if _is_ours(path):
            path.unlink(missing_ok=True)
    _note().unlink(missing_ok=True)


def _linked() -> list[Path]:
    try:
        return [Path(line) for line in _note().read_text().splitlines()]
    except FileNotFoundError:
        return []


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text().startswith(_HEADER)
    except (OSError, UnicodeDecodeError):
        return False


def _note() -> Path:
    return state_folder() / "linked"
