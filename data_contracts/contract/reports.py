"""Contract reports as people read them: every expectation with its result, two reports compared, and plain sentences.

Each expectation of a suite has the report's finding, or else the profile's observation, for pages and Data Docs; of one
on a sensitive column, only its type and its columns are shown. The comparison of two reports says what is newly broken,
what healed, and what is broken in both.

Every expectation of Great Expectations' catalogue has a sentence; arguments that it does not mention are added at its
end, so nothing that decides a verdict is left unsaid. An expectation that is not in the catalogue is described by its
name.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from data_contracts.handoffs import ContractReport, Expectation, Failure, Suite
from data_contracts.quoting import escaped
from data_contracts.records import ColumnProfile, Profile

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

    entry: Expectation
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
    suite: Suite, report: ContractReport, profile: Profile | None, sensitive: Collection[str]
) -> list[Result]:
    """All expectations of the suite of a report, in order.

    Args:
        profile: of the rows that were checked, and no others.
        sensitive: names of all sensitive columns.
    """
    failures = _broken(report)
    by_index = {failure.index: failure for failure in reversed(failures)}
    broken: dict[Name, list[Failure]] = defaultdict(list)
    for failure in failures:
        if failure.index is None:  # of an earlier version
            broken[failure.expectation, failure.column].append(failure)
    often = Counter(_name(entry) for entry in suite["expectations"])
    found: list[Result] = []
    for index, entry in enumerate(suite["expectations"]):
        name, columns = _name(entry), _columns(entry["kwargs"])
        # Only the class knows what an expectation of one's own reads.
        may_read_all = "class_path" in entry or "row_condition" in entry["kwargs"]
        masked = bool(set(columns) & set(sensitive)) or (bool(sensitive) and may_read_all)
        on = f" on {', '.join(columns)}" if columns else ""
        text = f"{entry['type']}{on}" if masked else sentence(entry).removesuffix(".")
        unplaced, unclear = broken[name], ""
        shown = by_index.get(index)
        if shown is None and 0 < len(unplaced) < often[name]:
            unclear = f"{len(unplaced)} of {often[name]} on this column are broken"
        elif shown is None and unplaced:  # all of them broke, in the order of the report
            shown = unplaced[sum(one.entry["type"] == entry["type"] and one.columns == columns for one in found)]
        observed = "" if shown is None else shown.observed
        if shown is None and not unclear and not masked:
            observed = _observed(entry, profile)
        found.append(Result(entry, columns, masked, text, shown, unclear, observed))
    return found


def _name(entry: Expectation) -> Name:
    return entry["type"], ", ".join(_columns(entry["kwargs"])) or None


def _columns(kwargs: Mapping[str, Any]) -> list[str]:
    """The columns that an expectation is about, in the order in which its failure names them."""
    listed = kwargs.get("column_list") or []
    return [*(kwargs[key] for key in _COLUMNS if key in kwargs), *(listed if isinstance(listed, list) else [])]


def _observed(entry: Expectation, profile: Profile | None) -> str:
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


Key = tuple[str, str | None, int]


@dataclass(frozen=True)
class Change:
    """An expectation that is broken in one report or in both.

    Attributes:
        before, after: the rows that broke it, those that were set aside included; None where it holds. 0 if it is about
            a whole column or table.
    """

    expectation: str
    column: str | None
    before: int | None
    after: int | None

    @property
    def kind(self) -> str:
        """`broken` (newly), `healed`, `worse`, `better` or `same`."""
        if self.before is None:
            return "broken"
        if self.after is None:
            return "healed"
        return "worse" if self.after > self.before else "better" if self.after < self.before else "same"


_ORDER = ("broken", "worse", "same", "better", "healed")


def changes(before: ContractReport, after: ContractReport) -> list[Change]:
    """What changed from one report to the other, new ones first. Equal expectations on one column are distinguished by
    their order.
    """
    old, new = _rows_by_key(before), _rows_by_key(after)
    found = [Change(*key[:2], old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]
    return sorted(found, key=lambda change: _ORDER.index(change.kind))


def _broken(report: ContractReport) -> list[Failure]:
    """The failures, and the expectations that only rows that were set aside broke."""
    return [*report.failures, *(report.quarantine.broken if report.quarantine is not None else [])]


def _rows_by_key(report: ContractReport) -> dict[Key, int]:
    seen: Counter[Name] = Counter()
    rows = {}
    for failure in _broken(report):
        name = failure.expectation, failure.column
        rows[(*name, seen[name])] = failure.rows
        seen[name] += 1
    return rows


_LISTED = 10
# {x}: the argument x, quoted; {range}: min_value and max_value with their strictness.
SENTENCES: dict[str, str] = {
    "expect_column_distinct_values_to_be_in_set": "Only these values occur in {column}: {value_set}",
    "expect_column_distinct_values_to_contain_set": "Each of these values occurs in {column}: {value_set}",
    "expect_column_distinct_values_to_equal_set": "Exactly these values occur in {column}: {value_set}",
    "expect_column_kl_divergence_to_be_less_than": "The Kullback-Leibler divergence of {column} from a given "
    "distribution is small",
    "expect_column_max_to_be_between": "The largest value of {column} is {range}",
    "expect_column_mean_to_be_between": "The mean of {column} is {range}",
    "expect_column_median_to_be_between": "The median of {column} is {range}",
    "expect_column_min_to_be_between": "The smallest value of {column} is {range}",
    "expect_column_most_common_value_to_be_in_set": "The most common value of {column} is one of {value_set}",
    "expect_column_pair_values_a_to_be_greater_than_b": "{column_A} is greater than {column_B} in every row",
    "expect_column_pair_values_to_be_equal": "{column_A} equals {column_B} in every row",
    "expect_column_pair_values_to_be_in_set": "{column_A} and {column_B} are one of these pairs in every row: "
    "{value_pairs_set}",
    "expect_column_proportion_of_non_null_values_to_be_between": "The share of rows with a value in {column} is "
    "{range}",
    "expect_column_proportion_of_unique_values_to_be_between": "The number of different values of {column}, divided by "
    "its values, is {range}",
    "expect_column_quantile_values_to_be_between": "Quantiles of {column} are within these ranges: {quantile_ranges}",
    "expect_column_stdev_to_be_between": "The standard deviation of {column} is {range}",
    "expect_column_sum_to_be_between": "The sum of {column} is {range}",
    "expect_column_to_exist": "There is a column {column}",
    "expect_column_type_to_be": "The type of {column} is {type_}",
    "expect_column_unique_value_count_to_be_between": "The number of different values of {column} is {range}",
    "expect_column_value_lengths_to_be_between": "The length of {column} is {range} in every row",
    "expect_column_value_lengths_to_equal": "The length of {column} is {value} in every row",
    "expect_column_value_z_scores_to_be_less_than": "Every value of {column} is fewer than {threshold} standard "
    "deviations from the mean",
    "expect_column_values_to_be_between": "{column} is {range} in every row",
    "expect_column_values_to_be_dateutil_parseable": "{column} can be read as a time in every row",
    "expect_column_values_to_be_decreasing": "{column} never increases from one row to the next",
    "expect_column_values_to_be_in_set": "{column} is one of {value_set} in every row",
    "expect_column_values_to_be_in_type_list": "The type of {column} is one of {type_list}",
    "expect_column_values_to_be_increasing": "{column} never decreases from one row to the next",
    "expect_column_values_to_be_json_parseable": "{column} is JSON in every row",
    "expect_column_values_to_be_null": "{column} has no value in any row",
    "expect_column_values_to_be_of_type": "The type of {column} is {type_}",
    "expect_column_values_to_be_unique": "No value of {column} occurs twice",
    "expect_column_values_to_match_json_schema": "{column} is JSON that fits a schema in every row",
    "expect_column_values_to_match_regex": "{column} matches the regular expression {regex} in every row",
    "expect_column_values_to_match_regex_list": "{column} matches regular expressions of a list in every row: "
    "{regex_list}",
    "expect_column_values_to_match_strftime_format": "{column} is a time written as {strftime_format} in every row",
    "expect_column_values_to_not_be_in_set": "{column} is none of {value_set} in any row",
    "expect_column_values_to_not_be_null": "{column} has a value in every row",
    "expect_column_values_to_not_be_outliers": "{column} has no outlier",
    "expect_column_values_to_not_match_regex": "{column} matches the regular expression {regex} in no row",
    "expect_column_values_to_not_match_regex_list": "{column} matches none of these regular expressions: {regex_list}",
    "expect_compound_columns_to_be_unique": "No combination of {column_list} occurs twice",
    "expect_multicolumn_sum_to_equal": "The sum of {column_list} is {sum_total} in every row",
    "expect_multicolumn_values_to_be_equal": "{column_list} are equal to each other in every row",
    "expect_select_column_values_to_be_unique_within_record": "{column_list} are all different in every row",
    "expect_table_column_count_to_be_between": "The number of columns is {range}",
    "expect_table_column_count_to_equal": "There are {value} columns",
    "expect_table_columns_to_match_ordered_list": "The columns are, in this order: {column_list}",
    "expect_table_columns_to_match_set": "The columns are, in any order: {column_set}",
    "expect_table_row_count_to_be_between": "The number of rows is {range}",
    "expect_table_row_count_to_equal": "There are {value} rows",
}
_BOUNDS = ("min_value", "max_value", "strict_min", "strict_max")
# Arguments that say how another one is meant.
_NOTHING_SAID = ("condition_parser",)
_SEVERITIES = {"critical": "", "warning": " (a warning)", "info": " (for information)"}
_IGNORED = {
    "all_values_are_missing": "rows without a value in all of the columns do not count",
    "any_value_is_missing": "rows without a value in any of the columns do not count",
    "both_values_are_missing": "rows without both values do not count",
    "either_value_is_missing": "rows without either value do not count",
    "never": "every row counts",
}


def sentence(expectation: Expectation) -> str:
    """The sentence of an expectation of a suite (`type`, `kwargs`, and perhaps `severity`, `description`)."""
    kind, kwargs = expectation["type"], dict(expectation.get("kwargs", {}))
    template = SENTENCES.get(kind)
    if template is None and "class_path" in expectation:
        template = f"`{kind}`, an expectation of your own, holds{' for {column}' if 'column' in kwargs else ''}"
    if template is None:
        on = " on {column}" if "column" in kwargs else ""
        template = f"{kind.removeprefix('expect_').replace('_', ' ').capitalize()}{on}"
    said = {name: kwargs.pop(name) for name in list(kwargs) if "{" + name + "}" in template}
    words = {name: _quoted(name, value) for name, value in said.items()}
    # The words for an argument without a value.
    words |= dict.fromkeys(_named(template) - words.keys() - {"range"}, "(not given)")
    if "{range}" in template:
        words["range"] = _range({name: kwargs.pop(name, None) for name in _BOUNDS})
    text = _in_most_rows(_filled(template, words), kwargs) + "".join(_more(kwargs))
    about = expectation.get("description")
    return escaped(
        f"{text}{_SEVERITIES.get(expectation.get('severity', 'critical'), '')}.{f' [{about}]' if about else ''}"
    )


def _named(template: str) -> set[str]:
    return {part.partition("}")[0] for part in template.split("{")[1:] if "}" in part}


def _filled(template: str, words: Mapping[str, str]) -> str:
    """The template with its words; braces inside a word stay as they are."""
    head, *parts = template.split("{")
    filled = [head]
    for part in parts:
        name, closed, rest = part.partition("}")
        filled.append(words[name] + rest if closed and name in words else "{" + part)
    return "".join(filled)


def _range(bounds: Mapping[str, Any]) -> str:
    low, high = bounds["min_value"], bounds["max_value"]
    least = "more than" if bounds["strict_min"] else "at least"
    most = "less than" if bounds["strict_max"] else "at most"
    if low is None and high is None:
        return "anything, because neither min_value nor max_value is given"
    if low == high and not bounds["strict_min"] and not bounds["strict_max"]:
        return f"exactly {_value(low)}"
    parts = [f"{least} {_value(low)}"] if low is not None else []
    return " and ".join([*parts, *([f"{most} {_value(high)}"] if high is not None else [])])


def _in_most_rows(text: str, kwargs: dict[str, object]) -> str:
    """The sentence with its `mostly`, which is taken out of the arguments."""
    mostly = kwargs.get("mostly")
    if not isinstance(mostly, int | float):
        return text
    del kwargs["mostly"]
    if mostly == 1:
        return text
    share = f"at least {mostly * 100:.10g}% of the rows"
    every = " in every row"
    return text.replace(every, f" in {share}") if every in text else f"{text}, for {share}"


def _more(kwargs: dict[str, object]) -> list[str]:
    """What the other arguments add: first those with words of their own."""
    parts = []
    condition = kwargs.pop("row_condition", None)
    if condition is not None:
        parts.append(f", where {_value(condition)}")
    ignored = kwargs.pop("ignore_row_if", None)
    if ignored is not None:
        parts.append(f"; {_IGNORED.get(str(ignored), f'ignore_row_if: {_value(ignored)}')}")
    for name, adds in (("strictly", "; equal neighbours are not allowed"), ("or_equal", "; equal values are allowed")):
        if kwargs.pop(name, None):
            parts.append(adds)
    rest = [f"{name}: {_value(value)}" for name, value in kwargs.items() if name not in _NOTHING_SAID]
    return [*parts, *([f" ({', '.join(rest)})"] if rest else [])]


def _quoted(name: str, value: Any) -> str:
    """An argument as it reads in a sentence: columns in backquotes, lists with commas."""
    if name.startswith("column"):
        names = value if isinstance(value, list) else [value]
        return _listed([f"`{one}`" for one in names])
    if isinstance(value, list):
        return _listed([_value(one) for one in value])
    return _value(value)


def _listed(values: list[str]) -> str:
    if not values:
        return "(nothing)"
    more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
    return ", ".join(values[:_LISTED]) + more


def _value(value: Any) -> str:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else _json(value)


def _json(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"$PARAMETER"}:
        return f"the parameter {value['$PARAMETER']}"
    return json.dumps(value, ensure_ascii=False, default=str)
