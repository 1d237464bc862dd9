"""What commands and Prefect's servers import, for the warm process that they are forked from (`children.py`).

With Prefect among it, a `run` that reuses everything takes 0.9 s of a processor, and 2.6 s without.
Prefect looks at the environment when it is imported, but can do it again: its modules are put aside (`HeldModules`),
and the first import of Prefect in a fork takes them back and reads the settings of that moment. Nothing here may import
Great Expectations or torch, which look at the environment only once.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Modules that a process runs as its own program: it has not imported them.
RUN = {"infra.processes.tied_to_parent", "infra.gang.rank_bootstrap", "infra.gang.supervisor"}
RUN |= {"training.score.verify_worker", "training.score.evaluate_worker", "training.shard.worker"}
RUN |= {"training.fit.torchrun_agent", "torch.distributed.run", "flows.cli", "prefect.engine", "prefect.flow_engine"}
RUN |= {"prefect.runner._workspace_resolver", "prefect.runner._workspace_supervisor"}
# What commands import when they need it, and what does not look at the environment.
OTHERS = ("email_validator", "fastapi.encoders", "graphviz", "h2", "httpcore", "humanize", "pandas", "pathspec")
OTHERS += ("pyarrow.csv", "pyarrow.parquet", "s3fs", "scipy.special")
# The modules of Prefect that a run imports, but for `prefect.main`, which makes the handlers of its logs.
OF_PREFECT = (
    *("prefect.artifacts", "prefect.client.cloud", "prefect.concurrency.sync", "prefect.events", "prefect.flow_engine"),
    *("prefect.flow_runs", "prefect.input", "prefect.runtime", "prefect.task_engine", "prefect.variables"),
)
# What Prefect's server and its workers import besides, and Dask's commands.
OF_SERVER = ("prefect.server.api.server", "prefect.cli.worker", "prefect.cli.server", "prefect.workers.process")
OF_SERVER += ("prefect.runner", "prefect.runner._workspace_supervisor", "prefect.runner._workspace_resolver")
OF_SERVER += ("dask.cli", "distributed.cli.dask_scheduler", "distributed.cli.dask_worker")


class HeldModules(MetaPathFinder, Loader):
    """Prefect's modules, imported and put aside until a command imports Prefect."""

    def __init__(self) -> None:
        """Import them, and leave it as if they had not been: no module is there, and no log has a handler."""
        logs: Any = importlib.import_module("prefect.logging.configuration")
        set_up, logs.setup_logging = logs.setup_logging, dict
        for name in (*OF_PREFECT, *OF_SERVER):
            importlib.import_module(name)
        logs.setup_logging = set_up
        del sys.modules["prefect"].main, sys.modules["prefect.main"]  # type: ignore[attr-defined]
        for name in RUN:
            sys.modules.pop(name, None)
        names = [name for name in sys.modules if name.partition(".")[0] == "prefect"]
        self._modules: dict[str, Any] = {name: sys.modules.pop(name) for name in names}
        self._spec = self._modules["prefect"].__spec__

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """A spec of Prefect itself, once its parts are back where imports look for them."""
        if fullname != "prefect":
            return None
        sys.meta_path.remove(self)
        sys.modules.update(self._modules)
        context = self._modules["prefect.context"]
        del context.GLOBAL_SETTINGS_CONTEXT  # of another home, and so of other profiles
        context.refresh_global_settings_context()
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module: ModuleType = self._modules["prefect"]
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def import_commands() -> HeldModules:
    """Import what commands import; Prefect's modules are put aside."""
    import flows.commands

    for module in pkgutil.iter_modules(flows.commands.__path__, "flows.commands."):
        importlib.import_module(module.name)
    for name in OTHERS:
        importlib.import_module(name)
    held = HeldModules()
    bad = {"prefect", "great_expectations", "torch"} & sys.modules.keys()
    assert not bad, f"{bad} would look at the environment of another command"
    assert threading.active_count() == 1, "a fork has none of the threads that imports started"
    return held
