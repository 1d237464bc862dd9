"""Imports large packages with less work: no garbage collection meanwhile, and parts of them only when they are used.

What an import makes stays until the process ends, so Python's cyclic garbage collector finds nothing meanwhile: it took
12 to 20% of the processor time of importing Lightning, and as much of Great Expectations. Another quarter goes to
packages that these two import at their top for a few functions (`LATE`); such a module is loaded when one of its names
is first asked for. `python -m infra.processes.light_imports MODULE ARGUMENT…` runs a child's module that way, until
`child_main` ends it.
"""

from __future__ import annotations

import gc
import runpy
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Great Expectations needs `scipy.stats` for three expectations, `altair` for pictures that nobody sees here and `boto3`
# for files that we read ourselves; torchmetrics imports `scipy.signal` to give it back a name of an older SciPy.
LATE = frozenset({"altair", "boto3", "scipy.signal", "scipy.stats"})


class _LateModule(ModuleType):
    """A module that is loaded when one of its names is first asked for; other threads wait meanwhile."""

    __slots__ = ()
    _loading = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        _LateModule._load(self)
        return ModuleType.__getattribute__(self, name)

    def __dir__(self) -> Iterable[str]:
        _LateModule._load(self)
        return super().__dir__()

    def _load(self) -> None:
        spec: ModuleSpec = self.__dict__["__spec__"]
        with _LateModule._loading:
            if (loader := spec.loader_state) is None:
                return
            spec.loader_state = None  # names that it asks itself for while it loads are not there yet
            try:
                loader.exec_module(self)
            except BaseException:
                spec.loader_state = loader
                raise


class _LateLoader(Loader):
    """Makes a module without loading it, which is left to `loader`."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _LateModule(spec.name)
        if spec.name == "scipy.signal":
            module.__dict__["hamming"] = _hamming
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec: ModuleSpec = module.__dict__["__spec__"]
        spec.loader = spec.loader_state = module.__loader__ = self.loader


def _hamming(*arguments: Any, **options: Any) -> Any:
    """What torchmetrics sets as `scipy.signal.hamming`. It looks for that name first, which would load the module."""
    from scipy.signal.windows import hamming

    return hamming(*arguments, **options)


class _LateFinder(MetaPathFinder):
    """Finds modules that are loaded late, if they are installed."""

    def __init__(self, late: frozenset[str]) -> None:
        self._late = late

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._late else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = _LateLoader(spec.loader)
        return spec


_FINDER = _LateFinder(LATE)


@contextmanager
def light_imports(late: frozenset[str] = LATE) -> Iterator[None]:
    """Import lightly inside, the modules `late` when they are used; afterwards the collector runs if it ran before.

    Later collections pass over what was imported: a first one of all that Lightning makes takes a quarter second.
    """
    collected, finder = gc.isenabled(), _LateFinder(late)
    gc.disable()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        gc.freeze()
        if collected:
            gc.enable()


def end_light_imports() -> None:
    """Import as usual from here on in a process that began with `main`; what is late stays so until it is used."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    gc.freeze()
    gc.enable()


def main() -> None:
    """Become MODULE, whose imports come first; they are light until MODULE ends that."""
    from infra.processes.light_imports import _FINDER as finder  # not that of `__main__`, which MODULE cannot reach

    gc.disable()
    sys.meta_path.insert(0, finder)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
