"""`uv pip install ARGUMENT…` with the indexes that pip is set to use; exit code 1 if pip must install instead.

Run by `make setup` with the environment's own interpreter. uv does not read pip's settings, which choose the build of
torch, for one. A setting that is not known here (a certificate, a proxy, a constraint) is left to pip.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

# Settings of pip that `pip install` reads, the later ones first of all.
SECTIONS = ("global", "install", ":env:")
# Variables, because a command line, and a password in it, can be read by every user of the machine.
VARIABLES = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
HARMLESS = {"default-timeout", "timeout", "retries", "disable-pip-version-check", "no-cache-dir", "cache-dir", "quiet"}


def variables(listed: str) -> dict[str, str] | None:
    """Uv's variables for what `pip config list` printed, such as `global.index-url='https://…'`; None: pip installs."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, setting = name.rpartition(".")
        if section in found and setting not in HARMLESS:
            found[section][setting] = ast.literal_eval(value)
    settings = {name: value for section in SECTIONS for name, value in found[section].items()}
    if not settings.keys() <= VARIABLES.keys():
        return None
    places = {name: ("," if name == "find-links" else " ").join(value.split()) for name, value in settings.items()}
    chosen = {VARIABLES[name]: value for name, value in places.items()}
    # pip takes the best version that any index has; by default uv looks only in the first that has the package.
    return {**chosen, "UV_INDEX_STRATEGY": "unsafe-best-match"}


if __name__ == "__main__":
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    found = variables(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if found is None:
        sys.exit(1)
    os.environ.update(found)
    os.execvp("uv", ["uv", "pip", "install", *sys.argv[1:]])
