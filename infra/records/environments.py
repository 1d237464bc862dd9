"""What processes of runs import from: one record for each environment, and a mark for each run that used it.

Whoever starts a process writes this down first, from files, so that no package can keep itself off the list. A process
on another machine has its own environment: a node and a Dask worker write down theirs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import CorruptError
from data_contracts.installed_packages import InstalledPackage, InstalledPackages
from infra.audit import headers
from infra.environments.cache import interpreter
from infra.environments.installed import packages_folder_in
from infra.files.atomic import replace_json
from infra.store import Store, layout

_LIST = ".environment.json"
# In place of an environment: runs that began in an earlier version, which left no marks.
EARLIER = "earlier"
# Rows of a RECORD that installers write themselves.
_OF_INSTALLERS = tuple(
    f".dist-info/{name}" for name in ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
)


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
    folder = place if Path(place).is_dir() else str(packages_folder_in(Path(place).parent.parent))
    places = metadata.distributions() if place == sys.executable else metadata.distributions(path=[folder])
    listed = filter(None, map(_package, places))
    packages = {(package.name, package.version, package.record): package for package in listed}
    return InstalledPackages(packages=[packages[key] for key in sorted(packages)])


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
