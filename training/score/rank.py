"""One rank of a gang that verifies or scores: `python -m training.score.rank`, started by torchrun like a rank that
trains.

The launch's remote job has the request; rank 0 answers it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_contracts.errors import Interrupted
from data_contracts.handoffs import Ref
from data_contracts.messages import Message
from data_contracts.messages.children import VERIFY, Advanced, EvaluateRequest, RemoteJob, VerifyRequest
from data_contracts.messages.gang import Launch, RankAnswer
from data_contracts.quoting import PROJECT
from infra.code_bundle import unpack
from infra.gang.rank_files import SCRATCH, STORE, RankFiles, read_launch, store_options
from infra.gang.remote_job import lay_out
from infra.store import open_store
from infra.store.records import parsed
from training.fit.rank import end
from training.fit.reports import Reports, watch_collectives


def main() -> int:
    """Do this rank's part and return the exit code."""
    launch, scratch, rank = read_launch(), Path(os.environ[SCRATCH]), int(os.environ["RANK"])
    reports = Reports(scratch, rank, launch.heartbeat_s)
    reports.report(now=True)
    reports.pulse()
    project = Path(os.environ[PROJECT])
    try:
        job = parsed("remote job of the launch", RemoteJob.from_json, launch.remote_job)
        store = open_store(os.environ[STORE], store_options(), create=False)

        def unpacked(ref: Ref) -> Path:
            # The supervisor has unpacked the code that the ranks run.
            return project if ref == launch.code else unpack(store, ref, scratch / f"code-{rank}-{ref.id[:16]}")

        answer = do_job(launch, job, lay_out(store, job.needs, unpacked), reports)
    except BaseException as error:
        traceback.print_exc()
        from training.fit.failures import classify

        timeout_s = launch.settings["collective_timeout_s"]
        # A broken connection surfaces in whichever step of the user's met a collective.
        under = None if error.__cause__ is None else classify(error.__cause__, project, timeout_s=timeout_s)
        failed = under if isinstance(under, Interrupted) else classify(error, project, timeout_s=timeout_s)
        reports.failed(failed)
        return failed.exit_code
    reports.report(now=True)
    RankFiles(scratch, rank).write_answer(RankAnswer(plan=answer))
    return 0


def do_job(launch: Launch, job: RemoteJob, paths: Mapping[str, str], reports: Reports) -> dict[str, Any]:
    """Do the job with the other ranks; returns its answer as JSON on rank 0, else nothing.

    Args:
        paths: folders of what the job needs, by id.
    """
    from training.score import evaluate_worker, verify_worker
    from training.score.team import team_of

    watch_collectives(reports.activity)

    def report(message: Message) -> None:
        assert isinstance(message, Advanced)
        reports.begin()
        reports.activity.stepped()
        reports.activity.enter("hooks" if message.long else "between")

    team, request = team_of(launch.settings, os.environ, launch.devices), job.request_at(paths)
    if job.module == VERIFY.module:
        verified = verify_worker.verified_by(VerifyRequest.from_json(request), report, team)
        return verified.to_json() if team.rank == 0 else {}
    evaluate = EvaluateRequest.from_json(request)
    evaluation = evaluate_worker.evaluated(evaluate, report, team)
    return {} if evaluation is None else evaluation.to_json()


if __name__ == "__main__":
    end(main())
