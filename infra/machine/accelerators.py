"""How many GPUs this machine has, as its kernel says; without torch and without a driver's library."""

from __future__ import annotations

from pathlib import Path


def num_gpus(root: Path = Path("/")) -> int | None:
    """The number of NVIDIA GPUs; 0 without any accelerator; None where another maker's may be there."""
    try:
        return len(list((root / "proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        others = [
            *root.glob("dev/kfd"),
            *root.glob("dev/accel*"),
            *root.glob("dev/davinci*"),
            *root.glob("dev/nvidia*"),
        ]
        return None if others else 0
