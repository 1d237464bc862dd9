"""The installer of this machine: uv where it is on the PATH, else pip.

Each takes packages from where its own configuration on this machine says: its files, and its variables (`UV_*`,
`PIP_*`). It gets no other credentials, and ends with this process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError
from infra import scratch
from infra.processes.environment import for_user_code
from infra.processes.processes import marked_env, module_command, new_mark, run_to_end, terminable

_PRINTS = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
# Code that writes into a package must not change the same file in uv's cache.
_FILES = {"UV_COMPILE_BYTECODE": "1", "UV_LINK_MODE": "copy"}
_ADDED_BY_UV = re.compile(r"^ \+ (\S+)==(\S+)", re.MULTILINE)
_HASH_MISMATCH = re.compile(r"(?i)hash mismatch|hashes? do(?:es)? not match|do not match the hashes")
_UNREACHABLE = re.compile(
    r"(?i)error sending request|connection (?:refused|reset|broken)|timed out|dns error|(?:HTTP|server) error.{,2}50\d"
)
_ADDRESS = re.compile(r"\b(?!file:)(\w+)://(?:\S*@)?([\w.-]*)\S*")
# What pip shows of an address that does not answer: its path and its query, which may hold a token.
_PATH_OF_ADDRESS = re.compile(r"(?<=: )/\S+")


class Sources(NamedTuple):
    """Which files are taken: only wheels, except for the names in `build`; from a folder, if one is named, and nowhere
    else; only those that an index got before a time (ISO 8601); of some packages, only those with one of the hashes."""

    build: Sequence[str] = ()
    wheels: Path | None = None
    uploaded_before: str = ""
    hashes: Mapping[str, str] = {}


def find_missing(requirements: Sequence[str], sources: Sources) -> dict[str, str]:
    """Version by name of what must be installed so that this installation meets the requirements; errors: `install`."""
    with scratch.make("resolve") as folder:
        report = folder.path / "report.json"
        options = ["--dry-run"] if shutil.which("uv") else ["--dry-run", "--report", str(report)]
        added = _ADDED_BY_UV.findall(install(sys.executable, requirements, sources, options))
        if report.exists():
            packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
            added = [(package["name"], package["version"]) for package in packages]
    return {canonicalize_name(name): version for name, version in added}


def install(python: str, lines: Sequence[str], sources: Sources, options: Sequence[str]) -> str:
    """Install the packages of lines of requirements for an interpreter; returns what the installer printed.

    StorageUnavailable if an index does not answer, CorruptError for another hash, UsageError for every other failure.
    """
    uv = shutil.which("uv")
    # With -P, a pip.py in the working folder is not run.
    pip = [sys.executable, "-P", "-m", "pip", "--python", python, "install"]
    command = [uv, "pip", "install", "--python", python] if uv else pip
    command += ["--only-binary", ":all:", *(option for name in sources.build for option in ("--no-binary", name))]
    if sources.wheels is not None:
        command += ["--no-index", "--find-links", str(sources.wheels)]
    if sources.uploaded_before:
        _refuse_ageless("UV_FIND_LINKS" if uv else "PIP_FIND_LINKS")
        command += ["--exclude-newer" if uv else "--uploaded-prior-to", sources.uploaded_before]
    with scratch.make("requirements") as folder:
        file = folder.path / "requirements.txt"
        file.write_text("\n".join(lines))
        return run_tied([*command, *options, "--requirement", str(file)])


def _refuse_ageless(variable: str) -> None:
    """UsageError if a variable names folders of wheels: installers take those whatever their age."""
    if os.environ.get(variable):
        raise UsageError(
            f"environment.packages: {variable} names wheels, which have no upload times.",
            remedy=f"Unset {variable}, or leave environment.packages.min_age_days out.",
        )


def run_tied(command: Sequence[str]) -> str:
    """What a command printed; it ends with this process. Errors are those of `install`."""
    mark = new_mark()
    own_settings = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}
    with terminable(), scratch.make("install", mark=mark) as own:
        output = own.path / "output.txt"
        # A supervisor installs in a thread, which nothing waits for once the node ends.
        tied = module_command("infra.processes.tied_to_parent", "--", *command)
        environ = {**for_user_code(os.environ, {}), **own_settings, **_PRINTS, **_FILES}
        with output.open("wb") as out:
            marked = marked_env(mark, scratch.variables(own.path), environ)
            code = run_to_end(tied, mark, marked, stdout=out, stderr=out, handles=own.handles)
        printed = output.read_text(errors="replace")
    if code != 0:
        raise _error(printed)
    return printed


def _error(printed: str) -> TrainwrightError:
    """The error for what the installer printed: one line without its hints, and of addresses the host alone."""
    errors = re.split(r"(?m)^(?=ERROR|error|WARNING|  ×)", printed, maxsplit=1)[-1]
    errors = re.split(r"hint:|To fix this you could try", errors)[0]
    plain = re.sub(r"[│×╰─▶├]+|\b(?:error|ERROR|cause|WARNING): ", " ", errors)
    reason = " ".join(_PATH_OF_ADDRESS.sub("…", _ADDRESS.sub(r"\1://\2", plain)).split())[:700]
    if _HASH_MISMATCH.search(reason):
        return CorruptError(
            f"A package does not have the hash that was asked for: {reason}",
            remedy="Find out who changed it; correct the hash if the change is right.",
        )
    if _UNREACHABLE.search(reason):
        return StorageUnavailable(f"The package index does not answer: {reason}")
    return UsageError(reason, remedy="docs/environment.md says what to do for each error of the installer.")
