"""`python -m infra.environments.uv_install ARGUMENT…`: Trainwright's own packages, from where pip would install them.

It becomes `uv pip install ARGUMENT…`, or ends with exit code 1 if pip must install instead: a setting of pip's other
than the places that packages come from (a certificate, a proxy, a constraint) is left to pip. `make setup` runs it, in
the root and with the environment's own interpreter, before anything is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys

from infra.environments.indexes import INDEX_SETTINGS, index_variables, pip_settings

HARMLESS = {"default-timeout", "timeout", "retries", "disable-pip-version-check", "no-cache-dir", "cache-dir", "quiet"}


def variables(listed: str) -> dict[str, str] | None:
    """Uv's variables for what `pip config list` printed; None: pip installs."""
    settings = {name: value for name, value in pip_settings(listed).items() if name not in HARMLESS}
    return index_variables(settings) if settings.keys() <= INDEX_SETTINGS.keys() else None


if __name__ == "__main__":
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    found = variables(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if found is None:
        sys.exit(1)
    os.environ.update(found)
    os.execvp("uv", ["uv", "pip", "install", *sys.argv[1:]])
