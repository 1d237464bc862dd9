"""The contracts of evaluation sets with rows of their own: what is checked on them, and under which key."""

from __future__ import annotations

from data_contracts.canonical import reuse_key
from data_contracts.handoffs import ContractReport
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.pipeline_spec import SuiteSpec
from infra.records.handoffs import newest_handoff
from tasks.run.run import Run
from tasks.stages.contract.contract_check import code_of
from tasks.stages.contract.raw_rows import raw_inputs, reading_settings, suite_settings

VERSION = 1


def set_requests(run: Run) -> dict[str, ContractRequest]:
    """The check of each evaluation set that has rows of its own and a contract, by the set's name."""
    spec, resolved = run.spec, run.resolved
    found = {}
    for name, files in resolved.sets.items():
        one = spec.evaluate.sets[name]
        if one.contract == "none" or spec.contract is None or isinstance(spec.data, str):
            continue
        own = isinstance(one.contract, SuiteSpec)
        suite = resolved.set_suites[name] if own else resolved.suite
        assert suite is not None
        found[name] = ContractRequest(
            suite=suite,
            files=files,
            sources=one.source or [],
            root=resolved.root,
            window=None,
            window_column=None,
            fail_on=one.contract.fail_on if isinstance(one.contract, SuiteSpec) else spec.contract.fail_on,
            sensitive=spec.data.sensitive,
            may_lack_sensitive=True,
            profile=False,
        )
    return found


def set_key(run: Run, request: ContractRequest) -> str:
    """Reuse key of a set's report: the suite, what it fails on, what is masked, and the raw bytes."""
    settings = {
        **suite_settings(request.suite, request.fail_on, request.sensitive),
        "sources": reading_settings(request.sources),
        "evaluation_set": True,
    }
    code = code_of(run, request.suite, request.sources)
    return reuse_key("validate", VERSION, settings, raw_inputs(request.files), code)


def set_report(run: Run, request: ContractRequest) -> ContractReport | None:
    """The report of a set's check, accepted or not; None if there is none yet."""
    return newest_handoff(run.store, "contracts", set_key(run, request), ContractReport)
