"""The gate `promote.export`: a candidate is exported, and the file's outputs must equal the checkpoint's.

It comes before the gates with confidence: they spend test rows, which would be wasted on a model that cannot be used.
The files are not kept; the comparison is recorded in the provenance of the receipt.
"""

from __future__ import annotations

import logging
from typing import Any

from data_contracts.errors import Diverged, GateNotMet, OutOfMemory, UserCodeError
from data_contracts.handoffs import Checkpoint, Dataset
from data_contracts.messages.commands import EXPORT, Exported, ExportRequest, Tolerance
from data_contracts.pipeline_spec.promote import ExportGate
from infra import scratch
from infra.gang.remote_job import lay_out
from infra.records.handoffs import read_handoff
from tasks.run.run import Run
from tasks.stages.lineage import trained_with
from tasks.stages.placement import run_here

log = logging.getLogger("trainwright")


def exports_that_agree(run: Run, checkpoint: Checkpoint, stays: str) -> dict[str, Any]:
    """What was compared, for the receipt's provenance: `exports` by form; {} if no export is asked for.

    Args:
        stays: the end of the sentence that refuses the candidate.

    Raises:
        GateNotMet: the candidate cannot be exported, or an output differs by more than the tolerance.
    """
    made = {one.to: _compared(run, checkpoint, one, stays) for one in run.spec.promote.export}
    return {"exports": made} if made else {}


def split_with_rows(dataset: Dataset | None, wanted: str) -> str:
    """The wanted split if it has rows, else a split that has rows; without a dataset, the wanted split."""
    if dataset is None or dataset.rows(wanted):
        return wanted
    return next((name for name in ("test", "val", *dataset.splits) if dataset.rows(name)), wanted)


def sentence(run: Run) -> str:
    """What a plan says of the gate; "" if there is none."""
    forms = [one.to for one in run.spec.promote.export]
    return f"; before that, it is exported to {' and '.join(forms)} and compared" if forms else ""


def _compared(run: Run, checkpoint: Checkpoint, gate: ExportGate, stays: str) -> dict[str, Any]:
    try:
        made = _export(run, checkpoint, gate)
    except (OutOfMemory, Diverged):
        raise
    except (GateNotMet, UserCodeError) as error:
        raise GateNotMet(
            f"Not promoted, the export to {gate.to} failed: {error.message.rstrip('.')}; {stays}.",
            remedy=error.remedy,
            user_traceback=error.user_traceback,
            details=error.details,
        ) from error
    largest = max(one.largest for one in made.agreements)
    log.info("  promote: exported to %s, the largest difference on %d rows is %.3g", gate.to, made.sample, largest)
    kept = ("inputs", "outputs", "agreements", "sample", "batch_sizes", "transform", "versions")
    return made.model_dump(mode="json", include=set(kept))


def _export(run: Run, checkpoint: Checkpoint, gate: ExportGate) -> Exported:
    trained = trained_with(run, checkpoint)
    dataset = None if trained.dataset is None else read_handoff(run.store, trained.dataset, Dataset)
    wanted = run.spec.evaluate
    with scratch.make("export") as folder:
        request = ExportRequest(
            store=run.store_address,
            checkpoint=checkpoint,
            train=trained.train,
            dataset=dataset,
            split=split_with_rows(dataset, wanted.split),
            targets=sorted({one.target for one in wanted.metrics.values() if one.target}),
            format=gate.to,
            folder=str(folder.path),
            tolerance=_tolerance(gate),
            code=trained.code,
        )
        here = request.at(lay_out(run.store, request.needs, run.project))
        return run_here(run, EXPORT, here, project=here.project)


def _tolerance(gate: ExportGate) -> Tolerance | None:
    if gate.atol is None and gate.rtol is None:
        return None
    return Tolerance(atol=gate.atol or 0.0, rtol=gate.rtol or 0.0)
