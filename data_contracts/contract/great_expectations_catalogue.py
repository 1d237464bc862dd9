"""Lists the expectations that the installed Great Expectations runs on files.

`python -m data_contracts.contract.great_expectations_catalogue` prints what expectations.json beside it keeps.
"""

from __future__ import annotations

import json
from typing import Any

# Arguments about how GX runs or shows an expectation; a suite has them elsewhere or not at all.
_NOT_ARGUMENTS = {
    "batch_id", "catch_exceptions", "description", "id", "library_metadata", "meta", "notes", "rendered_content",
    "result_format", "severity", "windows",
}  # fmt: skip


def catalogue() -> dict[str, Any]:
    """The expectations that the installed Great Expectations runs on files, with their arguments; and those that need a
    SQL database.
    """
    import great_expectations  # noqa: F401 - which registers its expectations
    from great_expectations.expectations import registry

    expectations: dict[str, Any] = {}
    sql_only = ["expect_table_row_count_to_equal_other_table"]  # its metric exists, but counts one table
    for name in sorted(registry.list_registered_expectation_implementations()):
        kind = registry.get_expectation_impl(name)
        if not kind.__module__.startswith("great_expectations."):  # a user's own, imported meanwhile
            continue
        of_rows = getattr(kind, "map_metric", None)
        metrics = [f"{of_rows}.unexpected_count"] if of_rows else getattr(kind, "metric_dependencies", ())
        if any("PandasExecutionEngine" not in registry._registered_metrics[one]["providers"] for one in metrics):
            sql_only.append(name)
        if name in sql_only:
            continue
        arguments = {key: field for key, field in kind.__fields__.items() if key not in _NOT_ARGUMENTS}
        expectations[name] = {
            "required": [key for key, field in arguments.items() if field.required],
            "optional": [key for key, field in arguments.items() if not field.required],
        }
    return {"expectations": expectations, "sql_only": sorted(sql_only)}


if __name__ == "__main__":
    print(json.dumps(catalogue(), indent=1, sort_keys=True))
