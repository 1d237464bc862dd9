"""`python -m infra.environments.uv_install ARGUMENT…`: Trainwright's own packages, from where pip would install them.

It becomes `uv pip install ARGUMENT…`, or ends with exit code 1 if pip must install: it has a setting that uv has no
word for. `make setup` runs it, in the root and with the environment's own interpreter, before anything is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from infra.environments.indexes import (
    CONNECTION_SETTINGS,
    INDEX_SETTINGS,
    NO_INDEX,
    pip_settings_here,
    settings_for_uv,
)

# Settings that change nothing of what is installed.
HARMLESS = {
    *("retries", "disable-pip-version-check", "no-cache-dir", "cache-dir", "quiet", "config-file", "no-input"),
    *("progress-bar", "root-user-action", "no-color"),
}
KNOWN = HARMLESS | CONNECTION_SETTINGS.keys() | INDEX_SETTINGS.keys() | {NO_INDEX}


def uv_can(settings: Mapping[str, str]) -> bool:
    """Whether uv installs with these settings of pip's what pip would."""
    return settings.keys() <= KNOWN


if __name__ == "__main__":
    settings = pip_settings_here(os.environ)
    if not uv_can(settings):
        sys.exit(1)
    variables, options = settings_for_uv(settings, os.environ)
    os.environ.update(variables)
    os.execvp("uv", ["uv", "pip", "install", *options, *sys.argv[1:]])
