"""What a store knows of nodes, and of the environments from which a run's processes import.

A node's record is created once, so it outlives the run and the conductor that saw it. A node is known by the name that
its supervisor states. Nothing proves the name, and nothing proves that whoever wrote a record told the truth (ADR
0050).

There is one record for each environment, and a mark for each run that used it. Whoever starts a process writes this
down first, from files, so that no package can keep itself off the list. A process on another machine has its own
environment: a node and a Dask worker write down theirs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import socket
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import get_args

from packaging.utils import canonicalize_name

from data_contracts.canonical import KEY_LENGTH, digest, is_name
from data_contracts.errors import CorruptError, UsageError
from data_contracts.records import FailureEvent, FailureKind, InstalledPackage, InstalledPackages, NodeStanding
from infra.audit import actor, headers, now
from infra.environments.cache import interpreter
from infra.environments.packages import packages_folder_in
from infra.files import replace_json
from infra.store import Store, layout

# Names a node where its host name does not: in a container, whose host name is another one each time.
NODE = "TRAINWRIGHT_NODE"
MOST_NAME = 253
# As `node_standing` writes a number.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
_LIST = ".environment.json"
# In place of an environment: runs that began in an earlier version, which left no marks.
EARLIER = "earlier"
# Rows of a RECORD that installers write themselves.
_OF_INSTALLERS = tuple(
    f".dist-info/{name}" for name in ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
)


@dataclass(frozen=True)
class NodeRecord:
    """One node: what went wrong on it, oldest first, and the newest decision of a person; None if there is none."""

    name: str
    failures: list[FailureEvent]
    standing: NodeStanding | None

    @property
    def is_drained(self) -> bool:
        """Whether no training may use it."""
        return self.standing is not None and self.standing.drained

    def count(self, kind: FailureKind, *, ever: bool = False) -> int:
        """How often this went wrong since the node was last restored, or `ever`."""
        since = "" if ever or self.standing is None or self.standing.drained else self.standing.at
        return sum(one.kind == kind and one.at >= since for one in self.failures)


def this_node() -> str:
    """The name of the node that this process runs on."""
    return os.environ.get(NODE) or socket.gethostname()


def record_failure(store: Store, failure: FailureEvent) -> bool:
    """Store a failure event, once for each node, training, generation and kind; returns whether this call did."""
    if not is_node_name(failure.node):
        return False
    same = digest([failure.training, failure.generation, failure.kind])[:32]
    return store.create_once(layout.node_failure(failure.node, same), failure.to_json())


def nodes_of(store: Store) -> list[NodeRecord]:
    """Every node that the store knows, by name; CorruptError if a record is damaged."""
    found = (_node(store, folder) for folder in _folders(store))
    return sorted((node for node in found if node is not None), key=lambda node: node.name)


def has_failures(store: Store, name: str) -> bool:
    """Whether anything went wrong on a node, as far as the store knows; reads no record."""
    return bool(store.list(layout.node_failures(layout.node_folder(name))))


def drained_nodes(store: Store) -> dict[str, NodeStanding]:
    """The nodes that no training may use, by name."""
    standings = (_standing(store, folder) for folder in _folders(store))
    return {one.node: one for one in standings if one is not None and one.drained}


def decide(store: Store, name: str, *, drained: bool, reason: str) -> NodeStanding:
    """Record that a node is drained, or takes part again. UsageError for a name that cannot be one."""
    if not is_node_name(name):
        raise UsageError(f"{name[:80]!a} cannot be the name of a node.", remedy="`trainwright nodes` lists them.")
    folder = layout.node_folder(name)
    before = _standing(store, folder)
    if not drained and (before is None or not before.drained):
        raise UsageError(f"The node {name} is not drained.", remedy="`trainwright nodes` lists those that are.")
    decision = NodeStanding(node=name, drained=drained, reason=reason, by=actor(), at=now())
    k = _newest(store, folder) + 1
    while not store.create_once(layout.node_standing(folder, k), decision.to_json()):
        k += 1
    return decision


def is_node_name(name: str) -> bool:
    """Whether a text may be the name of a node."""
    return 0 < len(name) <= MOST_NAME and name.isprintable() and not name.isspace()


def _folders(store: Store) -> list[str]:
    """The folders of nodes; what is no name was not made by Trainwright."""
    return [name for name in store.list(layout.NODES) if is_name(name)]


def _node(store: Store, folder: str) -> NodeRecord | None:
    """What is recorded of a node; None if nothing is."""
    names = [name for name in store.list(layout.node_failures(folder)) if name.endswith(".json")]
    paths = [f"{layout.node_failures(folder)}/{name}" for name in names]
    failures = sorted(
        (store.read_as(path, FailureEvent.from_json) for path in paths), key=lambda one: (one.at, one.generation)
    )
    standing = _standing(store, folder)
    if standing is None and not failures:
        return None
    return NodeRecord(failures[0].node if standing is None else standing.node, failures, standing)


def _standing(store: Store, folder: str) -> NodeStanding | None:
    """The newest decision about a node."""
    k = _newest(store, folder)
    return None if k < 0 else store.read_as(layout.node_standing(folder, k), NodeStanding.from_json)


def _newest(store: Store, folder: str) -> int:
    """The number of the newest decision about a node; -1 if there is none."""
    stems = [name.removesuffix(".json") for name in store.list(layout.node_standings(folder))]
    return max((int(stem) for stem in stems if _NUMBER.fullmatch(stem)), default=-1)


def import_places(project: Path | None) -> list[str]:
    """Where a process with a project's code imports from: its interpreter, and the project if packages lie in it."""
    places = [interpreter(project)]
    return [*places, str(project)] if project is not None and installed_packages(str(project)).packages else places


def note_environment(store: Store, run_id: str, place: str) -> str:
    """Write down that a process of the run imports from one of `import_places`; returns the list's name, a digest.

    Args:
        run_id: as the provenance of the results has it.
    """
    return note_packages(store, run_id, installed_packages(place))


def note_packages(store: Store, run_id: str, packages: InstalledPackages) -> str:
    """`note_environment` for a list that was made before, perhaps on another machine."""
    name = _name_of(packages)
    if not store.exists(layout.environment(name)):
        store.create_once(layout.environment(name), packages.to_json())
    store.create_once(layout.imported_from(name, run_id), {"schema_version": 1})
    return name


def note_earlier(store: Store, run_id: str) -> None:
    """Before a run is continued: write down if it has no mark, so that later marks do not seem to be all."""
    names = store.list(layout.environments())
    if not any(store.exists(layout.imported_from(name, run_id)) for name in names):
        store.create_once(layout.imported_from(EARLIER, run_id), {"schema_version": 1})


def keep_lists(folder: str, project: str | None) -> None:
    """Leave the lists of this process and of one with the project's code in a folder, for `note_lists`."""
    for place in {sys.executable, *import_places(Path(project) if project else None)}:
        packages = installed_packages(place)
        replace_json(Path(folder) / f"{_name_of(packages)}{_LIST}", packages.to_json())


def note_lists(store: Store, run_id: str, folder: Path) -> None:
    """`note_packages` for each list that a machine which may not reach the store left in the folder."""
    for path in folder.glob(f"*{_LIST}"):
        note_packages(store, run_id, InstalledPackages.from_json(json.loads(path.read_text())))


def read_environment(store: Store, name: str) -> list[InstalledPackage]:
    """What is installed in an environment; CorruptError if the record is not what its name stands for, or is gone."""
    path = layout.environment(name)
    listed = store.find_as(path, InstalledPackages.from_json)
    if listed is None or _name_of(listed) != name:
        raise CorruptError(f"{path} is not the list that its name stands for.", details={"file": path})
    return listed.packages


def _name_of(packages: InstalledPackages) -> str:
    return digest(packages.to_json())[:KEY_LENGTH]


@functools.cache
def installed_packages(place: str) -> InstalledPackages:
    """What a process can import from a folder, or by an interpreter; by this process's own, also from further paths."""
    path = [place]
    if not Path(place).is_dir():
        # Another interpreter is that of an environment, whose packages come before those of this process.
        above = [] if place == sys.executable else [str(packages_folder_in(Path(place).parent.parent))]
        path = [*above, *sys.path]
    places = metadata.distributions(path=path)
    # Of two versions on the path, the first is imported.
    packages = {package.name: package for package in reversed(list(filter(None, map(_package, places))))}
    return InstalledPackages(packages=[packages[name] for name in sorted(packages)])


def _package(distribution: metadata.Distribution) -> InstalledPackage | None:
    """A package; None for an uninstallation's remains."""
    about = headers(distribution)
    if "name" not in about:
        return None
    return InstalledPackage(
        name=canonicalize_name(about["name"]), version=about.get("version", ""), record=_record_digest(distribution)
    )


def _record_digest(distribution: metadata.Distribution) -> str:
    if '"editable":true' in (distribution.read_text("direct_url.json") or "").replace(" ", ""):
        return "editable"
    # pip and uv add rows of their own, and programs name the folder that they were installed into.
    lines = (distribution.read_text("RECORD") or "").splitlines()
    rows = [line for line in lines if not line.startswith(("..", '"..', "/")) and not line.endswith(",,")]
    kept = sorted(row for row in rows if not row.partition(",")[0].endswith(_OF_INSTALLERS))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest() if kept else ""
