"""The part of validate that compares the raw data's profile with earlier data: `contract.drift`."""

from __future__ import annotations

from typing import Any

from data_contracts.contract.findings import is_grave
from data_contracts.errors import UsageError
from data_contracts.handoffs import ContractReport
from data_contracts.pipeline_spec.contract import DriftSpec
from data_contracts.profile.drift import compared
from data_contracts.profile.record import Profile
from data_contracts.records import VERDICTS, DriftReport
from tasks.run.resolve import reference_profile
from tasks.run.run import Run


def keyed(run: Run) -> dict[str, Any]:
    """What the comparison adds to the report's key: its settings and the earlier data; nothing without it."""
    section, reference = _section(run), run.resolved.drift
    if section is None or reference is None:
        return {}
    earlier = reference.digest if reference.contract is None else reference.contract.id
    # Without earlier data the report says why, so one reason must not be reused for another.
    settings = section.model_dump(mode="json", exclude={"against", "retrain"})
    return {"drift": {**settings, "reference": earlier or {"note": reference.note}}}


def drift_of(run: Run, profile: Profile | None) -> DriftReport | None:
    """The comparison of this run's profile with the earlier data; None if it is not asked for.

    UsageError if a column that `contract.drift` names is in neither.
    """
    section, reference = _section(run), run.resolved.drift
    if section is None or reference is None:
        return None
    earlier = None if reference.note else reference_profile(run.store, reference, run.root)
    if earlier is None or profile is None:
        note = reference.note or f"there are no rows to compare with {reference.name}"
        return DriftReport(against=reference.name, note=note)
    for field in ("columns", "ignore"):
        for name in getattr(section, field):
            if earlier.column(name) is None and profile.column(name) is None:
                remedy = "Correct the name, or leave it out."
                raise UsageError(
                    f"contract.drift.{field}: neither the data nor the earlier data has a column {name}.", remedy=remedy
                )
    return compared(earlier, profile, reference.name, only=section.columns, ignore=section.ignore)


def rejects(run: Run, report: DriftReport | None) -> bool:
    """Whether the data has moved so far that `contract.drift.fail_on` rejects it."""
    section = _section(run)
    if section is None or report is None or section.fail_on == "never":
        return False
    return VERDICTS.index(report.verdict) >= VERDICTS.index(section.fail_on)


def alone_rejects(run: Run, report: ContractReport) -> bool:
    """Whether drift rejects the data of this report, and no expectation, nor what `contract.arrival` found, does."""
    contract = run.spec.contract
    if contract is None or not rejects(run, report.drift):
        return False
    return bool(report.expectations) and not any(is_grave(one, contract.fail_on) for one in report.failures)


def _section(run: Run) -> DriftSpec | None:
    return None if run.spec.contract is None else run.spec.contract.drift
