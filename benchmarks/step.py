"""What a training step costs beside the model's own work: steps/s of ours with everything on, beside its peers.

    python benchmarks/step.py [--quick]

The two run side by side, one stopped (all its processes) while the other has its turn of a few seconds.

`bare`: a bare PyTorch DDP loop, two ranks on the CPU, steps of 50 ms or more of a small GPT. `lightning`: Lightning's
own Trainer with logging, checkpointing, progress bar and summary off, one rank, steps of less than a millisecond. Ours
has its conductor, its node's heartbeats, the loader over sealed shards, the look for values that are not finite, the
flags that ranks share, progress and history on. No checkpoint falls into the measured steps: what one costs is in
`checkpoint.py` (`stall_vs_memcpy`, `steps_beside_a_save`).
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import numpy as np
from contenders import Training
from noise import Median, Watch

WANTED = {"vs_bare": 0.97, "vs_lightning": 0.95}
VOCABULARY, CONTEXT = 256, 128
TURN_S = 4.0
ENDLESS = 900_000


def main() -> None:
    """Measure and print."""
    told, watch = common.arguments(__doc__), Watch()
    turns = 6 if told.quick else 60
    versions = ", ".join(f"{one} {importlib.metadata.version(one)}" for one in ("torch", "lightning"))
    print(f"{common.machine()}\n{versions}; {turns} turns of {TURN_S:g} s each")
    draw = np.random.default_rng(common.SEED)
    ratios = {}
    with common.scratch() as folder:
        gpt = Training(
            made(folder / "gpt"),
            model="GPT",
            init_args={"vocabulary": VOCABULARY, "context": CONTEXT, "width": 128, "depth": 4, "heads": 4},
            columns={"tokens": draw.integers(0, VOCABULARY, (4000, CONTEXT + 1), np.uint16)},
            batch_size=16,
            warm=10,
            steps=ENDLESS,
            ranks=2,
        )
        ratios["vs_bare"] = compare("steps of a GPT, 2 ranks", gpt, "bare", turns, least_ms=50)
        x, label = (common.arrays("b", 20_000)[name] for name in ("x", "label"))
        perceptron = Training(
            made(folder / "perceptron"),
            model="Perceptron",
            init_args={},
            columns={"x": x, "label": label},
            batch_size=32,
            warm=500,
            steps=ENDLESS,
        )
        ratios["vs_lightning"] = compare("steps of a perceptron, 1 rank", perceptron, "lightning", turns, most_ms=1)
    for name, least in WANTED.items():
        print(f"{name}: {ratios[name]} (wanted: at least {least})")
    common.conclude(ratios, watch.end(all_reaped=False), quick=told.quick)


def compare(
    title: str,
    training: Training,
    other: str,
    turns: int,
    *,
    turn_s: float = TURN_S,
    least_ms: float = 0,
    most_ms: float = float("inf"),
) -> Median:
    """Time ours and the other turn by turn; how many times faster ours is."""
    taken = training.turns(["ours", other], turns, turn_s)
    common.show(title, {name: [1e6 * one for one in values] for name, values in taken.items()}, "µs")
    found = common.ratio(taken[other], taken["ours"], digits=3)
    tenth = len(found.pairs) // 10
    middle = f"{found.pairs[tenth]:.3f} to {found.pairs[-1 - tenth]:.3f} without the outer tenths"
    print(f"ratio of neighbouring turns: median {found:.3f}, {middle}")
    step_ms = 1000 * float(np.median(taken[other]))
    if not least_ms <= step_ms <= most_ms:
        print(f"a step of {step_ms:.2f} ms is not what this is to measure ({least_ms} to {most_ms} ms)")
    return found


def made(folder: Path) -> Path:
    """The folder, made."""
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
