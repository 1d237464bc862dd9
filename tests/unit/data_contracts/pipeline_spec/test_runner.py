"""Where the work on raw rows is done: `shards.runner` and `contract.runner` have the same rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.errors import SpecError
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import DaskRunner
from tests.support.refusals import refusal

Write = Callable[..., Path]
SECTIONS = {
    "shards.runner": ("    key: id", "    key: id\n  runner: {}"),
    "contract.runner": ("contract: {suite: suite.json}", "contract:\n  suite: suite.json\n  runner: {}"),
}
BROKEN = {
    "spark": ": must be 'local' or a mapping, got 'spark'",
    "{dask: 'tcp://scheduler:8786'}": ".scratch: is missing; add it (Absolute path of a folder that this machine and "
    "every worker share; it holds pieces of work, and the rows that the shard stage spills)",
    "{dask: scheduler, scratch: /shared}": ".dask: must be the address of a Dask scheduler such as "
    "tcp://scheduler:8786, got 'scheduler'",
    "{dask: 'tls://scheduler:8786', scratch: scratch}": ".scratch: must be an absolute path, the same on every "
    "machine, got 'scratch'",
}


@pytest.mark.parametrize("field", SECTIONS)
@pytest.mark.parametrize("runner", BROKEN)
def test_a_runner_that_cannot_be_used_is_refused_at_load(runner: str, field: str, spec_file: Write) -> None:
    old, new = SECTIONS[field]
    said = refusal(SpecError, load_spec, spec_file((old, new.format(runner))))
    assert said.partition(": ")[2] == f"{field}{BROKEN[runner]}"


@pytest.mark.parametrize("field", SECTIONS)
def test_a_cluster_is_named_by_its_scheduler_and_a_folder(field: str, spec_file: Write) -> None:
    old, new = SECTIONS[field]
    spec = load_spec(spec_file((old, new.format("{dask: 'tls://scheduler:8786', scratch: /shared}"))))
    section = spec.contract if field == "contract.runner" else spec.shards
    assert section.runner == DaskRunner(dask="tls://scheduler:8786", scratch="/shared")
