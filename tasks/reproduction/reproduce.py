"""Makes a model again: finds what is sealed, prepares an environment, lets a child make it, and compares.

It says what is the same on this machine as when the model was made, and what is not. Every id on the way is compared,
and the weights where an id differs.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from data_contracts.errors import CorruptError, TrainwrightError, UsageError, from_json
from data_contracts.handoffs import Ref
from data_contracts.messages.gang import Segment
from data_contracts.resolved import Recipe
from infra import audit, scratch
from infra.environments.cache import make_environment
from infra.environments.installer import Sources
from infra.environments.packages import OWN, packages_folder, split, versions
from infra.files import check_new, tag
from infra.gang.ledger import list_checkpoints
from infra.models.registry import own_revision
from infra.processes.environment import without_signing
from infra.processes.processes import marked_env, module_command, new_mark, run_to_end, terminable
from infra.sources.named_places import NO_PLACES, NamedPlaces
from infra.store import Manifest, Store, open_store
from infra.weights import TensorDifference, first_difference
from tasks.reproduction.remake import (
    ERROR,
    MADE,
    REQUEST,
    STORE,
    Made,
    Recorded,
    RemakeRequest,
    check_sources,
    moved,
    read_recorded,
)

log = logging.getLogger("trainwright")
ENVIRONMENT = "environment"
_LOCKED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!_-]*")
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
    comparison: RemakeComparison
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
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


def make_locked(folder: Path, lock: Sequence[str], wheels: Path | None) -> Path:
    """Make an environment with the packages of a lock (`name==version`) in a new folder; returns its interpreter.

    Raises:
        UsageError: the lock no longer resolves; CorruptError: a line of it is something else, such as an option.
    """
    if wrong := [line for line in lock if not _LOCKED.fullmatch(line)]:
        raise CorruptError(f"The recorded lock has a line that is not a name and a version: {wrong[0][:80]!r}.")
    named = {canonicalize_name(name): version for name, version in map(split, lock)}
    wanted = {name: version for name, version in named.items() if name != OWN}
    make_environment(folder, dict(wanted.items() - versions(packages_folder()).items()), Sources(wheels=wheels))
    return folder / "bin/python"


def _run_child(folder: Path, python: Path) -> None:
    """Let the child make the model; raises its error."""
    mark = new_mark()
    command = module_command(
        "infra.processes.tied_to_parent",
        "tasks.reproduction.remake",
        str(folder.resolve() / REQUEST),
        python=str(python),
    )
    with terminable(), scratch.make("reproduce", mark=mark) as own:
        environ = marked_env(mark, scratch.variables(own.path), without_signing(os.environ))
        # The answer of `reproduce` is alone on its standard output.
        code = run_to_end(command, mark, environ, stdout=sys.stderr.fileno(), handles=own.handles)
    if (folder / ERROR).exists():
        raise from_json(json.loads((folder / ERROR).read_text()))
    if code != 0 or not (folder / MADE).exists():
        raise TrainwrightError(f"The process that makes the model again ended with exit code {code}.")


def _machine_notes(recorded: Recorded, made_in: Store, made: Made) -> list[str]:
    segments = [Segment.model_validate(one) for one in made_in.manifest(made.checkpoint.ref).provenance["generations"]]
    if differs := machine_differences(recorded.segments, segments):
        return [f"This is not the same kind of machine: {'; '.join(differs)}."]
    return []


def lock_differences(recipe: Recipe) -> list[str]:
    """How the packages and the Python of this installation differ from the recorded ones, in words."""
    here, there = (dict(line.split("==", 1) for line in lines) for lines in (audit.lock(), recipe.lock))
    changed = [
        f"{name} {here.get(name, 'is missing')} instead of {version}"
        for name, version in there.items()
        if here.get(name) != version
    ]
    more = [f"{name} {version} was not there" for name, version in here.items() if name not in there]
    python = platform.python_version()
    return [*([] if python == recipe.python else [f"Python {python} instead of {recipe.python}"]), *changed, *more]


def revision_difference(recipe: Recipe) -> str:
    """How this Trainwright differs from the one that trained, as a sentence; "" if it does not."""
    then, here = recipe.trainwright, own_revision()
    if then.source == here.source:
        return ""
    name = f"revision {then.revision[:12]}" if then.revision else f"source {then.source[:12]}"
    changed = ", with changes that were not committed" if then.dirty else ""
    checkout = f" Check it out (`git worktree add DIR {then.revision[:12]}`) to run the same." if then.revision else ""
    return f"The model was trained by another Trainwright ({name}{changed}); this one may give other ids.{checkout}"


def machine_differences(recorded: Sequence[Segment], made: Sequence[Segment]) -> list[str]:
    """How the machines of two trainings differ in what decides bits, in words; each difference once."""
    found: dict[str, None] = {}
    for before, after in zip(recorded, made, strict=False):
        old, new = before.facts.model_dump(), after.facts.model_dump()
        for name, value in old.items():
            if new[name] != value:
                found[f"{name} {new[name]} instead of {value}"] = None
    return list(found)


@dataclass(frozen=True)
class Compared:
    """One id: as sealed, and as made again; "" if there is none."""

    what: str
    recorded: str
    made: str

    @property
    def equal(self) -> bool:
        """Whether both are the same."""
        return self.recorded == self.made


@dataclass(frozen=True)
class RemakeComparison:
    """What was made again, beside what is sealed.

    Attributes:
        weights_equal: whether the weights of the model are equal to the bit.
        step, weights: the first kept checkpoint whose weights differ, and how; None if none differ.
        parts: of the first kept checkpoint with another id: the files and settings that differ.
    """

    rows: list[Compared]
    weights_equal: bool
    step: int | None = None
    weights: TensorDifference | None = None
    parts: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether every id is the same."""
        return self.weights_equal and all(row.equal for row in self.rows)

    def to_json(self) -> dict[str, object]:
        """The comparison as objects that JSON can hold."""
        return {
            "equal": self.equal,
            "weights_equal": self.weights_equal,
            "rows": [{**asdict(row), "equal": row.equal} for row in self.rows],
            "first_difference": None if self.weights is None else {"step": self.step, **self.weights.to_json()},
            "parts": self.parts,
        }


def compare(store: Store, recorded: Recorded, made_in: Store, made: Made) -> RemakeComparison:
    """Compare every id, and the weights of each kept checkpoint whose id differs until one is found that differs."""
    checkpoint, evaluation = recorded.version.checkpoint, recorded.version.evaluation
    listed = list_checkpoints(made_in, made.checkpoint.training)
    there = {one.step: made_in.manifest(one.uri).ref for one in listed if one.state in ("committed", "verified")}
    rows = [
        *_row("contract report", recorded.contract, made.contract),
        *_row("dataset", recorded.dataset, made.dataset),
        *(
            Compared(f"checkpoint, step {step:,}", identity, there[step].id if step in there else "")
            for step, identity in recorded.steps.items()
        ),
        Compared(f"model, step {checkpoint.step:,}", checkpoint.ref.id, made.checkpoint.ref.id),
        Compared("evaluation", evaluation.id, made.evaluation.ref.id),
    ]
    stores = store, made_in
    pairs = [(step, (ref, there[step])) for step, ref in recorded.kept.items() if step in there]
    different = [(step, refs) for step, refs in pairs if refs[0].id != refs[1].id]
    parts = _parts(*(one.manifest(ref) for one, ref in zip(stores, different[0][1], strict=True))) if different else []
    last = checkpoint.ref, made.checkpoint.ref
    same = last[0].id == last[1].id or first_difference(stores, last) is None
    for step, refs in different:
        if (found := first_difference(stores, refs)) is not None:
            return RemakeComparison(rows, same, step, found, parts)
    return RemakeComparison(rows, same, parts=parts)


def _row(what: str, recorded: Ref | None, made: Ref | None) -> list[Compared]:
    if recorded is None:
        return []
    return [Compared(what, recorded.id, "" if made is None else made.id)]


def _parts(before: Manifest, after: Manifest) -> list[str]:
    """The files and the settings of two checkpoints that differ."""
    files = [{file.path: file.blake3 for file in one.files} for one in (before, after)]
    settings = before.settings, after.settings
    return [
        *(name for name in sorted({*files[0], *files[1]}) if files[0].get(name) != files[1].get(name)),
        *(name for name in sorted({*settings[0], *settings[1]}) if settings[0].get(name) != settings[1].get(name)),
    ]
