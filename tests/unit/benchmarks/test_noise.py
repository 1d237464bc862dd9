"""When a benchmark says that its figures cannot be trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

TIGHT, WIDE = [1.30, 1.34, 1.40], [0.41, 0.63, 1.52]


@pytest.fixture
def noise(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import noise

    return noise


@pytest.mark.parametrize(
    ("pairs", "before", "others", "reason"),
    [
        (TIGHT, 0.2, 0.02, None),
        (TIGHT, 0.2, None, None),
        (WIDE, 0.2, 0.02, "save_vs_safetensors is 0.63, but single pairs range from 0.41 to 1.52"),
        (TIGHT, 3.1, 0.02, "the load was 3.1 on 2 cores"),
        (TIGHT, 0.2, 0.38, "other processes took 38% of the processor time"),
        ([1.34], 0.2, 0.02, "save_vs_safetensors was measured only once"),
    ],
    ids=["quiet and tight", "others unknown", "wide", "load", "others", "one pair"],
)
def test_figures_are_reliable_if_their_pairs_agree_on_a_quiet_machine(
    noise: ModuleType, pairs: list[float], before: float, others: float | None, reason: str | None
) -> None:
    figures = {"save_vs_safetensors": noise.Median(pairs)}
    load = noise.Load(before, 1.9, 2, others)
    assert noise.doubts(figures, load) == ([] if reason is None else [reason])
    assert noise.record(figures, load)["reliable"] is (reason is None)


def test_the_verdict_is_one_sentence_and_what_to_do(noise: ModuleType) -> None:
    figures = {
        "save_vs_safetensors": noise.Median(WIDE),
        "save_vs_dcp": noise.Median([1, 1.4]),
        "stall": noise.Median(TIGHT),
    }
    reasons = noise.doubts(figures, noise.Load(3.1, 4.0, 2))
    assert noise.verdict(reasons, quick=True) == (
        "Too noisy to tell: save_vs_safetensors is 0.63, but single pairs range from 0.41 to 1.52 "
        "(and 1 more like it), and the load was 3.1 on 2 cores. Repeat on a quiet machine, or run the long form."
    )
    assert noise.verdict(reasons, quick=False).endswith(" Repeat on a quiet machine.")
    assert noise.verdict([], quick=True) == "The pairs agree and the machine was quiet."


def test_the_last_line_keeps_its_figures_and_adds_the_spread(noise: ModuleType) -> None:
    figures = {"vs": noise.Median([1.4, 1.3, 1.349]), "steps": 0.975, "resume_ms": 7.1}
    line = json.loads(json.dumps(noise.record(figures, noise.Load(0.2, 1.9, 2, 0.02))))
    assert line == {
        "vs": 1.35, "steps": 0.975, "resume_ms": 7.1, "spread": {"vs": [1.3, 1.4]},
        "load": {"before": 0.2, "after": 1.9, "cores": 2, "others": 0.02}, "reliable": True,
    }  # fmt: skip


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (60, 21)])
def test_more_pairs_narrow_where_the_median_lies(noise: ModuleType, count: int, left_out: int) -> None:
    # The ranks are those of any table of the sign test at 5%, two-sided.
    assert noise.Median(range(count)).bounds == (left_out, count - 1 - left_out)


def test_many_pairs_that_scatter_are_worth_more_than_few(noise: ModuleType) -> None:
    scattered = [0.80, 0.85, 0.90, 0.95, 1.0, 1.05, 1.10, 1.15, 1.20]
    assert noise.Median(scattered[::4]).wide
    assert not noise.Median(scattered * 7).wide


def test_ticks_that_were_not_idle(noise: ModuleType) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice; guests are in user already.
    assert noise.busy_ticks("cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n") == 171


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc/stat")
def test_work_counts_as_that_of_others_until_it_is_known_to_be_ours(noise: ModuleType) -> None:
    ours, watch, started = noise._ours_s(), noise.Watch(), time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked for its times
    load = watch.end()
    elapsed = load.cores * (time.perf_counter() - started)
    assert load.others * elapsed > 0.7, "the kernel counts in ticks, so some of the second may be missing"
    assert watch.end(all_reaped=False).others is None
    assert noise._ours_s() - ours < 0.7
    process.wait()
    assert noise._ours_s() - ours > 0.7
