"""Makes a model again: finds what is sealed, prepares an environment, lets a child make it, and compares."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError, UsageError, from_json
from data_contracts.messages.gang import Segment
from infra import scratch
from infra.environments.cache import make_locked
from infra.files import check_new, tag
from infra.processes.environment import without_signing
from infra.processes.processes import marked_env, module_command, new_mark, run_to_end, terminable
from infra.sources.named_places import NO_PLACES, NamedPlaces
from infra.store import Store, open_store
from tasks.reproduction.comparison import Comparison, compare
from tasks.reproduction.conditions import lock_differences, machine_differences, revision_difference
from tasks.reproduction.recorded import Recorded, read_recorded
from tasks.reproduction.remake import ERROR, MADE, REQUEST, STORE, Made, RemakeRequest
from tasks.reproduction.sources import check_sources, moved

log = logging.getLogger("trainwright")
ENVIRONMENT = "environment"
TRUST = (
    "reproduce runs the model's own code, which is read from {uri}: whoever can write this store may have chosen it. "
    "Run it only for a store whose writers you trust with this machine."
)


@dataclass(frozen=True)
class Request:
    """What to reproduce, and where.

    Attributes:
        into: a new folder; None: one beside, named after the version.
        places: where the raw files lie now; those in the spec's folder are where they were unless it names a folder.
        wheels: the folder of wheels for packages that are not installed here; None: the indexes of this machine.
        here: whether this installation is used instead of a new environment.
    """

    name: str
    into: Path | None = None
    places: NamedPlaces = NO_PLACES
    wheels: Path | None = None
    here: bool = False


@dataclass(frozen=True)
class Reproduction:
    """The result: what was compared, where it was made, and what else a reader must know."""

    version: str
    folder: str
    comparison: Comparison
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The result as objects that JSON can hold."""
        return {"version": self.version, "folder": self.folder, "notes": self.notes, **self.comparison.to_json()}


def reproduce(store: Store, request: Request) -> Reproduction:
    """Make a model version again in a new folder, and compare it with what is sealed.

    Raises:
        UsageError: something is missing, or this installation or its indexes do not have the recorded packages.
        CorruptError: something that is sealed, or a raw file, has changed.
        TrainwrightError: the cause, if it could not be made.
    """
    recorded = read_recorded(store, request.name)
    version = f"{recorded.version.name}@{recorded.version.version}"
    folder = request.into or Path(f"reproduced-{recorded.version.name}-{recorded.version.version}")
    check_new(folder, "Name a new folder with --into, or remove it.")
    log.warning("%s", TRUST.format(uri=store.uri))
    notes = _notes(recorded)
    places = request.places
    checked = check_sources(moved(recorded.recipe.resolved, places), places)
    log.info("sources   %s as before", "1 raw file is" if checked == 1 else f"{checked:,} raw files are")
    folder.mkdir(parents=True, exist_ok=True)
    tag(folder)
    try:
        python = _interpreter(recorded, request, folder)
    except BaseException:
        # So that the same command can be tried again.
        shutil.rmtree(folder / ENVIRONMENT, ignore_errors=True)
        raise
    data, addresses = None if places.folder is None else str(places.folder), list(places.addresses)
    remake = RemakeRequest(source=store.address, name=version, data=data, addresses=addresses)
    (folder / REQUEST).write_text(remake.model_dump_json())
    _run_child(folder, python)
    made = Made.model_validate_json((folder / MADE).read_text())
    made_in = open_store(str(folder.resolve() / STORE), create=False)
    notes += _machine_notes(recorded, made_in, made)
    return Reproduction(version, str(folder), compare(store, recorded, made_in, made), notes)


def _notes(recorded: Recorded) -> list[str]:
    """What is to be known before anything is made."""
    notes = [one] if (one := revision_difference(recorded.trained)) else []
    if recorded.external:
        notes.append(
            "The data is external: the model's data module reads it again, and nothing proves that it reads the same."
        )
    if (begin := recorded.recipe.resolved.init_from) is not None:
        notes.append(f"The training began with {begin.uri}, which is copied and not made again.")
    if recorded.recipe.lock != recorded.trained.lock:
        notes.append("The version was made with other packages than its training, whose packages are used for all.")
    for note in notes:
        log.warning("%s", note)
    return notes


def _interpreter(recorded: Recorded, request: Request, folder: Path) -> Path:
    """The interpreter that the model is made with."""
    trained = recorded.trained
    wanted, found = trained.python.split(".")[:2], list(map(str, sys.version_info[:2]))
    if wanted != found:
        raise UsageError(
            f"The model was trained with Python {trained.python}; this is Python {'.'.join(found)}.",
            remedy=f"Install Trainwright with Python {'.'.join(wanted)}, and run it again.",
        )
    if not request.here:
        started = time.monotonic()
        python = make_locked(folder / ENVIRONMENT, trained.lock, request.wheels)
        log.info("lock      %d packages installed in %.1f s", len(trained.lock), time.monotonic() - started)
        return python
    if differs := lock_differences(trained):
        more = f" and {len(differs) - 5} more" if len(differs) > 5 else ""
        raise UsageError(
            f"--here: this installation is not the recorded one: {', '.join(differs[:5])}{more}.",
            remedy="Leave --here out: the recorded packages are then installed into a new environment.",
        )
    return Path(sys.executable)


def _run_child(folder: Path, python: Path) -> None:
    """Let the child make the model; raises its error."""
    mark = new_mark()
    path = str(folder.resolve() / REQUEST)
    command = module_command("infra.processes.tied_to_parent", "tasks.reproduction.remake", path, python=str(python))
    with terminable(), scratch.make("reproduce", mark=mark) as own:
        environ = marked_env(mark, scratch.variables(own.path), without_signing(os.environ))
        # The answer of `reproduce` is alone on its standard output.
        code = run_to_end(command, mark, environ, stdout=sys.stderr.fileno(), handles=own.handles)
    if (folder / ERROR).exists():
        raise from_json(json.loads((folder / ERROR).read_text()))
    if code != 0 or not (folder / MADE).exists():
        raise TrainwrightError(f"The process that makes the model again ended with exit code {code}.")


def _machine_notes(recorded: Recorded, made_in: Store, made: Made) -> list[str]:
    manifest = made_in.manifest(made.checkpoint.ref)
    segments = [Segment.model_validate(one) for one in manifest.provenance["generations"]]
    if differs := machine_differences(recorded.segments, segments):
        return [f"This is not the same kind of machine: {'; '.join(differs)}."]
    return []
