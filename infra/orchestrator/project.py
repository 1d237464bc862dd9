"""How the command `prefect`, run by a person, finds our server: by `prefect.toml` in the folder with `prefect.yaml`.

Prefect reads that file from the folder it is called in, above the active profile and below the environment. So
`prefect deploy --all` after `trainwright up` works there with nothing else, in any shell, while the person's profiles
and whatever else they use Prefect for on this machine stay as they are. A `prefect.toml` that they wrote is theirs: it
is left alone. Elsewhere they say `export PREFECT_API_URL=…`, as `up` prints it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from infra.launch.processes import CODE_ROOT
from infra.settings import state_folder

_HEADER = "# Written by `trainwright up`, taken away by `trainwright down`: `prefect` here talks to its server."

log = logging.getLogger(__name__)


def link(url: str) -> Path | None:
    """Point `prefect` at our server in the current folder, else in this checkout; the file, or None if it may not."""
    folder = next((place for place in (Path.cwd(), CODE_ROOT) if (place / "prefect.yaml").is_file()), None)
    if folder is None:
        return None
    path = folder / "prefect.toml"
    advice = f"Before `prefect deploy`, say: export PREFECT_API_URL={url}"
    if path.exists() and not _is_ours(path):
        log.warning("%s is not Trainwright's and is left as it is. %s", path, advice)
        return None
    draft = path.with_name(f".prefect.toml.{os.getpid()}")
    try:
        draft.write_text(f'{_HEADER}\n[api]\nurl = "{url}"\n')
        draft.replace(path)
    except OSError as error:
        log.warning("%s cannot be written (%s). %s", path, error.strerror, advice)
        return None
    _note().write_text("".join(f"{known}\n" for known in sorted({*_linked(), path})))
    return path


def unlink() -> None:
    """Take away what `link` wrote, wherever it is still Trainwright's."""
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
