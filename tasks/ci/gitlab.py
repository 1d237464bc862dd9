"""Writes findings and outputs as GitLab reads them: a Code Quality report, and a dotenv report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from tasks.ci.findings import Finding

# GitLab refuses a larger dotenv report as a whole.
MOST_DOTENV_BYTES = 5 * 1024
_SEVERITIES = {"error": "critical", "warning": "minor", "notice": "info"}


def code_quality(findings: Sequence[Finding]) -> str:
    """The findings as a Code Quality report. Each has a place: what stands nowhere in the checkout is left out."""
    entries = []
    for one in findings:
        if not one.file:
            continue
        # GitLab compares findings of two commits by it, so a moved line is the same finding.
        fingerprint = hashlib.sha256(json.dumps([one.file, one.title, one.sentence]).encode()).hexdigest()
        entries.append(
            {
                "description": one.sentence,
                "check_name": f"trainwright: {one.title}",
                "fingerprint": fingerprint,
                "severity": _SEVERITIES[one.level],
                "location": {"path": one.file, "lines": {"begin": one.line}},
            }
        )
    return json.dumps(entries, indent=1) + "\n"


def dotenv(values: Mapping[str, str]) -> str:
    """The outputs as variables `TRAINWRIGHT_<NAME>`; metrics that would make the report too large are left out."""
    lines = {name: f"TRAINWRIGHT_{name.upper()}={value}\n" for name, value in values.items()}
    if sum(len(line.encode()) for line in lines.values()) > MOST_DOTENV_BYTES:
        lines["metrics"] = "TRAINWRIGHT_METRICS={}\n"
    return "".join(lines.values())
