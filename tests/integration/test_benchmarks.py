"""Every benchmark ends on a small machine, with one JSON object as its last line.

`--sweep` runs them all with `--quick`, which takes an hour or more and, on first use, makes the peers' environments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# The quickest, two seconds of processor time each; they run by default.
SAMPLE = {"contamination.py", "effective.py", "index.py", "interval.py"}
NEEDS = {
    "load.py": [pytest.mark.apt("postgresql")],
    "soak.py": [pytest.mark.root, pytest.mark.apt("iproute2")],
}
# For one script, with the peers' environments, on a busy machine.
DEADLINE_S = 3600
TRIAL = """
import json, sys
from pathlib import Path
sys.path.insert(0, "benchmarks")
import gpu, step
from contenders import Training
folder = Path(sys.argv[1])
figures = gpu.measure(step.made(folder / "gpu"), gpu.common.TINY, batch_size=4, steps=5, pairs=1)
x, label = (step.common.arrays("b", 400)[name] for name in ("x", "label"))
small = Training(step.made(folder / "step"), "Perceptron", {}, {"x": x, "label": label}, 8, warm=5, steps=10**5)
figures["vs_lightning"] = step.compare("steps", small, "lightning", 2, turn_s=2)
tokens = {"tokens": gpu.np.zeros((400, 17), gpu.np.uint16)}
pair = Training(step.made(folder / "pair"), "GPT", gpu.common.TINY, tokens, 4, warm=2, steps=5, ranks=2)
figures["two_ranks_s"] = pair.whole("bare")["step_s"]
print(json.dumps(figures))
"""


def run(repository: Path, *arguments: str | Path, timeout_s: float = 500) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=repository, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(figures, dict)
    return figures


def scripts() -> list[Any]:
    """The scripts that a person runs: those with a `main`, apart from the peers, which another script starts."""
    names = [path.name for path in sorted(BENCHMARKS.glob("*.py")) if "\ndef main(" in path.read_text()]
    return [
        pytest.param(name, marks=[*NEEDS.get(name, []), *([] if name in SAMPLE else [pytest.mark.sweep])])
        for name in names
        if not name.endswith("_peers.py")
    ]


@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("script", scripts())
def test_each_benchmark_ends_with_a_json_object(repository: Path, script: str) -> None:
    run(repository, BENCHMARKS / script, "--quick", timeout_s=DEADLINE_S)


@pytest.mark.sweep
def test_the_contenders_train_and_time_themselves(repository: Path, tmp_path: Path) -> None:
    figures = run(repository, "-c", TRIAL, tmp_path)
    assert set(figures) == {"vs_bare_gpu", "tokens_per_s", "memory_vs_bare", "vs_lightning", "two_ranks_s"}
    assert all(figures[name] > 0 for name in figures if name != "memory_vs_bare")


@pytest.mark.sweep
def test_without_a_device_the_gpu_benchmark_says_so(repository: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert run(repository, "benchmarks/gpu.py") == {}


def test_the_gpt_has_the_size_that_it_says(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import gpu
    import modules

    with torch.device("meta"):
        module = modules.GPT((0, 1), **gpu.GPT_2)
    assert sum(parameter.numel() for parameter in module.parameters()) == pytest.approx(124e6, rel=0.01)
    # Of all parameters but the positions', each multiplies once forward and twice back.
    assert gpu.flops_per_token(gpu.GPT_2) == pytest.approx(6 * 124e6 + 12 * 12 * 768 * 1024, rel=0.01)
