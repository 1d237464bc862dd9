"""The sections `shards.runner` and `contract.runner`: where the work on raw rows is done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from data_contracts.pipeline_spec.base import FieldError, Section

_SCHEDULER = re.compile(r"(tcp|tls)://[^/@\s]+:\d{1,5}")


class DaskRunner(Section):
    """A Dask cluster that does the work of a stage."""

    dask: str
    """Address of the scheduler, such as tcp://scheduler:8786."""
    scratch: str
    """Absolute path of a folder that this machine and every worker share; it holds pieces of work, and the rows that
    the shard stage spills."""

    @model_validator(mode="after")
    def _named_for_all_machines(self) -> DaskRunner:
        if not _SCHEDULER.fullmatch(self.dask):
            sentence = f"must be the address of a Dask scheduler such as tcp://scheduler:8786, got {self.dask!r}"
            raise FieldError("dask", sentence)
        if not self.scratch.startswith("/"):
            raise FieldError("scratch", f"must be an absolute path, the same on every machine, got {self.scratch!r}")
        return self


Runner = Literal["local"] | DaskRunner


def run_locally(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a spec, with `local` as the runner of each section that has one."""
    sections = {name: {**spec[name], "runner": "local"} for name in ("contract", "shards") if spec.get(name)}
    return {**spec, **sections}
