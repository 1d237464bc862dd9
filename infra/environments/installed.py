"""What is installed in a folder of packages: versions by name, and which packages need which."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_DIST_INFO = ".dist-info"
_REQUIRES = re.compile(r"^Requires-Dist:\s*(.+)$", re.MULTILINE)


def packages_folder() -> Path:
    """The folder of this installation's packages."""
    return Path(sysconfig.get_path("purelib"))


def packages_folder_in(environment: Path) -> Path:
    """The folder of an environment's packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))


def dist_infos(folder: Path) -> dict[str, Path]:
    """The folder of each installed package's metadata, by the package's name."""
    found = sorted(folder.glob(f"*{_DIST_INFO}"))
    return {canonicalize_name(path.name.partition("-")[0]): path for path in found if (path / "METADATA").is_file()}


def versions(folder: Path) -> dict[str, str]:
    """Version by name of what is installed, local version included."""
    return {name: version_of(path) for name, path in dist_infos(folder).items()}


def version_of(dist_info: Path) -> str:
    """The version that a package's metadata folder is named after."""
    return dist_info.name.removesuffix(_DIST_INFO).partition("-")[2]


def closure(folder: Path, wanted: Iterable[Requirement]) -> set[str]:
    """Names of the installed packages among `wanted` and among all that these need."""
    infos = dist_infos(folder)
    needs: dict[str, list[Requirement]] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(one, frozenset(one.extras)) for one in wanted if _applies(one, frozenset())]
    while waiting:
        requirement, extras = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in infos or (name, extras) in done:
            continue
        done.add((name, extras))
        if name not in needs:
            needs[name] = _needs(infos[name])
        waiting += [(one, frozenset(one.extras)) for one in needs[name] if _applies(one, extras)]
    return {name for name, _ in done}


def _needs(dist_info: Path) -> list[Requirement]:
    headers = (dist_info / "METADATA").read_text(errors="replace").partition("\n\n")[0]
    found = []
    for text in _REQUIRES.findall(headers):
        try:
            found.append(Requirement(text.strip()))
        except InvalidRequirement:
            continue  # of another installer; what is not understood is not taken over
    return found


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement counts here, for a package that is wanted with `extras`."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})
