"""Which runs, versions and aliases were made with a package, for the day on which a release turns out to be malicious.

A run counts if one of its processes could import the package; a version, if any part of it was made by such a run: its
checkpoint, its evaluation, and all that these were made from. What nobody wrote down is said to be not known.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache, partial
from graphlib import TopologicalSorter
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.installed_packages import InstalledPackage
from infra.environments.packages import split
from infra.models import recipes, registry
from infra.models.versions import numbers
from infra.project import code_bundle
from infra.records.environments import read_environment
from infra.store import Manifest, Store, layout
from infra.store.several import read_several

# The packages in question that something was made with; None among them: it is not known what else it was made with.
Traces = frozenset[InstalledPackage | None]
NOT_KNOWN: Traces = frozenset({None})
_UNREADABLE = (FileNotFoundError, CorruptError, KeyError, TypeError, ValueError, AttributeError)
# What comes from outside is named by its content, whoever brought it in first.
_FROM_OUTSIDE = ("code/", "imports/")


@dataclass(frozen=True)
class AffectedVersion:
    """A version of a model that was made with one of the packages, or of which that is not known."""

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

    def to_json(self) -> dict[str, Any]:
        """The answer as objects that JSON can hold."""
        return asdict(self)


def affected(store: Store, package: str) -> Affected:
    """What was made with a package.

    Args:
        package: a name, with versions of it or without, such as `lightning==2.6.2` or `lightning>=2.6.2,<2.6.4`.

    Raises:
        UsageError: it is not the name of a package with versions.
    """
    search = _Search(store, _parsed(package))
    by_version = search.versions()
    named = {(one.model, one.version) for one in by_version if one.packages}
    return Affected(
        requirement=package,
        runs={run_id: _labels(found) for run_id, found in sorted(search.by_run.items()) if _labels(found)},
        versions=[one for one in by_version if one.packages],
        aliases=[one for one in registry.aliases(store) if (one[0], one[2]) in named],
        unknown_runs=sorted(run_id for run_id, found in search.by_run.items() if found == NOT_KNOWN),
        unknown_versions=[one for one in by_version if not one.packages],
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


def _labels(found: Traces) -> tuple[str, ...]:
    return tuple(sorted(one.label for one in found if one is not None))


class _Search:
    """Traces of a package in a store: by environment, by run, and by what runs made."""

    def __init__(self, store: Store, wanted: Requirement) -> None:
        self._store, self._wanted = store, wanted
        names = store.list(layout.environments())
        read = read_several(store, self._in_environment, names)
        self._by_environment = dict(zip(names, read, strict=True))
        self.by_run: dict[str, Traces] = defaultdict(frozenset)
        for name in names:
            for run_id in store.list(layout.runs_with(name)):
                self.by_run[run_id] |= self._by_environment[name]
        if earlier := set(store.list(layout.runs())) - self.by_run.keys():
            self._read_earlier(earlier)

    def versions(self) -> list[AffectedVersion]:
        """The versions of all models with what they were made with, without those that are known to be unaffected."""
        models = filter(is_name, self._store.list(layout.models()))
        places = [(name, number) for name in models for number in sorted(numbers(self._store, layout.models(name)))]
        uris = [layout.model(*place) for place in places]
        traces, manifests = self._trace(uris)
        found = []
        for (name, number), uri in zip(places, uris, strict=True):
            if traces[uri]:
                manifest = manifests[uri]
                checkpoint = "" if manifest is None else str(manifest.settings.get("checkpoint_id", ""))
                found.append(AffectedVersion(name, number, checkpoint, _labels(traces[uri])))
        return found

    def _trace(self, starts: Iterable[str]) -> tuple[dict[str | Ref, Traces], dict[str | Ref, Manifest | None]]:
        """What sealed directories, and all that they were made from, were made with; and their manifests."""
        manifests: dict[str | Ref, Manifest | None] = {}
        parents: dict[str | Ref, list[Ref]] = {}
        waiting: list[str | Ref] = list(starts)
        while waiting:
            for place, (manifest, refs) in zip(waiting, read_several(self._store, self._look, waiting), strict=True):
                manifests[place], parents[place] = manifest, refs
            waiting = list({ref: None for place in waiting for ref in parents[place] if ref not in parents})
        traces: dict[str | Ref, Traces] = {}
        for place in TopologicalSorter(parents).static_order():
            own = _or_not_known(partial(self._makers, manifests[place]))
            traces[place] = own.union(*(traces[ref] for ref in parents[place]))
        return traces, manifests

    def _look(self, place: str | Ref) -> tuple[Manifest | None, list[Ref]]:
        try:
            manifest = self._store.manifest(place)
            return manifest, [ref for ref in manifest.parents if not ref.uri.startswith(_FROM_OUTSIDE)]
        except _UNREADABLE:
            return None, []

    def _makers(self, manifest: Manifest | None) -> Traces:
        """The traces of the run that sealed a directory, and of those that launched earlier generations of it."""
        if manifest is None:
            return NOT_KNOWN
        about = manifest.provenance
        runs = {about.get("run_id")}
        for part in about.get("generations", []):
            if (part["training"], part["generation"]) != (about["training"], about["generation"]):
                launch = self._store.read_json(layout.launch(part["training"], part["generation"]))
                runs.add(launch["provenance"]["run_id"])
        found = [self.by_run.get(str(run_id), NOT_KNOWN) for run_id in runs]
        found += [self._by_environment.get(name, NOT_KNOWN) for name in about.get("environments", [])]
        return frozenset[InstalledPackage | None]().union(*found)

    def _in_environment(self, name: str) -> Traces:
        return _or_not_known(lambda: self._among(read_environment(self._store, name)))

    def _among(self, packages: Iterable[InstalledPackage]) -> Traces:
        name = canonicalize_name(self._wanted.name)
        return frozenset(one for one in packages if canonicalize_name(one.name) == name and self._is_meant(one.version))

    def _is_meant(self, version: str) -> bool:
        try:
            return self._wanted.specifier.contains(version, prereleases=True)
        except InvalidVersion:
            return True  # nobody can say that it is another

    def _read_earlier(self, run_ids: set[str]) -> None:
        """The traces of runs of earlier versions: by their recipes' locks, and by the packages in their code."""
        store = self._store

        def in_recipe(name: str) -> tuple[str, str, Traces] | None:
            with contextlib.suppress(*_UNREADABLE):
                manifest = store.manifest(f"{recipes.AREA}/{name}")
                if manifest.provenance["run_id"] in run_ids:
                    recipe = recipes.read_recipe(store, manifest.ref)
                    return recipe.resolved.run_id, recipe.resolved.lock_digest, self._in_list(recipe.lock)
            return None

        @cache
        def in_code(ref: Ref) -> Traces:
            asked = code_bundle.packages_in(store, store.manifest(ref))
            return frozenset() if asked is None else self._in_list(asked.install)

        def of_run(run_id: str) -> Traces:
            resolved = store.read_json(layout.resolved(run_id))
            return by_lock[resolved["lock_digest"]] | in_code(Ref.model_validate(resolved["code"]))

        by_lock: dict[str, Traces] = {}
        for found in read_several(store, in_recipe, store.list(recipes.AREA)):
            if found is not None:
                run_id, lock, traces = found
                by_lock[lock] = traces
                self.by_run[run_id] |= traces
        waiting = sorted(run_ids)
        read = read_several(store, lambda run_id: _or_not_known(partial(of_run, run_id)), waiting)
        for run_id, traces in zip(waiting, read, strict=True):
            self.by_run[run_id] |= traces

    def _in_list(self, lines: Iterable[str]) -> Traces:
        """The traces in `name==version` lines, which have no digests."""
        pairs = map(split, lines)
        return self._among(InstalledPackage(name=name, version=version) for name, version in pairs)


def _or_not_known(read: Callable[[], Traces]) -> Traces:
    """What `read` returns; NOT_KNOWN if a record is gone or damaged, which must not hide the others."""
    try:
        return read()
    except _UNREADABLE:
        return NOT_KNOWN
