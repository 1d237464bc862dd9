"""What the benchmarks share: seeded data sets, peers in environments of their own, and how figures are taken and shown.

Only the standard library and NumPy are imported here, for a peer's environment has little else.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from noise import Load, Median, doubts, record, table, verdict

HERE = Path(__file__).resolve().parent
SEED = 20_261_121
ROWS = {"a": 60_000, "b": 2_000_000, "c": 195_312, "ragged": 200_000}
QUICK_ROWS = {"a": 30_000, "b": 100_000, "c": 30_000, "ragged": 20_000}

# What does not resolve beside our dependencies, or should not stand among them.
ENVIRONMENTS = {
    "contracts": ["pandera==0.35.0", "pandas==3.1.1", "pointblank[pl]==1.1.1", "pyarrow==26.0.1"],
    "readers": ["duckdb==2.0.0", "polars==2.1.0"],
    "tfrecord": ["tfrecord==1.14.6"],
    "tensorflow": ["tensorflow-cpu==2.21.0"],
    "streaming": ["mosaicml-streaming==0.13.0", "numpy==2.1.3", "torch==2.13.0"],
    "others": [
        "datasets==5.2.0", "grain==0.2.18", "litdata==0.2.76", "tfrecord==1.14.6", "torch==2.13.0", "webdataset==1.0.2",
    ],
}  # fmt: skip


# Dense bf16 FLOP/s by the makers' data sheets, by a part of the device's name; the first that fits counts.
PEAK = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
}
GPT_2 = {"vocabulary": 50_257, "context": 1024, "width": 768, "depth": 12, "heads": 12}
# For a trial on the CPU.
TINY = {"vocabulary": 64, "context": 16, "width": 32, "depth": 2, "heads": 2}


# ---- data sets


def arrays(name: str, rows: int) -> dict[str, np.ndarray]:
    """The columns of a data set, drawn anew from the seed.

    a: images, 784 uint8 and a label. b: a table, 20 float32 and a label. c: windows of 512 uint16 tokens.
    ragged: 0 to 99 int64 tokens, 0 to 19 float32 scores and a text of 20 to 219 letters per row; each of the three
    is one flat array beside its `<name>_offsets`.
    """
    draw = np.random.default_rng([SEED, *name.encode()])
    if name == "a":
        return {
            "image": draw.integers(0, 256, (rows, 784), np.uint8),
            "label": draw.integers(0, 10, rows, np.int64),
        }
    if name == "b":
        return {"x": draw.standard_normal((rows, 20), np.float32), "label": draw.integers(0, 2, rows, np.int64)}
    if name == "c":
        return {"tokens": draw.integers(0, 50_257, (rows, 512), np.uint16)}

    def offsets(least: int, below: int) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(draw.integers(least, below, rows))]).astype(np.int32)

    tokens, scores, text = offsets(0, 100), offsets(0, 20), offsets(20, 220)
    return {
        "tokens": draw.integers(0, 50_257, tokens[-1], np.int64), "tokens_offsets": tokens,
        "scores": draw.standard_normal(scores[-1], np.float32), "scores_offsets": scores,
        "text": draw.integers(97, 123, text[-1], np.uint8), "text_offsets": text,
    }  # fmt: skip


def store(columns: dict[str, np.ndarray], folder: Path) -> None:
    """Put a data set where a peer can `load` it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)


def load(folder: Path) -> dict[str, np.ndarray]:
    """A stored data set, in memory."""
    return {path.stem: np.load(path) for path in sorted(folder.glob("*.npy"))}


# ---- peers


def environment(name: str) -> Path:
    """The interpreter of the environment ENVIRONMENTS[name], made on first use outside the repository."""
    root = Path(os.environ.get("TRAINWRIGHT_PEERS", Path.home() / ".cache" / "trainwright" / "peers"))
    folder, wanted = root / name, "\n".join(ENVIRONMENTS[name])
    ready, python = folder / ".ready", folder / "bin" / "python"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making the peers' environment {name!r} in {root.name}/{name} ...", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *ENVIRONMENTS[name]], check=True)
        ready.write_text(wanted)
    return python


class Peer:
    """A script that runs in a peer's environment for the length of a benchmark and answers requests."""

    def __init__(self, environment_name: str, script: str, *arguments: str) -> None:
        python = environment(environment_name)
        log = subprocess.DEVNULL if "TRAINWRIGHT_PEERS_LOG" not in os.environ else None
        self._process = subprocess.Popen(
            [python, HERE / script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def ask(self, **request: Any) -> Any:
        """The answer to one request; RuntimeError if the peer raised or died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it died (TRAINWRIGHT_PEERS_LOG=1 shows what it says)"}
        if "error" in answer:
            raise RuntimeError(f"{' '.join(map(str, self._process.args[1:]))}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(answer: Callable[..., Any]) -> None:
    """A peer's side of `Peer`: call `answer(**request)` for each request until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some peers print
    operators = _torchvision_operators()  # defined for as long as this is held
    for line in sys.stdin:
        try:
            value = {"value": answer(**json.loads(line))}
        except Exception as error:
            value = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(value), file=answers, flush=True)
    del operators


def _torchvision_operators() -> Any:
    """Streaming imports torchvision, whose wheel beside a torch for CPUs lacks the operators that its import names."""
    if importlib.util.find_spec("torchvision") is None:
        return None
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


# ---- a GPU


def flops_per_token(size: dict[str, int]) -> float:
    """Forward and backward: 6 per parameter that multiplies, and attention's 12 x layers x width x context."""
    width, depth = size["width"], size["depth"]
    multiplied = 12 * depth * width**2 + size["vocabulary"] * width
    return 6 * multiplied + 12 * depth * width * size["context"]


# ---- figures


def sync(path: Path) -> None:
    """Bring a file, or a folder with all its files, to the disk, and the folder that holds it."""
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    for one in {*files, path, path.parent}:
        handle = os.open(one, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def interleaved(contenders: dict[str, Callable[[], float]], rounds: int, turn_s: float = 0) -> dict[str, list[float]]:
    """What each contender gives (seconds, say) in each round; all take their turn in every round, in a new order.

    Args:
        turn_s: a turn calls its contender again until this has passed, and counts the mean: so that one who is done in
            a moment meets as much of a busy machine's noise as one who takes long.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    draw = np.random.default_rng(SEED)
    for _ in range(rounds):
        # Drawn, not turned round: who always follows the same one pays for what that one leaves behind.
        for name in map(str, draw.permutation(list(contenders))):
            since, given = time.perf_counter(), [contenders[name]()]
            while time.perf_counter() - since < turn_s:
                given.append(contenders[name]())
            taken[name].append(statistics.fmean(given))
    return taken


def ratio(theirs: list[float], ours: list[float], digits: int = 2) -> Median:
    """How many times faster ours is: the median of the rounds' own ratios, for a round's turns share its noise."""
    return Median([one / other for one, other in zip(theirs, ours, strict=True)], digits)


def show(title: str, rows: dict[str, list[float]], unit: str) -> None:
    """Print median, least and most of each."""
    print(f"\n{title}\n{'':34}{'median':>12}{'least':>12}{'most':>12}  {unit}")
    for name, values in rows.items():
        print(f"{name:34}{statistics.median(values):12,.0f}{min(values):12,.0f}{max(values):12,.0f}")


def conclude(figures: Mapping[str, float], load: Load, *, quick: bool = False) -> None:
    """Print how far the pairs lie apart, the machine's load and whether that is too much to tell; last, all as JSON."""
    print(f"\n{spread}" if (spread := table(figures)) else "")
    print(f"{load}\n{verdict(doubts(figures, load), quick=quick)}")
    print(json.dumps(record(figures, load)))


def machine() -> str:
    """One line on what this was measured on, without naming it."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}; load average at the start {load}"
    )


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards, in TRAINWRIGHT_BENCH_DIR if the temporary folder lies in memory."""
    with TemporaryDirectory(prefix="trainwright-bench-", dir=os.environ.get("TRAINWRIGHT_BENCH_DIR")) as folder:
        yield Path(folder).resolve()


def arguments(description: str | None) -> argparse.Namespace:
    """The command line that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: a minute or a few")
    parser.add_argument("--only", default="", help="data sets to take, such as a,c")
    return parser.parse_args()
