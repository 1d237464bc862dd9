"""CI reports for tests: of a run with something of each kind, and one whose texts try to be more than text."""

from __future__ import annotations

from data_contracts.run_report import CaseStatus, CiCase, CiReport, Cost, ModelName

HOSTILE = (
    "x ::error file=a::b\n::set-env name=A::b\r%0A <img src=x onerror=y> [l](http://evil) | `a` ]]> \x1b[31m \u202e "
    "\ud800 ${{ x }} $(id)"
)


def case(kind: str = "gate", status: CaseStatus = "failed", name: str = "accuracy: min 0.9", **more: object) -> CiCase:
    """A case with defaults."""
    return CiCase.model_validate({"kind": kind, "name": name, "status": status, "sentence": "it is 0.5", **more})


def report(*cases: CiCase, **more: object) -> CiReport:
    """The report of a run that was not promoted."""
    return CiReport.model_validate(
        {
            "pipeline": "tiny",
            "run_id": "20261126-010029-7717a3",
            "verdict": "not_promoted",
            "exit_code": 4,
            "sentence": "The alias stays where it was: gate not met.",
            "cause": "gate_not_met",
            "cases": cases,
            "metrics": {"accuracy": 0.5},
            "cost": Cost(node_seconds=8, usd=0.5, machine="gpu", usd_per_hour=225, price_date="2026-11-01"),
            "commit": "0123456789abcdef",
            **more,
        }
    )


def promoted(*cases: CiCase) -> CiReport:
    """The report of a run that was promoted."""
    model = ModelName(name="tiny", version=2, alias="champion")
    return report(*cases, verdict="promoted", exit_code=0, cause="", sentence="Version 2 was promoted.", model=model)
