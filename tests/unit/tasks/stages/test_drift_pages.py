"""validate's page shows what moved, with pictures, and names of columns stay texts."""

from __future__ import annotations

import base64
import re

from markdown_it import MarkdownIt

from data_contracts.records import Bar, ColumnDrift, DriftReport
from tasks.stages.artifacts import DRIFT_SHOWN, drift_section

FORGED = "![x](https://evil.example/x.png) | <img src=x> </title><script>"
BARS = [Bar(label=FORGED, then=0.25, now=0.5), Bar(label="b", then=0.75, now=0.5)]


def column(name: str, verdict: str = "warning") -> ColumnDrift:
    told = {"column": name, "verdict": verdict, "p": 0.0, "nulls": (0, 0), "bars": BARS, "sentence": f"{name}: moved"}
    return ColumnDrift.model_validate(told)


def test_a_table_with_pictures_and_nothing_forged() -> None:
    report = DriftReport(against=FORGED, rows=(4, 5), columns=[column(FORGED), column("same", "same")])
    text = "\n".join(drift_section(report))
    page = MarkdownIt("commonmark").enable("table").render(text)
    assert page.count("<tr>") == 2
    assert "<img" not in page  # this renderer takes no SVG; Prefect's does
    [picture] = re.findall(r"!\[histogram\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\) \|$", text, re.MULTILINE)
    assert "<script" not in base64.b64decode(picture).decode()
    assert "<script" not in page
    assert "1 of 2 columns moved against" in page


def test_few_rows_and_none() -> None:
    assert drift_section(None) == []
    assert drift_section(DriftReport(against="a", note="there is no a yet"))[-1] == "There is no a yet."
    many = DriftReport(against="a", columns=[column(f"c{number}") for number in range(DRIFT_SHOWN + 3)])
    assert drift_section(many)[-1] == "… and 3 more, in the report."
