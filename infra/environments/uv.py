"""Runs uv with the indexes of this machine, without credentials that it does not need; uv ends with this process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_contracts.errors import CorruptError, SpecError, StorageUnavailable, TrainwrightError, UsageError
from infra import scratch
from infra.environments.indexes import uv_settings, without_credentials
from infra.processes.environment import for_user_code
from infra.processes.processes import marked_env, module_command, new_mark, run_to_end, terminable

MAX_CHARACTERS = 700
# The ends of sentences about releases whose age counts.
UNDATED = "does not say when it got its files, so their age is not known."
TOO_YOUNG = "Only files that the index got before"
_UNDATED_FILE = re.compile(r"^warning: `([^`]*)` is missing an upload date.*\n?", re.MULTILINE)
_LEFT_OUT = re.compile(r"filtered by `exclude-newer` to only include packages uploaded before (\S+)\. ")
# uv reads no configuration that a person made for other projects.
_UV_VARIABLES = {
    "UV_NO_CONFIG": "1",
    "UV_NO_PROGRESS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "NO_COLOR": "1",
}
_UNREACHABLE = re.compile(
    r"error sending request|failed to (?:fetch|download)|connect(?:ion)? (?:error|refused|reset)|timed out|dns error|"
    r"status (?:server )?error|\b50\d\b",
    re.IGNORECASE,
)
# A retry does not change this, so it is looked for before the words of an outage.
_HASH_MISMATCH = re.compile(r"hash mismatch|hashes? (?:do|does) not match", re.IGNORECASE)
_REFUSED = re.compile(r"\b(?:401 unauthorized|403 forbidden|404 not found|status code:? 40[134])\b", re.IGNORECASE)
_DISK = re.compile(r"no space left|disk quota|permission denied|read-only file system", re.IGNORECASE)


class UvFailed(Exception):
    """uv ended with an error; `reason` is what it printed, as one line without credentials."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def run_uv(*arguments: str, folder: Path | None = None) -> str:
    """What `uv ARGUMENT…` printed on its standard output.

    Raises:
        UvFailed: it ended with an error of the request.
        StorageUnavailable: an index does not answer; CorruptError: a package has another hash.
        UsageError: an index refuses this machine, or this machine's disk does not take the files.
    """
    variables, options = uv_settings(os.environ) if arguments[0] == "pip" else ({}, [])
    more = [option for option in options if option not in arguments]
    code, output, errors = run([binary(), *arguments, *more], {**variables, **_UV_VARIABLES}, folder)
    if code != 0:
        raise _failed(errors)
    return output


def run(
    command: Sequence[str], variables: Mapping[str, str], folder: Path | None = None
) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a command, which ends with this process and gets no credentials of its own."""
    mark = new_mark()
    with terminable(), scratch.make("install", mark=mark) as own:
        output, errors = own.path / "output.txt", own.path / "errors.txt"
        # A supervisor installs in a thread, which nothing waits for once the node ends.
        tied = module_command("infra.processes.tied_to_parent", "--", *command)
        environ = marked_env(mark, scratch.variables(own.path), {**for_user_code(os.environ, {}), **variables})
        with output.open("wb") as out, errors.open("wb") as err:
            code = run_to_end(tied, mark, environ, stdout=out, stderr=err, folder=folder, handles=own.handles)
        return code, output.read_text(errors="replace"), errors.read_text(errors="replace")


def make_venv(folder: Path, python: str) -> None:
    """An empty environment in a new folder, which may be renamed afterwards."""
    run_uv("venv", "--quiet", "--relocatable", "--no-project", "--python", python, str(folder))


def install(
    python: Path, arguments: Sequence[str], build: Sequence[str], wheels: Path | None, uploaded_before: str = ""
) -> None:
    """Install into the environment of `python`: from wheels alone, except the names in `build`.

    Args:
        arguments: files of requirements and constraints, as options.
        wheels: a folder that every package comes from; default: the indexes of this machine.
        uploaded_before: only files that an index got before this time (ISO 8601); "": all.
    """
    sources = [option for name in build for option in ("--no-binary", name)]
    places = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
    if uploaded_before:
        # uv takes a wheel from a folder whatever its age.
        if wheels is not None or uv_settings(os.environ)[0].get("UV_FIND_LINKS"):
            raise UvFailed(f"A folder of wheels (find-links) {UNDATED}")
        places += ["--exclude-newer", uploaded_before]
    # Copies, not links: damage here, or code that writes into a package, would reach uv's cache and come back from it.
    ways = ("--only-binary", ":all:", "--link-mode", "copy")
    run_uv("pip", "install", "--python", str(python), *ways, *sources, *places, *arguments)


def export(folder: Path) -> list[str]:
    """The locked requirements of a project, without the project itself; SpecError if uv cannot read them."""
    options = ("--frozen", "--no-dev", "--no-emit-project", "--no-header", "--no-annotate", "--no-hashes")
    try:
        text = run_uv("export", "--quiet", *options, folder=folder)
    except UvFailed as error:
        raise SpecError(
            f"environment: {folder / 'uv.lock'} cannot be read: {error.reason}",
            remedy="Run `uv lock` in its folder.",
        ) from error
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def binary() -> str:
    """Path of the program."""
    from uv import find_uv_bin

    try:
        return str(find_uv_bin())
    except FileNotFoundError as error:
        raise UsageError("uv, which installs environments, is not there.", remedy="Run `make setup` again.") from error


def _failed(text: str) -> TrainwrightError | UvFailed:
    """The error for what uv printed."""
    undated, left_out = _UNDATED_FILE.search(text), _LEFT_OUT.search(text)
    reason = as_sentence(_UNDATED_FILE.sub("", text))
    if _DISK.search(reason):
        return UsageError(
            f"uv cannot write on this machine: {reason}",
            remedy="Free space, and permit this user to write: TRAINWRIGHT_HOME names the folder of environments, "
            "UV_CACHE_DIR that of uv's downloads.",
        )
    if _HASH_MISMATCH.search(reason):
        return CorruptError(
            f"A package does not have the hash that was asked for: {reason}",
            remedy="Find out who changed it; correct the hash if the change is right.",
        )
    if _REFUSED.search(reason):
        return UsageError(
            f"The package index refuses this machine, or lacks the file: {reason}",
            remedy="Correct the address and the password of the index in pip's configuration of this machine.",
        )
    if _UNREACHABLE.search(reason):
        return StorageUnavailable(f"The package index does not answer uv: {reason}")
    if undated is not None:
        reason += f" The index of {undated[1]} {UNDATED}"
    elif left_out is not None:
        reason += f" {TOO_YOUNG} {left_out[1]} count."
    return UvFailed(reason)


def as_sentence(text: str) -> str:
    """What uv printed as one line, without its frames, its hints and the credentials in addresses."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("Using Python", "Resolved"))]
    plain = re.sub(r"[│×╰─▶├]+|\b(?:error|cause|warning): ", " ", without_credentials("\n".join(lines)))
    joined = " ".join(plain.partition("hint:")[0].split())
    return joined if len(joined) <= MAX_CHARACTERS else f"{joined[:MAX_CHARACTERS]}…"
