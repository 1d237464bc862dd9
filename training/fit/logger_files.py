"""Stores the files that the loggers of the config wrote, as one archive for each generation.

A logger with a relative `save_dir` writes below the rank's working folder, which ends with the training.
"""

from __future__ import annotations

import io
import logging
import zipfile
from pathlib import Path

import lightning as L

from data_contracts.errors import TrainwrightError
from data_contracts.quoting import withholds
from infra.store import Store, layout
from training.fit.history import History
from training.fit.launch_context import Context

log = logging.getLogger(__name__)

MOST_BYTES = 256 * 2**20


def keep(trainer: L.Trainer, context: Context, store: Store) -> None:
    """Store the files of the loggers that the config names; a training does not fail for them."""
    if context.rank != 0:
        return
    root = Path.cwd()
    loggers = [logger for logger in trainer.loggers if not isinstance(logger, History)]
    folders = [getattr(logger, "log_dir", None) or logger.save_dir for logger in loggers]
    inside = {folder for name in folders if name and root in (folder := (root / name).resolve()).parents}
    files = sorted({path for folder in inside for path in folder.rglob("*") if path.is_file()})
    if not files:
        return
    if withholds():
        log.warning("the files of the config's loggers are not kept, because they may repeat values of the data")
        return
    if sum(path.stat().st_size for path in files) > MOST_BYTES:
        log.warning("the files of the config's loggers are not kept: they are larger than %d MiB", MOST_BYTES // 2**20)
        return
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.relative_to(root))
    try:
        store.create_once(layout.logger_files(context.training, context.generation), packed.getvalue())
    except TrainwrightError as error:
        log.warning("the files of the config's loggers are not kept: %s", error.message)
