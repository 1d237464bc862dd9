"""A bf16 GPT of 124 million parameters, context 1024, through the full line on a GPU, beside a bare PyTorch loop.

    python benchmarks/gpu.py [--quick]

Tokens/s, model FLOPs utilisation (6 FLOPs per parameter and token and 12 per layer, width and seen token for attention,
of the device's peak in dense bf16) and the most memory that tensors took. Without a CUDA device it says so and ends.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import numpy as np
import torch
from common import GPT_2, PEAK, flops_per_token
from contenders import Training
from noise import Watch


def main() -> None:
    """Measure and print."""
    told, watch = common.arguments(__doc__), Watch()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        print(json.dumps({}))
        return
    name = torch.cuda.get_device_name()
    versions = ", ".join(f"{one} {importlib.metadata.version(one)}" for one in ("torch", "lightning"))
    print(f"{name}, {torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB\n{common.machine()}\n{versions}")
    with common.scratch() as folder:
        steps, pairs = (30, 2) if told.quick else (100, 5)
        figures = measure(folder, GPT_2, batch_size=32, steps=steps, pairs=pairs)
    common.conclude(figures, watch.end(all_reaped=False), quick=told.quick)


def measure(folder: Path, size: dict[str, int], *, batch_size: int, steps: int, pairs: int) -> dict[str, float]:
    """Ours and the bare loop in turn; prints a table and returns the figures."""
    draw = np.random.default_rng(common.SEED)
    on_gpu = torch.cuda.is_available()
    rows = max(2000, 4 * batch_size)
    training = Training(
        folder,
        model="GPT",
        init_args=dict(size),
        columns={"tokens": draw.integers(0, size["vocabulary"], (rows, size["context"] + 1), np.uint16)},
        batch_size=batch_size,
        warm=10,
        steps=steps,
        precision="bf16-mixed",
        accelerator="gpu" if on_gpu else "cpu",
    )
    peaks: dict[str, float] = {}

    def timed(name: str) -> float:
        told = training.whole(name)
        peaks[name] = told["peak_bytes"]
        return batch_size * size["context"] / told["step_s"]

    taken = common.interleaved({"ours": lambda: timed("ours"), "bare": lambda: timed("bare")}, pairs)
    common.show("tokens a second", taken, "tokens/s")
    ours, bare = (float(np.median(taken[name])) for name in ("ours", "bare"))
    figures = {
        "vs_bare_gpu": common.ratio(taken["ours"], taken["bare"]),
        "tokens_per_s": round(ours),
        "memory_vs_bare": round(peaks["bare"] / peaks["ours"], 3) if peaks["ours"] else 0.0,
    }
    peak = next((value for part, value in PEAK.items() if part in torch.cuda.get_device_name()), 0) if on_gpu else 0
    if peak:
        figures["mfu"] = round(ours * flops_per_token(size) / peak, 4)
        print(f"model FLOPs utilisation: ours {figures['mfu']:.1%}, bare {bare * flops_per_token(size) / peak:.1%}")
    for name, value in peaks.items():
        print(f"most memory of {name}: {value / 2**30:.2f} GiB")
    return figures


if __name__ == "__main__":
    main()
