"""Imports large packages with less work: no garbage collection meanwhile, and parts of them only when they are used.

What an import makes stays until the process ends, so Python's cyclic garbage collector finds nothing meanwhile: it took
12 to 20% of the processor time of importing Lightning, and as much of Great Expectations. Another quarter goes to
packages that these two import at their top for a few functions (`LATE`). They get a module that imports the real one
when it is asked for a name; everyone else, such as the user's code, imports the real one as usual.

`python -m infra.processes.light_imports MODULE ARGUMENT…` runs a child's module that way until `child_main` ends it.

Arrow does without pandas (`without_pandas`) in a process that runs no code of the user's. When Arrow first makes a
scalar or an array from Python's or NumPy's values, it imports pandas, which takes 0.25 s, to see whether the values are
from pandas. It tries only once. Without pandas, Arrow treats a `Series` like any sequence, and makes no Python value
from a time in nanoseconds; `to_pandas` still imports pandas.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Great Expectations needs `scipy.stats` for three expectations, `altair` for pictures that nobody sees here and `boto3`
# for files that we read ourselves; torchmetrics imports `scipy.signal` only to restore a name of older SciPy versions.
# Prefect has blocks of two services here, of which a flow uses none: a sixth of the time that importing Prefect takes.
LATE = frozenset(
    {"altair", "boto3", "prefect.blocks.notifications", "prefect.blocks.webhook", "scipy.signal", "scipy.stats"}
)
# The name that torchmetrics restores if it is not there, and the package that needs it.
_RESTORED, _NEEDS_IT = "hamming", "srmrpy"


class _StandIn(ModuleType):
    """A module without content; asked for a name, it imports the module of its own name and answers with that one's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(self.__name__), name)

    def leave(self) -> None:
        """Make room in `sys.modules` and in the package, so that the next import finds the real module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            package, _, own = self.__name__.rpartition(".")
            with contextlib.suppress(AttributeError, KeyError):
                delattr(sys.modules[package], own)


class _LightImports(MetaPathFinder, Loader):
    """Gives stand-ins for the modules `late`, each until it is used, from `begin` to `end`."""

    def __init__(self, late: frozenset[str]) -> None:
        self._late = late
        self._given: dict[str, _StandIn] = {}

    def begin(self) -> None:
        gc.disable()
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        sys.meta_path.remove(self)
        for stand_in in self._given.values():
            stand_in.leave()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a stand-in, for an installed module that is late and has not been used."""
        if fullname not in self._late or fullname in self._given:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None or (fullname == "scipy.signal" and importlib.util.find_spec(_NEEDS_IT)):
            return None
        spec = ModuleSpec(fullname, self, origin=found.origin, is_package=found.submodule_search_locations is not None)
        if found.submodule_search_locations is not None:
            spec.submodule_search_locations = list(found.submodule_search_locations)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A stand-in; to look for the name that torchmetrics restores must not import the module."""
        self._given[spec.name] = _StandIn(spec.name)
        if spec.name == "scipy.signal":
            setattr(self._given[spec.name], _RESTORED, None)
        return self._given[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""


_OF_THIS_PROCESS = _LightImports(LATE)


@contextlib.contextmanager
def light_imports(late: frozenset[str] = LATE, *, lasting: bool = False) -> Iterator[None]:
    """Import lightly inside, the modules `late` only when they are used; the collector runs again if it ran before.

    Args:
        lasting: stand-ins stay afterwards until they are used, in a process that runs nobody else's code.
    """
    collected, imports = gc.isenabled(), _LightImports(late)
    imports.begin()
    try:
        yield
    finally:
        if not lasting:
            imports.end()
        if collected:
            gc.enable()


def end_light_imports() -> None:
    """Import as usual from here on in a process that began with `main`.

    Objects that exist by now are left out of later collections: a first one of all that Lightning makes takes a quarter
    of a second.
    """
    if _OF_THIS_PROCESS in sys.meta_path:
        _OF_THIS_PROCESS.end()
    gc.freeze()
    gc.enable()


def main() -> None:
    """Run MODULE as `__main__`, with light imports until it calls `child_main`."""
    from infra.processes.light_imports import _OF_THIS_PROCESS as imports  # not that of `__main__`, which only we reach

    imports.begin()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()


class _Refusal(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")


def without_pandas() -> None:
    """From now on, Arrow treats no value as one from pandas, unless pandas is already imported."""
    if "pandas" in sys.modules:
        return
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(refusal)
