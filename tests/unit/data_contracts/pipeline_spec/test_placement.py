"""Where a training runs, and with how few nodes: the rules of `train`'s fields of placement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.errors import SpecError
from data_contracts.load import load_spec
from tests.support.refusals import refusal

BROKEN = {
    "devices: 2\n  launcher: work-pool": "pool: is missing; launcher work-pool needs the name of a Prefect work pool",
    "devices: 2\n  pool: gpu": (
        "pool: has an effect only with launcher: work-pool or slurm or ssh or kubernetes; leave it out"
    ),
    "launcher: work-pool\n  pool: ''": "pool: is missing; launcher work-pool needs the name of a Prefect work pool",
    "nodes: 2\n  min_nodes: 4": "min_nodes: 4 is more than train.nodes = 2",
    "nodes: 4\n  min_nodes: 3": "min_nodes: train.min_nodes x train.devices = 3 does not divide global_batch_size = 64",
    "nodes: 8\n  min_nodes: 1\n  devices: 4\n  micro_batch_size: 2": "",
    "nodes: 4\n  micro_batch_size: 16\n  min_nodes: 1": "",
    "nodes: 4\n  launcher: work-pool\n  pool: gpu\n  min_nodes: 2": "",
}


@pytest.mark.parametrize("placed", BROKEN)
def test_the_rules_of_placement(placed: str, spec_file: Callable[..., Path]) -> None:
    said = refusal(SpecError, load_spec, spec_file(("devices: 2", placed)))
    assert said.partition(": train.")[2] == BROKEN[placed]
    assert bool(said) is bool(BROKEN[placed])


def test_the_micro_batch_fits_the_fewest_nodes_too(spec_file: Callable[..., Path]) -> None:
    changes = ("global_batch_size: 64", "global_batch_size: 24"), ("devices: 2", "nodes: 4\n  min_nodes: 3")
    assert load_spec(spec_file(*changes)).train.least_nodes == 3
    with pytest.raises(SpecError, match="6 does not divide the 8 rows of .* that a rank takes with train.min_nodes"):
        load_spec(spec_file(*changes, ("batch: [", "micro_batch_size: 6\n  batch: [")))
