"""What each strategy needs of a device follows from measured sizes, and one sentence recommends one."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.messages.commands import ModuleSizes, StepMemory
from data_contracts.pipeline_spec import TrainSpec
from tasks.estimates.offers import at, need_bytes, needs, recommendation

GIB = 2**30
STEPS = [StepMemory(rows=4, peak=150, step=40, update=16), StepMemory(rows=8, peak=190, step=80, update=16)]
SIZES = ModuleSizes(parameters=24, gradients=24, state=48, buffers=4, unit=6, layer=6, steps=STEPS)
UNMEASURED = SIZES.model_copy(update={"steps": []})


def train(**changes: Any) -> TrainSpec:
    return TrainSpec(**{"lightning": {}, "global_batch_size": 32, **changes})


@pytest.mark.parametrize(
    ("rows", "what", "value"),
    [(4, "peak", 150), (8, "step", 80), (6, "peak", 170), (16, "peak", 270), (2, "step", 20), (1, "update", 16)],
)
def test_figures_lie_on_the_line_through_what_was_measured(rows: int, what: str, value: int) -> None:
    assert at(STEPS, rows, what) == value


LATER = SIZES.model_copy(update={"steps": [one.model_copy(update={"step": one.step + 100}) for one in STEPS]})


@pytest.mark.parametrize(
    ("sizes", "strategy", "shard", "rows", "accumulates", "expected"),
    [
        (SIZES, "single", 1, 4, False, 150),
        (SIZES, "ddp", 1, 4, False, 150 + 24),  # its buckets keep each gradient again
        (SIZES, "single", 1, 4, True, 150),  # more than what is kept with the activations: 24 + 24 + 48 + 4 + 40
        (SIZES, "fsdp", 4, 4, False, 4 + 96 // 4 + 40 + 2 * 6),
        (SIZES, "fsdp", 5, 4, False, 4 + 20 + 40 + 2 * 6),  # a shard is rounded up
        (SIZES, "single", 1, 8, False, 190),
        (LATER, "single", 1, 8, True, 24 + 24 + 48 + 4 + 180),  # gradients of earlier micro-batches count
        (UNMEASURED, "ddp", 1, 4, False, 100),  # without a measured step, activations are left out
        (UNMEASURED, "fsdp", 4, 4, False, 4 + 24 + 12),
    ],
)
def test_bytes_by_strategy(
    sizes: ModuleSizes, strategy: str, shard: int, rows: int, accumulates: bool, expected: int
) -> None:
    assert need_bytes(sizes, strategy, shard, rows, accumulates=accumulates) == expected


@pytest.mark.parametrize(
    ("nodes", "devices", "expected"),
    [
        (1, 1, [("single", 32)]),
        (1, 4, [("ddp", 8), ("fsdp", 8)]),
        (2, 4, [("ddp", 4), ("hsdp", 4), ("fsdp", 4)]),
        (3, 1, []),  # three ranks do not divide 32 rows
    ],
)
def test_the_strategies_of_a_layout(nodes: int, devices: int, expected: list[tuple[str, int]]) -> None:
    assert [(one.strategy, one.micro_batch) for one in needs(train(), SIZES, nodes, devices)] == expected
    small = needs(train(micro_batch_size=4), SIZES, 1, 1)
    assert [one.micro_batch for one in small] == [4], "a small micro-batch is kept on fewer ranks"


LARGE = SIZES.model_copy(update={"steps": [StepMemory(rows=8, peak=30 * GIB, step=GIB, update=0)]})
SENTENCES: dict[str, tuple[ModuleSizes, int, dict[str, bool], str]] = {
    "the simplest": (LARGE, 80 * GIB, {}, "ddp fits on 1 × m with 30.0 GiB of 80.0 GiB a device; fsdp is not needed."),
    "sharded": (LARGE, 20 * GIB, {}, "fsdp fits on 1 × m with 1.0 GiB of 20.0 GiB a device; ddp would need 30.0 GiB."),
    "a tenth is left free": (
        LARGE, 32 * GIB, {}, "fsdp fits on 1 × m with 1.0 GiB of 32.0 GiB a device; ddp would need 30.0 GiB.",
    ),
    "none": (LARGE, GIB, {}, "No strategy fits on 1 × m: fsdp needs the least, 1.0 GiB of 1.0 GiB a device."),
    "unknown memory": (
        LARGE, 0, {}, "ddp needs 30.0 GiB a device; the price book does not know the memory of m, so it is unknown "
        "whether that fits.",
    ),
    "on a CPU": (LARGE, 0, {"on_cpu": True}, "ddp needs 30.0 GiB a rank; ranks on a CPU share its memory."),
    "without activations": (
        UNMEASURED, GIB, {"whole": False},
        "ddp fits on 1 × m with 100 bytes of 1.0 GiB a device, without activations; fsdp is not needed.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sizes", "memory_bytes", "settings", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_one_sentence_recommends(
    sizes: ModuleSizes, memory_bytes: int, settings: dict[str, bool], sentence: str
) -> None:
    assert recommendation(needs(train(), sizes, 1, 4), memory_bytes, "m", **{"whole": True, **settings}) == sentence
