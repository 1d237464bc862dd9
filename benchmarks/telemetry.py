"""What telemetry takes of a rank's time: its share of a step of 50 ms.

    python benchmarks/telemetry.py [--quick]

A step's own noise is larger than 1 %, so what telemetry adds is timed without a model's work, in processor time: the
hooks of a step with the measures and without them, by turns. What is done once a second is timed in the same way (the
report with its measures) or alone (the loss, the gradient's norm of 10 million parameters), and counted as often as a
rank does it. `telemetry_share` is the sum over 50 ms; below 0.01 is promised. The page that the conductor writes for a
scrape is timed beside it: it is made in another process than the ranks.
"""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import arguments, machine

from data_contracts.messages.gang import Heartbeat
from infra.metrics import COMMON, node_samples, page
from training.fit import measuring, reports
from training.fit.measuring import Measuring, gradient_norm

STEP_S, EVERY_S = 0.05, 1.0
ROUNDS = 5


def seconds_of(work: Callable[[], object], times: int) -> float:
    """Seconds of processor time of one call, by the mean of `times`."""
    began = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - began) / times


def added(first: Callable[[], object], second: Callable[[], object], times: int) -> float:
    """How much longer `first` takes than `second`: the median of ROUNDS differences, taken by turns."""
    found = []
    for turn in range(ROUNDS):
        both = [first, second] if turn % 2 else [second, first]
        took = {work: seconds_of(work, times) for work in both}
        found.append(took[first] - took[second])
    return max(statistics.median(found), 0.0)


def alone(work: Callable[[], object], times: int) -> float:
    """The median of ROUNDS means."""
    return statistics.median(seconds_of(work, times) for _ in range(ROUNDS))


def steps(folder: Path, times: int) -> tuple[float, float, float]:
    """Seconds that telemetry adds to a step, to a report, and to reading a loss."""
    rank = reports.Reports(folder, 0, EVERY_S)
    measure = Measuring(rank)
    measure._norm_at = float("inf")
    trainer: Any = SimpleNamespace(global_rank=0, accumulate_grad_batches=1)
    module: Any = None
    optimizer: Any = None
    outputs = {"loss": torch.tensor(0.5)}

    def plain() -> None:
        rank.activity.enter("fetching")
        rank.activity.enter("forward")
        rank.activity.enter("stepping")
        rank.activity.stepped()
        rank.activity.enter("between")

    def measured() -> None:
        plain()
        measure.on_train_batch_end(trainer, module, outputs, None, 0)
        measure.on_before_optimizer_step(trainer, module, optimizer)
        rank.measures.step()

    record, nothing = rank.measures.record, lambda: None

    def report_with() -> None:
        rank.measures.record = record  # type: ignore[method-assign]
        rank._write()

    def report_without() -> None:
        rank.measures.record = nothing  # type: ignore[assignment, method-assign]
        rank._write()

    in_step = added(measured, plain, times)
    in_report = added(report_with, report_without, max(times // 200, 20))
    rank.measures.record = record  # type: ignore[method-assign]
    return in_step, in_report, alone(lambda: measure.read(trainer), times)


def norms(times: int) -> float:
    """Seconds of one gradient norm over 10 million parameters in 100 tensors."""
    parameters = [torch.nn.Parameter(torch.zeros(100_000)) for _ in range(100)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return alone(lambda: gradient_norm(optimizer), times)


def pages(folder: Path, times: int) -> float:
    """Seconds of one page about 16 nodes of 8 ranks."""
    found = []
    for number in range(16):
        ranks = []
        for rank in range(8):
            kept = reports.Reports(folder, 8 * number + rank, EVERY_S)
            kept.activity.enter("forward")
            kept.report(now=True)
            report = kept._files.report()
            assert report is not None, "it was written"
            ranks.append(report)
        found.append(Heartbeat(ranks=ranks))
    beats = dict(enumerate(found))
    return alone(lambda: page(dict.fromkeys(COMMON, "benchmark"), node_samples(beats, {})), times)


def main() -> None:
    """Measure and print."""
    quick = arguments(__doc__).quick
    times = 10_000 if quick else 20_000
    versions = ", ".join(
        f"{one} {importlib.metadata.version(one)}" for one in ("torch", "lightning", "prometheus-client")
    )
    print(f"{machine()}\n{versions}; medians of {ROUNDS} rounds by turns")
    with tempfile.TemporaryDirectory() as folder:
        in_step, in_report, in_loss = steps(Path(folder), times)
        norm, a_page = norms(20), pages(Path(folder), 3 if quick else 10)
    norm_share = norm / (norm + max(measuring.NORM_EVERY_S, norm / measuring.NORM_SHARE))
    # A report is written when it is due and by the pulse: twice a second.
    every_s = (2 * in_report + in_loss) / EVERY_S
    share = in_step / STEP_S + every_s + norm_share
    print(f"added to a step: {in_step * 1e6:.2f} µs, {in_step / STEP_S:.4%} of 50 ms")
    print(f"added to a report: {in_report * 1e6:.0f} µs, twice a second; the loss: {in_loss * 1e6:.2f} µs a second")
    print(f"the gradient's norm of 10 M parameters: {norm * 1e3:.2f} ms, taken in {norm_share:.4%} of the time")
    print(f"a page about 128 ranks: {a_page * 1e3:.1f} ms, in the conductor")
    print(json.dumps({"telemetry_share": round(share, 6)}))


if __name__ == "__main__":
    main()
