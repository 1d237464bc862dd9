"""The values that a job's next step gets: names and numbers without anything that a shell reads otherwise."""

from __future__ import annotations

import json
import math
import re

from data_contracts.run_report import CiReport

# Names of metrics that are safe wherever a workflow puts them, also unquoted in a shell.
_SAFE = re.compile(r"[\w.@/-]{1,100}", re.ASCII)


def values(report: CiReport) -> dict[str, str]:
    """Each output by its name; "" for what the run does not have.

    `metrics` is a JSON object. A metric is left out if it is not finite, or its name has more than letters, digits and
    `_.@/-`.
    """
    model, cost = report.model, report.cost
    metrics = {name: value for name, value in report.metrics.items() if _SAFE.fullmatch(name) and math.isfinite(value)}
    return {
        "run_id": _safe(report.run_id),
        "verdict": report.verdict,
        "exit_code": str(report.exit_code),
        "model": "" if model is None else _safe(model.name),
        "version": "" if model is None or model.version is None else str(model.version),
        "metrics": json.dumps(metrics, separators=(",", ":")),
        "cost_usd": "" if cost.usd is None else f"{cost.usd:.4f}",
        "node_seconds": f"{cost.node_seconds:.0f}",
    }


def _safe(name: str) -> str:
    return name if _SAFE.fullmatch(name) else ""
