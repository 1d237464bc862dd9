"""A rank with gloo groups as a training has them, for tests of what listens: it meets the others and waits."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from data_contracts.messages.gang import RankAnswer, RankReport
from infra.gang.rank_files import SCRATCH, RankFiles, read_launch

RANK = int(os.environ["RANK"])
FILES, LAUNCH = RankFiles(Path(os.environ[SCRATCH]), RANK), read_launch()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    sums = [torch.ones(1), torch.ones(1)]
    for tensor, group in zip(sums, (None, dist.new_group(backend="gloo")), strict=True):
        dist.all_reduce(tensor, group=group)
    assert all(tensor.item() == dist.get_world_size() for tensor in sums)
    FILES.write_report(RankReport(rank=RANK, phase="training", step=1, steps=1))
    while not Path(LAUNCH.train["until"]).exists():
        time.sleep(0.05)
    FILES.write_answer(RankAnswer())


if __name__ == "__main__":
    main()
