"""A contract report as a page of Great Expectations' Data Docs, rendered by Great Expectations from our results.

Its own pages load styles, scripts and pictures from eight hosts. Here they are taken out, a small style is written into
the page, and a content security policy forbids the browser to load or run anything. So the page opens offline, and
nothing of the data leaves the machine.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from data_contracts.contract.great_expectations_engine import load_great_expectations
from data_contracts.contract.reports import Result
from data_contracts.contract.suites import ABOUT_ROWS
from data_contracts.handoffs import ContractReport

_LOADED = re.compile(r"<script\b.*?</script>|<link\b[^>]*>|<img\b[^>]*>", re.DOTALL | re.IGNORECASE)
# Links to pages that are not there, or elsewhere.
_LINKS = re.compile(r"""\shref=(?:"(?!#)[^"]*"|'(?!#)[^']*')""")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """
body{font-family:sans-serif;margin:0 auto;max-width:80rem;padding:1rem;color:#212529;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
td,th{border:1px solid #dee2e6;padding:.4rem;text-align:left;vertical-align:top}
th{overflow-wrap:normal}
td+td{min-width:6.5rem}
.badge{background:#e9ecef;border-radius:.25rem;padding:0 .3rem}
.text-success::before{content:"\\2713";color:#2b8a3e}
.text-danger::before{content:"\\2717";color:#c92a2a}
.btn-group,nav .btn,.breadcrumb,.sticky>.card:first-child,footer{display:none}
ul{padding-left:1.2rem}
a{color:#1864ab}
h5,.card-header{font-weight:bold;font-size:1.1rem}
"""
# They stand for every expectation, about a column or about the table: the page shows the description alone, but Great
# Expectations checks arguments, knows a user's own only once its class is imported, and reads some results in forms of
# their own.
_ON_COLUMN, _ON_TABLE = "expect_column_values_to_be_unique", "expect_table_row_count_to_be_between"


def data_docs(results: Sequence[Result], report: ContractReport, name: str, run_id: str, started: str) -> str:
    """The page's HTML.

    Args:
        results: of all expectations of the suite.
        name: of the suite.
        run_id, started: of the run, for the page's foot.
    """
    validation = _validation(results, report, name, run_id, started)
    page = _LINKS.sub("", _LOADED.sub("", _rendered(validation)))
    head = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><style>{_STYLE}</style>'
    return re.sub(r"<head[^>]*>", lambda found: f"{found[0]}{head}", page, count=1)


def _validation(
    results: Sequence[Result], report: ContractReport, name: str, run_id: str, started: str
) -> dict[str, object]:
    """Our results as Great Expectations' validation result."""
    held = sum(one.failure is None and not one.unclear for one in results)
    return {
        "success": report.accepted,
        "suite_name": _text(name),
        "results": [_result(one, report) for one in results],
        "statistics": {
            "evaluated_expectations": len(results),
            "successful_expectations": held,
            "unsuccessful_expectations": len(results) - held,
            "success_percent": 100 * held / len(results) if results else None,
        },
        "meta": {"run_id": {"run_name": _text(run_id), "run_time": started}, "active_batch_definition": {}},
    }


def _rendered(validation: dict[str, Any]) -> str:
    """The page as Great Expectations renders it."""
    load_great_expectations()
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.render.renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView

    nothing = {"raised_exception": False, "exception_message": None, "exception_traceback": None}
    results = [
        ExpectationValidationResult(
            success=one["success"],
            expectation_config=ExpectationConfiguration(
                **{name: one[name] for name in ("type", "kwargs", "severity", "description")}
            ),
            result=one["result"],
            exception_info=nothing,
        )
        for one in validation["results"]
    ]
    whole = ExpectationSuiteValidationResult(**{**validation, "results": results})
    page: str = DefaultJinjaPageView().render(ValidationResultsPageRenderer(run_info_at_end=True).render(whole))
    return page


def _result(one: Result, report: ContractReport) -> dict[str, object]:
    entry, success = one.entry, one.failure is None and not one.unclear
    found: dict[str, object] = {}
    if one.failure is not None and one.failure.rows:
        found = _broken(one.failure.rows, one.failure.of)
        found["partial_unexpected_list"] = [_text(value) for value in _with_places(one)]
    elif one.observed or one.unclear:
        found = {"observed_value": _text(one.observed or one.unclear)}
    # With `mostly`, rows may break one that holds, and nobody has kept how many.
    if success and entry["type"].startswith(ABOUT_ROWS) and entry["kwargs"].get("mostly", 1) == 1:
        found |= {"element_count": report.rows, "unexpected_count": 0, "unexpected_percent": 0.0}
    description = f"{one.text}: its arguments are not shown, because a column is sensitive" if one.masked else one.text
    column = entry["kwargs"].get("column")
    on_column = isinstance(column, str)
    return {
        "success": success,
        "type": _ON_COLUMN if on_column else _ON_TABLE,
        "kwargs": {"column": _text(column)} if on_column else {},
        "severity": entry["severity"],
        # Great Expectations fills in $names.
        "description": _text(description).replace("$", "&#36;"),
        "result": found,
    }


def _broken(rows: int, of: int) -> dict[str, object]:
    """What Great Expectations shows of broken rows; without a share if a report of an earlier version has no `of`."""
    if not of:
        return {"unexpected_count": 0, "observed_value": f"{rows:,} rows broke it"}
    return {"element_count": of, "unexpected_count": rows, "unexpected_percent": 100 * rows / of}


def _with_places(one: Result) -> list[str]:
    """The values that broke it, with their rows."""
    assert one.failure is not None
    places = [f" (row {place.row} of {place.file})" for place in one.failure.places]
    places = places or [f" (row {row})" for row in one.failure.row_numbers]
    return [f"{value}{place}" for value, place in zip(one.failure.values, places, strict=False)]


def _text(text: Any) -> str:
    return html.escape(str(text))
