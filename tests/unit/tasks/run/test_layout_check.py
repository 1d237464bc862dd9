"""A layout that cannot work is refused before anything is packed: one sentence, and what to do."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import PipelineSpec
from tasks.run.spec_check import check_layouts
from tests.support.tiny import SPEC

POOL = {"launcher": "work-pool", "pool": "gpu"}
SMALL, TWO = {"machine": "azure-nc24ads-a100-v4"}, {"devices": 2}
HSDP, FSDP, FOUR = {"strategy": "hsdp"}, {"strategy": "fsdp", **TWO}, {"strategy": "ddp", "nodes": 2, **TWO}
OWN = {"data": {"class_path": "theirs.Data"}}
TRAINER = "Set trainer.precision to bf16-mixed or 32-true there, or"
# Case: changes of sections, the Lightning config, and the sentence.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "verify beyond the machine": (
        {"train": {"machine": "azure-nc24ads-a100-v4"}, "verify": {"devices": 2}}, {},
        "verify.devices: 2, but the machine azure-nc24ads-a100-v4 has 1. Ask for at most 1, or for more verify.nodes, "
        "or train.machine aws-p4d.24xlarge.",
    ),
    "evaluate beyond the machine": (
        {"train": {"machine": "azure-nc24ads-a100-v4"}, "evaluate": {"devices": 2}}, {},
        "evaluate.devices: 2, but the machine azure-nc24ads-a100-v4 has 1. Ask for at most 1, or for more "
        "evaluate.nodes, or train.machine aws-p4d.24xlarge.",
    ),
    "verify beyond the machine, on a pool": (
        {"train": {**SMALL, **POOL}, "verify": {**TWO, **POOL}}, {},
        "verify.devices: 2, but the machine azure-nc24ads-a100-v4 has 1. Ask for at most 1, or for more verify.nodes, "
        "or train.machine aws-p4d.24xlarge.",
    ),
    "training": (
        {"train": {"strategy": "fsdp"}}, {"trainer": {"precision": "16-mixed"}},
        f"train.strategy: fsdp cannot compute with precision 16-mixed of the Lightning config. {TRAINER} "
        "train.strategy to ddp.",
    ),
    "verifying": (
        {"verify": {"strategy": "hsdp", "nodes": 2, "devices": 2}}, {"trainer": {"precision": 16}},
        f"verify.strategy: hsdp cannot compute with precision 16 of the Lightning config. {TRAINER} "
        "verify.strategy to ddp.",
    ),
    "verifying sharded": (
        {"verify": FSDP}, {"trainer": {"precision": "16-mixed"}},
        f"verify.strategy: fsdp cannot compute with precision 16-mixed of the Lightning config. {TRAINER} "
        "verify.strategy to ddp.",
    ),
    "scoring": (
        {"evaluate": {"strategy": "fsdp", "devices": 2}}, {"trainer": {"precision": "64-true"}},
        f"evaluate.strategy: fsdp cannot compute with precision 64-true of the Lightning config. {TRAINER} "
        "evaluate.strategy to ddp.",
    ),
    "hsdp as trained": (
        {"train": {"strategy": "ddp", "devices": 2}, "evaluate": {"strategy": "hsdp"}}, {},
        "evaluate.strategy: hsdp needs at least two nodes of two devices. Use fsdp, or more nodes and devices "
        "(evaluate.nodes, evaluate.devices).",
    ),
    "hsdp as trained elsewhere": (
        {"train": {"strategy": "ddp", "nodes": 2, "devices": 2, **POOL}, "verify": {"strategy": "hsdp"}}, {},
        "verify.strategy: hsdp needs at least two nodes of two devices. Use fsdp, or more nodes and devices "
        "(verify.nodes, verify.devices).",
    ),
    "hsdp without ranks": (
        {"evaluate": HSDP}, {},
        "evaluate.strategy: hsdp needs at least two nodes of two devices. Use fsdp, or more nodes and devices "
        "(evaluate.nodes, evaluate.devices).",
    ),
    "own batches": (
        {"evaluate": {"nodes": 2}}, {"data": {"class_path": "theirs.Data"}},
        "evaluate.devices: your own data module makes its own batches, which one process scores. Leave evaluate.nodes "
        "and evaluate.devices out, or use the sealed shards.",
    ),
    **{
        f"hsdp on {ranks}": (
            {"verify": {"strategy": "hsdp", **counts}}, {},  # a stored spec with it is read
            "verify.strategy: hsdp needs at least two nodes of two devices. Use fsdp, or more nodes and devices "
            "(verify.nodes, verify.devices).",
        )
        for ranks, counts in {
            "one device each": {"nodes": 2}, "one node": {"devices": 4}, "three nodes": {"nodes": 3, "devices": 1},
        }.items()
    },
}  # fmt: skip


def spec(changes: dict[str, Any]) -> PipelineSpec:
    found = copy.deepcopy(SPEC)
    for section, fields in changes.items():
        found[section] = {**found.get(section, {}), **fields}
    return PipelineSpec.model_validate(found)


@pytest.mark.parametrize(("changes", "lightning", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_in_a_sentence(
    changes: dict[str, Any], lightning: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        check_layouts(spec(changes), lightning)


PASSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{
        f"sharded with precision {precision}": ({"verify": FSDP}, {"trainer": {"precision": precision}, **OWN})
        for precision in (None, 32, "bf16", "bf16-mixed", "16-true")
    },
    "replicas with precision 16-mixed": ({"verify": TWO}, {"trainer": {"precision": "16-mixed"}}),
    # The machine of the training counts where the training runs.
    "beyond the machine, on a pool": ({"train": SMALL, "verify": {**TWO, **POOL}, "evaluate": {**TWO, **POOL}}, {}),
    "beyond the machine, on CPUs": ({"train": SMALL, "verify": TWO}, {"trainer": {"accelerator": "cpu"}}),
    "hsdp with the ranks of the training": ({"train": FOUR, "verify": HSDP, "evaluate": HSDP}, {}),
    "hsdp of own batches, which one process scores": ({"evaluate": HSDP}, OWN),
}


@pytest.mark.parametrize(("changes", "lightning"), PASSES.values(), ids=PASSES)
def test_what_can_work_passes(changes: dict[str, Any], lightning: dict[str, Any]) -> None:
    assert check_layouts(spec(changes), lightning) is None
