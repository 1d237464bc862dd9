"""The logger that a config names is the module's own, and what it wrote comes back with the training."""

from __future__ import annotations

import shutil
from pathlib import Path

from data_contracts.handoffs import Checkpoint
from tasks.queries.history import logged_metrics, write_logger_files
from tests.distributed.conftest import Make


def test_a_configured_logger_is_the_modules_and_its_files_come_back(gang: Make, tmp_path: Path) -> None:
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "curves"}}
    run = gang("run", "WritesMore", ranks=1, trainer={"logger": [logger]})
    # The ranks work in a copy, as they do on a node.
    run.project = Path(shutil.copytree(run.project, tmp_path / "project"))
    checkpoint = Checkpoint.from_json(run.train_to_end())
    write_logger_files(run.store, checkpoint, tmp_path / "back")
    folder = tmp_path / "back" / "g0" / "curves" / "lightning_logs" / "version_0"
    written = [path.name for path in sorted(folder.iterdir())]
    assert written == ["epoch-0.txt", "epoch-1.txt", "epoch-2.txt", "metrics.csv"]
    assert "norm" in (folder / "metrics.csv").read_text().splitlines()[0]
    # Our own history has what the module logged, not what it gave to its logger alone.
    assert {name for record in logged_metrics(run.store, checkpoint) for name in record} >= {"val_loss"}
