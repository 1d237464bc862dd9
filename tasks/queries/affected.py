"""Which runs, versions and aliases were made with a package, for the day on which a release turns out to be malicious.

A run counts if one of its processes could import the package; a version, if any part of it was made by such a run: its
checkpoint, its evaluation, and all that these were made from. What nobody wrote down is said to be not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.records import InstalledPackage
from infra import code_bundle
from infra.environments.packages import split
from infra.models import registry
from infra.records.nodes import EARLIER, read_environment
from infra.store import Store, layout
from infra.store.seal import pass_over
from infra.store.store import numbers, read_several

# The packages in question that something was made with; None among them: it is not known what else it was made with.
Traces = frozenset[InstalledPackage | None]
NOT_KNOWN: Traces = frozenset({None})
_UNREADABLE = (FileNotFoundError, CorruptError, KeyError, TypeError, ValueError, AttributeError)
# What comes from outside is named by its content, whoever brought it in first.
_FROM_OUTSIDE = ("code/", "imports/")


@dataclass(frozen=True)
class AffectedVersion:
    """A version of a model that was made with one of the packages; without packages, that is not known of it."""

    model: str
    version: int
    checkpoint_id: str
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Affected:
    """What a store has that was made with a package.

    Attributes:
        runs: the packages by run, as text.
        aliases: model, alias and the affected version that it names.
        unknown_runs, unknown_versions: those whose packages are not all known, and that are not affected by the others.
    """

    requirement: str
    runs: dict[str, tuple[str, ...]]
    versions: list[AffectedVersion]
    aliases: list[tuple[str, str, int]]
    unknown_runs: list[str]
    unknown_versions: list[AffectedVersion]


def affected(store: Store, package: str) -> Affected:
    """What was made with a package.

    Args:
        package: a name, with versions of it or without, such as `lightning==2.6.2` or `lightning>=2.6.2,<2.6.4`.

    Raises:
        UsageError: it is not the name of a package with versions.
    """
    search = _Search(store, _parsed(package))
    by_run = {run_id: _labels(traces) for run_id, traces in sorted(search.by_run.items()) if traces}
    traced = search.versions()
    versions = [version for version in traced if version.packages]
    named = {(version.model, version.version) for version in versions}
    return Affected(
        requirement=package,
        runs={run_id: packages for run_id, packages in by_run.items() if packages},
        versions=versions,
        aliases=[alias for alias in registry.aliases(store) if (alias[0], alias[2]) in named],
        unknown_runs=[run_id for run_id, packages in by_run.items() if not packages],
        unknown_versions=[version for version in traced if not version.packages],
    )


def _parsed(text: str) -> Requirement:
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        wanted = None
    if wanted is None or wanted.url or wanted.marker or wanted.extras:
        raise UsageError(
            f"{text!a} is not the name of a package with versions.",
            remedy="Write it as lightning==2.6.2, or 'lightning>=2.6.2,<2.6.4', or a name alone.",
        )
    return wanted


def _labels(traces: Traces) -> tuple[str, ...]:
    return tuple(sorted(package.label for package in traces if package is not None))


class _Search:
    """Traces of a package in a store: by environment, by run, and by what runs made."""

    def __init__(self, store: Store, requirement: Requirement) -> None:
        self._store, self._requirement = store, requirement
        names = [name for name in store.list(layout.environments()) if name != EARLIER]
        self._by_environment = dict(zip(names, read_several(store, self._in_environment, names), strict=True))
        self.by_run: dict[str, Traces] = defaultdict(frozenset)
        for name in names:
            for run_id in store.list(layout.runs_with(name)):
                self.by_run[run_id] |= self._by_environment[name]
        earlier = (set(filter(is_name, store.list(layout.runs()))) - self.by_run.keys()).union(
            store.list(layout.runs_with(EARLIER))
        )
        by_recipe: dict[str, Traces] = defaultdict(frozenset)
        places = store.list(registry.AREA) if earlier else []
        for run_id, traces in read_several(store, partial(self._in_recipe, earlier), places):
            by_recipe[run_id] |= traces
        for run_id in earlier:
            self.by_run[run_id] |= by_recipe.get(run_id, NOT_KNOWN)

    def versions(self) -> list[AffectedVersion]:
        """The versions of all models that were made with the package, or of which that is not known."""
        models = filter(is_name, self._store.list(layout.models()))
        places = [(name, number) for name in models for number in sorted(numbers(self._store, layout.models(name)))]
        traces = self._trace([layout.model(*place) for place in places])
        traced = [(place, *traces[layout.model(*place)]) for place in places]
        return [AffectedVersion(*place, checkpoint, _labels(own)) for place, checkpoint, own in traced if own]

    def _trace(self, starts: list[str]) -> dict[str | Ref, tuple[str, Traces]]:
        """What sealed directories and all that they were made from were made with, and the checkpoints they name."""
        own: dict[str | Ref, _Made] = {}
        waiting: list[str | Ref] = [*starts]
        while waiting:
            own |= zip(waiting, read_several(self._store, self._look, waiting), strict=True)
            waiting = list({ref for place in waiting for ref in own[place].parents} - own.keys())
        traces: dict[str | Ref, tuple[str, Traces]] = {}
        for place in TopologicalSorter({place: made.parents for place, made in own.items()}).static_order():
            inherited = (traces[ref][1] for ref in own[place].parents)
            traces[place] = own[place].checkpoint_id, own[place].traces.union(*inherited)
        return traces

    def _look(self, place: str | Ref) -> _Made:
        """The traces of the run that sealed a directory, and of those that launched earlier generations of it."""
        try:
            manifest = self._store.manifest(place)
            about = manifest.provenance
            own = (about.get("training"), about.get("generation"))
            launches = {(part["training"], part["generation"]) for part in about.get("generations", [])} - {own}
            runs = [about.get("run_id"), *(self._launcher(*launch) for launch in launches)]
            own_traces = [self.by_run.get(str(run_id), NOT_KNOWN) for run_id in runs]
            own_traces += [self._by_environment.get(name, NOT_KNOWN) for name in about.get("environments", [])]
            parents = [ref for ref in manifest.parents if not ref.uri.startswith(_FROM_OUTSIDE)]
            return _Made(str(manifest.settings.get("checkpoint_id", "")), own_traces[0].union(*own_traces), parents)
        except _UNREADABLE as error:
            _name_damage(error)
            return _Made("", NOT_KNOWN, [])

    def _launcher(self, training: str, generation: int) -> str | None:
        """The run that launched a generation; None if its record is gone or damaged."""
        try:
            return str(self._store.read_json(layout.launch(training, generation))["provenance"]["run_id"])
        except _UNREADABLE as error:
            _name_damage(error)
            return None

    def _in_environment(self, name: str) -> Traces:
        try:
            return self._among(read_environment(self._store, name))
        except _UNREADABLE as error:  # it must not hide the others
            _name_damage(error)
            return NOT_KNOWN

    def _in_recipe(self, run_ids: set[str], name: str) -> tuple[str, Traces]:
        """The run of a recipe, if it is one of these, and its traces in the names and versions that were recorded."""
        try:
            manifest = self._store.manifest(f"{registry.AREA}/{name}")
            if manifest.provenance["run_id"] not in run_ids:
                return "", NOT_KNOWN
            recipe = registry.read_recipe(self._store, manifest.ref)
            asked = code_bundle.packages_in(self._store, self._store.manifest(recipe.resolved.code))
            packages = [
                InstalledPackage(name=name, version=version)
                for name, version in map(split, [*recipe.lock, *(asked.install if asked else ())])
            ]
            return recipe.resolved.run_id, self._among(packages)
        except _UNREADABLE as error:
            _name_damage(error)
            return "", NOT_KNOWN

    def _among(self, packages: Iterable[InstalledPackage]) -> Traces:
        name = canonicalize_name(self._requirement.name)
        return frozenset(
            package
            for package in packages
            if canonicalize_name(package.name) == name and self._is_meant(package.version)
        )

    def _is_meant(self, version: str) -> bool:
        try:
            Version(version)
        except InvalidVersion:
            return True  # nobody can say that it is another; `contains` would
        return self._requirement.specifier.contains(version, prereleases=True)


def _name_damage(error: Exception) -> None:
    """Name a damaged file; of one that is missing, the answer says that it is not known."""
    if isinstance(error, CorruptError):
        pass_over(error)


@dataclass(frozen=True)
class _Made:
    """A sealed directory: the checkpoint of a version, what the runs that made it had, and what it was made from."""

    checkpoint_id: str
    traces: Traces
    parents: list[Ref]
