"""Every expectation of a suite with a report's finding, or with the profile's observation; for pages and Data Docs.

For an expectation on a sensitive column, only its type and its columns are shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from data_contracts.contract.sentences import sentence
from data_contracts.handoffs import ContractReport, Failure
from data_contracts.profile.record import ColumnProfile, Profile

_COLUMNS = ("column", "column_A", "column_B")
# An expectation as a failure names it: its type and its columns.
Name = tuple[str, str | None]


@dataclass(frozen=True)
class Result:
    """An expectation and how it ended.

    Attributes:
        entry: the suite's entry; its arguments may be values of a sensitive column if `masked`.
        text: what it expects, without anything sensitive.
        failure: what the report found; None if it holds, or if `unclear`.
        unclear: several on these columns are of this type, and the report does not say which of them broke: how many.
        observed: what was observed, "" if that is not known.
    """

    entry: Mapping[str, Any]
    columns: list[str]
    masked: bool
    text: str
    failure: Failure | None = None
    unclear: str = ""
    observed: str = ""

    @property
    def verdict(self) -> str:
        """How it ended, in words."""
        if self.unclear:
            return self.unclear
        if self.failure is None:
            return "holds"
        return f"broken by {self.failure.rows:,} rows" if self.failure.rows else "broken"


def results_of(
    suite: Mapping[str, Any], report: ContractReport, profile: Profile | None, sensitive: Collection[str]
) -> list[Result]:
    """All expectations of the suite of a report, in order.

    Args:
        profile: of the rows that were checked, and no others.
        sensitive: names of all sensitive columns.
    """
    failures = [*report.failures, *(report.quarantine.broken if report.quarantine is not None else [])]
    by_index = {failure.index: failure for failure in reversed(failures)}
    broken: dict[Name, list[Failure]] = defaultdict(list)
    for failure in failures:
        if failure.index is None:  # of an earlier version
            broken[failure.expectation, failure.column].append(failure)
    often = Counter(_name(entry) for entry in suite["expectations"])
    found = []
    for index, entry in enumerate(suite["expectations"]):
        name, columns = _name(entry), _columns(entry["kwargs"])
        # Only the class knows what an expectation of one's own reads.
        may_read_all = "class_path" in entry or "row_condition" in entry["kwargs"]
        masked = bool(set(columns) & set(sensitive)) or (bool(sensitive) and may_read_all)
        on = f" on {', '.join(columns)}" if columns else ""
        text = f"{entry['type']}{on}" if masked else sentence(entry).removesuffix(".")
        mine = broken.get(name, [])
        if index in by_index:
            failure = by_index[index]
            found.append(Result(entry, columns, masked, text, failure, observed=failure.observed))
        elif not mine:
            observed = "" if masked else _observed(entry, profile)
            found.append(Result(entry, columns, masked, text, observed=observed))
        elif len(mine) < often[name]:
            unclear = f"{len(mine)} of {often[name]} on this column are broken"
            found.append(Result(entry, columns, masked, text, unclear=unclear))
        else:
            # All of them broke, in the order of the report.
            at = sum(one.entry["type"] == entry["type"] and one.columns == columns for one in found)
            found.append(Result(entry, columns, masked, text, mine[at], observed=mine[at].observed))
    return found


def _name(entry: Mapping[str, Any]) -> Name:
    return entry["type"], ", ".join(_columns(entry["kwargs"])) or None


def _columns(kwargs: Mapping[str, Any]) -> list[str]:
    """The columns that an expectation is about, in the order in which its failure names them."""
    listed = kwargs.get("column_list") or []
    return [*(kwargs[key] for key in _COLUMNS if key in kwargs), *(listed if isinstance(listed, list) else [])]


def _observed(entry: Mapping[str, Any], profile: Profile | None) -> str:
    """What the profile observed about the subject of an expectation that holds; "" for nothing."""
    kind, kwargs = entry["type"].removeprefix("expect_"), entry["kwargs"]
    if profile is None or kwargs.get("row_condition"):
        return ""
    if kind.startswith("table_row_count"):
        return f"{profile.rows:,} rows"
    column = profile.column(str(kwargs.get("column", "")))
    return "" if column is None or not column.values else _of_column(kind, column)


def _of_column(kind: str, column: ColumnProfile) -> str:
    if kind in ("column_values_to_not_be_null", "column_values_to_be_null"):
        return f"{column.nulls:,} of {column.rows:,} missing"
    if kind in ("column_values_to_be_unique", "column_unique_value_count_to_be_between", "column_values_to_be_in_set"):
        about = "" if column.distinct_exact else "about "
        return "" if column.distinct is None else f"{about}{column.distinct:,} different values"
    if column.kind == "number" and kind in (
        "column_values_to_be_between",
        "column_min_to_be_between",
        "column_max_to_be_between",
    ):
        return "" if column.minimum is None else f"{column.minimum:g} to {column.maximum:g}"
    if column.kind == "number" and kind == "column_mean_to_be_between" and not column.infinite:
        return "" if column.mean is None else f"{column.mean:g}"
    if column.kind == "text" and kind.startswith("column_value_lengths"):
        return "" if column.minimum is None else f"lengths {column.minimum:g} to {column.maximum:g}"
    return ""
