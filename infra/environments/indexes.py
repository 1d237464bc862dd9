"""pip's settings as uv's: which indexes and folders of wheels packages come from on this machine.

uv does not read pip's configuration, which chooses the build of torch, for one. The settings become variables, because
every user of a machine can read a command line, and with it the password in an index's address.

`python -m infra.environments.indexes ARGUMENT…` installs Trainwright's own packages, from where pip would. It becomes
`uv pip install ARGUMENT…`, or ends with exit code 1 if pip must install: it has a setting that uv has no word for.
`make setup` runs it, in the root and with the environment's own interpreter, before anything is installed, so this
module imports only the standard library, and of ours what needs nothing else.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from data_contracts.errors import UsageError
from infra.processes.environment import for_user_code

# Sections of pip's settings that `pip install` reads; a later one replaces values of an earlier one.
PIP_SECTIONS = ("global", "install", ":env:")
INDEX_SETTINGS = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
# How an index is reached, and which versions may be chosen.
CONNECTION_SETTINGS = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "trusted-host": "UV_INSECURE_HOST",
    "constraint": "UV_CONSTRAINT",
    "timeout": "UV_HTTP_TIMEOUT",
}
NO_INDEX = "no-index"
# What pip takes for true.
_YES = ("y", "yes", "t", "true", "on", "1")
_PIP_PREFIX, _PIP_FILE = "PIP_", "PIP_CONFIG_FILE"
# uv's other variables, such as the password of a named index, begin like this.
_UV_PREFIX = "UV_"
# An address to the next space, without the marks that close a sentence; a folder's address is no secret.
_ADDRESS = re.compile(r"\b(?!file:)([A-Za-z][\w+.-]*)://(\S*?)(?=[])}`'\",.;:>]*(?:\s|$))")
_AUTHORITY = re.compile(r"([^/?#]*)(.*)")
_HOST = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?")
# Settings that change nothing of what is installed.
HARMLESS = {
    *("retries", "disable-pip-version-check", "no-cache-dir", "cache-dir", "quiet", "config-file", "no-input"),
    *("progress-bar", "root-user-action", "no-color"),
}
KNOWN = HARMLESS | CONNECTION_SETTINGS.keys() | INDEX_SETTINGS.keys() | {NO_INDEX}


def pip_settings(listed: str) -> dict[str, str]:
    """The settings of `pip install` in what `pip config list` printed, such as `global.index-url='https://…'`."""
    found: dict[str, dict[str, str]] = {section: {} for section in PIP_SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, setting = name.rpartition(".")
        if section in found:
            found[section][setting] = ast.literal_eval(value)
    # pip passes over an empty value, and over `timeout` where `default-timeout` counts more, or the other way round.
    return {
        "timeout" if name == "default-timeout" else name: value
        for section in PIP_SECTIONS
        for name, value in found[section].items()
        if value.strip()
    }


def uv_settings(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Variables and options that make uv install from where pip would here; uv's own variables count more.

    Raises:
        UsageError: pip does not list its settings; without them, packages would come from another index.
    """
    return settings_for_uv(pip_settings_here(environ), environ)


def pip_settings_here(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of `pip install` in this environment; errors are those of `uv_settings`."""
    return pip_settings(_pip_config_list(environ))


def settings_for_uv(settings: Mapping[str, str], environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Variables and options of uv for these settings of pip's; those that uv has no word for are left out."""
    variables = {
        word: ("," if name == "find-links" else " ").join(_expanded(name, one) for one in settings[name].split())
        for name, word in {**CONNECTION_SETTINGS, **INDEX_SETTINGS}.items()
        if name in settings
    }
    # pip takes the best version that any index has; by default uv looks only in the first that has the package.
    variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    own = {name: value for name, value in environ.items() if name.startswith(_UV_PREFIX)}
    forbidden = settings.get(NO_INDEX, "").lower() in _YES
    return {**variables, **own}, ["--no-index"] if forbidden else []


def _expanded(name: str, value: str) -> str:
    """The value as pip reads it: a path may begin with `~`, and seconds may have a fraction, which uv's may not."""
    if name in ("cert", "client-cert", "find-links"):
        return os.path.expanduser(value)
    return (value.partition(".")[0] or "1") if name == "timeout" else value


def _pip_config_list(environ: Mapping[str, str]) -> str:
    """What `pip config list` prints; nothing in the working folder is imported, and pip gets no other credentials."""
    command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "config", "list"]
    of_pip = {name: value for name, value in environ.items() if name.startswith(_PIP_PREFIX)}
    if file := of_pip.get(_PIP_FILE):
        of_pip[_PIP_FILE] = os.path.abspath(file)
    env = {**for_user_code(environ, {}), **of_pip}
    listed = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        # pip's own message may quote a line of its configuration, and with it a password.
        raise UsageError(
            f"pip of {sys.executable} does not say which indexes this machine uses (exit code {listed.returncode}).",
            remedy="Run `python -m pip config list` with this Python, and correct pip's configuration or install pip.",
        )
    return listed.stdout


def source_digests(environ: Mapping[str, str]) -> list[str]:
    """Digests of what decides where packages come from here: as cheap as reading a few files, which are pip's."""
    variables = sorted((name, value) for name, value in environ.items() if name.startswith((_PIP_PREFIX, _UV_PREFIX)))
    home = Path(environ.get("HOME") or "/")
    named = environ.get(_PIP_FILE)
    files = [
        Path("/etc/pip.conf"),
        *(Path(folder) / "pip/pip.conf" for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")),
        Path("/Library/Application Support/pip/pip.conf"),
        home / "Library/Application Support/pip/pip.conf",
        home / ".pip/pip.conf",
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
        *([Path(named)] if named else []),
    ]
    places = [value for name, value in variables if name.endswith("_FIND_LINKS")]
    folders = [Path(one.removeprefix("file://")) for value in places for one in re.split(r"[\s,]+", value) if one]
    listings = [folder_listing(folder) for folder in folders if folder.is_dir()]
    texts = [repr(variables).encode(), *map(_bytes, files)]
    return [*(hashlib.sha256(text).hexdigest() for text in texts), repr(listings)]


def _bytes(file: Path) -> bytes:
    """The bytes of a file; none if it is not there, or is not for this user, who pip runs as."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def folder_listing(folder: Path) -> list[list[str | int]]:
    """What tells the files of a folder from others without reading them; a change of a file's bytes changes it."""
    found: list[list[str | int]] = []
    for path in sorted(folder.iterdir()):
        facts = path.stat() if path.exists() else path.lstat()
        found.append([path.name, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns])
    return found


def without_credentials(text: str) -> str:
    """`text` with each address cut to its host: a user, a path or a query may be a password or token."""
    return _ADDRESS.sub(_host_alone, text)


def _host_alone(match: re.Match[str]) -> str:
    scheme, address = match.groups()
    host, rest = _AUTHORITY.fullmatch(address).groups()  # type: ignore[union-attr]
    # A password with a slash ends the part that has the host too early.
    plain = "@" not in rest and _HOST.fullmatch(host.rpartition("@")[2])
    return f"{scheme}://{plain[0] if plain else '…'}"


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
