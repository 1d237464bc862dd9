"""Checks rows against a suite in a child, and seals the report with what belongs to it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.contract.parts import reads_all_files
from data_contracts.contract.suites import own_classes, suite_digest
from data_contracts.contract.translation import reason
from data_contracts.handoffs import ContractReport, Ref
from data_contracts.messages.raw_data import CONTRACT, OWN_CONTRACT, ContractOutcome, ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.records import DriftReport
from infra import scratch
from infra.contract.parts import put_profile, read_profile
from infra.contract.quarantine import FILE
from infra.records.handoffs import put_handoff, read_handoff
from infra.store.seal import Writer
from infra.store.store import seal_attempt
from tasks.run.run import Run
from tasks.stages.contract import drift_check
from tasks.stages.contract.kept_parts import kept_parts, why_no_parts
from tasks.stages.contract.raw_rows import runs_tokenizer
from tasks.stages.contract.text_cuts import cut_files
from tasks.stages.placement import again_after_hangs, run_here
from tasks.stages.stage import ClusterStage

log = logging.getLogger("trainwright")
NO_CLUSTER = "contract.runner has no effect, because {}: this machine checks the data"
ON_CLUSTER = ClusterStage("validate", "contract.runner", "report", "give the workers fewer threads")


def data_request(run: Run) -> ContractRequest:
    """The check of the pipeline's raw data."""
    spec, resolved = run.spec, run.resolved
    assert spec.contract is not None
    assert not isinstance(spec.data, str)
    assert resolved.suite is not None
    return ContractRequest(
        suite=resolved.suite,
        files=resolved.files,
        sources=spec.data.source,
        root=resolved.root,
        window=resolved.window,
        window_column=spec.data.window.column if spec.data.window else None,
        fail_on=spec.contract.fail_on,
        sensitive=spec.data.sensitive,
        quarantine=spec.contract.quarantine,
        strict=spec.data.schema == "strict",
    )


def checked(run: Run, key: str, request: ContractRequest, provenance: dict[str, Any] | None = None) -> ContractReport:
    """The sealed report of a check; its provenance names the raw files, unless another is given."""
    with _with_folder(request) as request:
        return _sealed(run, key, request, _outcome(run, request), provenance=provenance)


def checked_and_compared(run: Run, key: str, plain: str, request: ContractRequest) -> ContractReport:
    """The sealed report of a check with the comparison that `contract.drift` asks for.

    Args:
        plain: the key of the report without the comparison, which is reused, or sealed first; `key` if none is asked
            for.
    """
    if plain == key:
        return checked(run, key, request)
    with _with_folder(request) as request:
        outcome = _checked_before(run, plain)
        if outcome is None:
            outcome = _outcome(run, request)
            _sealed(run, plain, request, outcome)
        return _sealed(run, key, request, outcome, drift_check.drift_of(run, outcome.profile))


def where_measured(run: Run) -> str:
    """What a cluster that `contract.runner` names does, and what is read here; "" without one. For a plan."""
    contract = run.spec.contract
    if contract is None or contract.runner == "local":
        return ""
    request = data_request(run)
    if why := why_no_parts(request):
        return NO_CLUSTER.format(why)
    entries = request.suite["expectations"]
    whole = sum(reason(asked) != "" or reads_all_files(asked) for asked in entries)
    return (
        f"the Dask cluster at {contract.runner.dask} measures new files; {whole} of {len(entries)} expectations do not "
        "add up over files, and read their columns of all files on this machine"
    )


@contextlib.contextmanager
def _with_folder(request: ContractRequest) -> Iterator[ContractRequest]:
    """The request with a private folder for the rows that are set aside, if any may be."""
    if request.quarantine is None:
        yield request
        return
    with scratch.make("quarantine") as folder:
        yield request.model_copy(update={"folder": str(folder.path)})


def code_of(run: Run, suite: dict[str, Any], sources: Iterable[SourceSpec] = ()) -> str | None:
    """The digest of the user's code, if a suite names classes of it or a source a tokenizer; part of a report's key."""
    return run.resolved.code_digest if own_classes(suite) or runs_tokenizer(sources) else None


def _outcome(run: Run, request: ContractRequest) -> ContractOutcome:
    request = request.model_copy(update={"files": cut_files(run, request.files, request.sources)})
    with kept_parts(run, request) as request:
        return _checked(run, request)


def _checked(run: Run, request: ContractRequest) -> ContractOutcome:
    child, project = CONTRACT, None
    if own_classes(request.suite):
        child, project = OWN_CONTRACT, run.project()
        request = request.model_copy(update={"project": str(project)})
    runner = run.spec.contract.runner if run.spec.contract is not None else "local"
    if runner != "local" and request.parts is not None:
        from tasks.stages.dask_cluster import run_on_dask  # Dask and Prefect take seconds to import

        return again_after_hangs(run, partial(run_on_dask, run, ON_CLUSTER, runner, child, request))
    if runner != "local" and request.profile:
        log.warning("validate: %s", NO_CLUSTER.format(why_no_parts(request)))
    return run_here(run, child, request, project=project, memory_share=run.memory_share)


def _checked_before(run: Run, key: str) -> ContractOutcome | None:
    """The outcome of a sealed report that has a profile and set no row aside; None if there is none."""
    ref = run.store.newest("contracts", key)
    if ref is None or (profile := read_profile(run.store, ref)) is None:
        return None
    report = read_handoff(run.store, ref, ContractReport)
    if report.quarantine is not None and report.quarantine.rows:
        return None  # the file with these rows would have to be copied
    names = ("accepted", "rows", "expectations", "failures", "quarantine")
    return ContractOutcome(**{name: getattr(report, name) for name in names}, profile=profile)


def _sealed(
    run: Run,
    key: str,
    request: ContractRequest,
    outcome: ContractOutcome,
    drift: DriftReport | None = None,
    provenance: dict[str, Any] | None = None,
) -> ContractReport:
    """The report of an outcome, stored with the profile and with the rows that were set aside."""
    found = outcome.model_dump(mode="json", exclude={"schema_version", "profile"})
    found["accepted"] = outcome.accepted and not drift_check.rejects(run, drift)
    fields = {"schema_version": 1, "key": key, **found, "suite_digest": suite_digest(request.suite)}
    settings = {
        "suite": request.suite,
        "fail_on": request.fail_on,
        "files": [file.blake3 for file in request.files],
    }
    if request.quarantine is not None:
        settings["quarantine"] = request.quarantine.model_dump(mode="json")
    if provenance is None:
        provenance = {**run.provenance(), **run.raw_provenance(request.files, request.sources)}

    def fill(writer: Writer) -> Ref:
        put_handoff(writer, fields if drift is None else {**fields, "drift": drift.to_json()})
        if outcome.profile is not None:
            put_profile(writer, outcome.profile)
        if outcome.quarantine is not None and outcome.quarantine.rows:
            assert request.folder is not None
            writer.put(FILE, Path(request.folder) / FILE, private=True)
        return writer.seal("contract", settings, provenance)

    # Files of equal bytes have one key; the report names the files. Another version of pyarrow writes other bytes, too.
    ref = seal_attempt(run.store, "contracts", key, fill)
    return read_handoff(run.store, ref, ContractReport)
