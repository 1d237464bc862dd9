"""Writes findings and outputs as GitHub Actions read them: workflow commands, and lines of the file for outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tasks.ci.findings import Finding, Level

# Of one kind and one step, GitHub shows so many and drops the rest without a word.
MOST_ANNOTATIONS = 10


def commands(findings: Sequence[Finding]) -> list[str]:
    """Workflow commands for the findings, at most ten of a kind; the last one says how many more there are."""
    lines: list[str] = []
    for level in ("error", "warning", "notice"):
        lines += map(_command, _at_most([one for one in findings if one.level == level], level))
    return lines


def _at_most(found: list[Finding], level: Level) -> list[Finding]:
    if len(found) <= MOST_ANNOTATIONS:
        return found
    kept = found[: MOST_ANNOTATIONS - 1]
    more = len(found) - len(kept)
    return [*kept, Finding(level, f"{more} more", f"{more} more are not shown here; the step's summary lists all.")]


def _command(finding: Finding) -> str:
    properties = {"file": finding.file, "line": str(finding.line)} if finding.file else {}
    properties["title"] = finding.title
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{finding.level} {listed}::{_data(finding.sentence)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def outputs(values: Mapping[str, str]) -> str:
    """Lines for the file `GITHUB_OUTPUT`; each value must be a single line."""
    return "".join(_assignments(values.items()))


def _assignments(values: Iterable[tuple[str, str]]) -> Iterable[str]:
    for name, value in values:
        assert "\n" not in value, "a value of several lines could set other outputs"
        assert "\r" not in value
        yield f"{name}={value}\n"
