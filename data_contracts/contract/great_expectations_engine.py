"""Measures and judges expectations with Great Expectations, and renders a contract report with it.

Expectations that judge each row alone see one block of rows at a time. The counts are merged and Great Expectations
then decides on the total, so `mostly` holds over all rows. The others are measured on whole columns, and see only the
columns they refer to.

The user's own expectations are classes that a suite names by `class_path`; the child process that runs them imports
them, never this module.

A report becomes a page of Great Expectations' Data Docs. Its own pages load styles, scripts and pictures from eight
hosts. Here they are taken out, a small style is written into the page, and a content security policy forbids the
browser to load or run anything. So the page opens offline, and nothing of the data leaves the machine.

`python -m data_contracts.contract.great_expectations_engine` prints what expectations.json beside it keeps.
"""

from __future__ import annotations

import contextlib
import copy
import html
import json
import logging
import re
import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import localcontext
from types import MappingProxyType
from typing import Any, NoReturn

import pyarrow as pa

from data_contracts.arrow_rows import Read, is_text
from data_contracts.contract.findings import EXAMPLES, Finding
from data_contracts.contract.frames import (
    AGGREGATES,
    CONTEXT,
    FLOAT_DIGITS,
    Layout,
    Scope,
    UnheldTime,
    aggregate,
    blocks,
    exact_in_condition,
    frame,
    most_common,
    narrowest,
    packed,
    pattern_argument,
    rows_that_meet,
    scope_of,
    seen,
    without_condition,
    without_values,
)
from data_contracts.contract.reports import Result
from data_contracts.contract.suites import ABOUT_ROWS, local_schema
from data_contracts.errors import SpecError
from data_contracts.handoffs import ContractReport, Expectation, Failure
from data_contracts.quoting import text_of, withhold

# The user's own classes by their path, as a suite names them.
Classes = Mapping[str, type]
_RUNTIME = {"result_format": {"result_format": "SUMMARY", "partial_unexpected_count": EXAMPLES}}
# Python may search a text for a pattern in time that doubles with each character, and holds the interpreter meanwhile.
# So an expectation gets this time for a block. An ordinary pattern takes microseconds a row, a JSON Schema 0.5 ms.
PATTERN_S = 60.0
PATTERN_ROW_S = 0.0015
# They compare values with numbers, or with one another, and so raise for a column that holds words among numbers.
_OF_NUMBERS = {
    *(f"expect_column_{what}_to_be_between" for what in (
        "max", "mean", "median", "min", "quantile_values", "stdev", "sum", "values",
    )),
    *(f"expect_column_{what}" for what in (
        "value_z_scores_to_be_less_than", "values_to_be_decreasing", "values_to_be_increasing",
        "values_to_not_be_outliers",
    )),
}  # fmt: skip
# Arguments about how GX runs or shows an expectation; a suite has them elsewhere or not at all.
_NOT_ARGUMENTS = {
    "batch_id", "catch_exceptions", "description", "id", "library_metadata", "meta", "notes", "rendered_content",
    "result_format", "severity", "windows",
}  # fmt: skip
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


def base_class() -> type:
    """Great Expectations' base class of all expectations."""
    from great_expectations.expectations.expectation import Expectation

    return Expectation


@contextlib.contextmanager
def catalogue_kept() -> Iterator[None]:
    """Keep the catalogue's expectations as they are while a user's classes are defined, which may have their names."""
    from great_expectations.expectations import registry

    before = dict(registry._registered_expectations)
    try:
        yield
    finally:
        registry._registered_expectations.update(before)


def why_unusable(kind: type) -> str:
    """Why Great Expectations cannot run a class that is derived from its Expectation; "" if it can."""
    from great_expectations.expectations import registry

    if kind.is_abstract():  # type: ignore[attr-defined]
        return "is abstract: Great Expectations lacks a part of it, such as its map_metric"
    # While it runs one, it looks the class up by its name alone.
    if registry._registered_expectations.get(kind.expectation_type) is not kind:  # type: ignore[attr-defined]
        return "has the name of another expectation; give it a name of its own"
    return ""


def own_expectation(index: int, entry: Expectation, kind: type) -> Any:
    """An object of a user's own class; SpecError if it refuses its arguments.

    Args:
        index: of the expectation in the suite.
        entry: its entry in the suite.
    """
    try:
        return kind(**copy.deepcopy(without_condition(entry)[1]))
    except (ValueError, TypeError) as error:
        raise _refused(index, entry["class_path"], error, "Correct the arguments of the class.") from error


def _refused(index: int, named: str, error: Exception, remedy: str = "") -> SpecError:
    """The error for an argument that Great Expectations or a user's class refuses, with the reason that it gives."""
    reasons = error.errors() if hasattr(error, "errors") else []
    field, reason = (".".join(map(str, reasons[0]["loc"])), reasons[0]["msg"]) if reasons else ("", text_of(error))
    where = f"contract.suite: expectations.{index}.kwargs{'.' + field if field and field != '__root__' else ''}"
    return SpecError(f"{where}: {named} refuses the value: {reason}.", remedy=remedy)


def own_scope(index: int, expectation: Any, entry: Expectation, schema: pa.Schema) -> Scope:
    """What an expectation of a user's own reads: its columns in full; all columns if it may read others.

    The columns may be set by the class itself, which Great Expectations recommends. SpecError if it would take two of
    them for one.
    """
    from great_expectations.expectations.expectation import (
        ColumnAggregateExpectation,
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )

    of_columns = (
        ColumnAggregateExpectation | ColumnMapExpectation | ColumnPairMapExpectation | MulticolumnMapExpectation
    )
    named = [getattr(expectation, key, None) for key in ("column", "column_A", "column_B")]
    listed = getattr(expectation, "column_list", None) or []
    columns = [one for one in [*named, *listed] if isinstance(one, str)]
    condition, kwargs = without_condition(entry)
    read = columns if condition is None else [*columns, *condition.columns]
    absent = [one for one in read if schema.get_field_index(one) < 0]
    # The class itself may state a condition, which is code, as the class is.
    whole = not isinstance(expectation, of_columns) or getattr(expectation, "row_condition", None) is not None
    reads = tuple(one for one in schema.names if whole or one in read)
    given = {one: one for one in reads if whole or one in columns}
    _refuse_twins(f"contract.suite: expectations.{index}: {entry['class_path']}", given)
    exact, condition = exact_in_condition((), condition, reads, schema)
    decimals = {one for one in reads if pa.types.is_decimal(schema.field(one).type)}
    floats = sorted(one for one in decimals.intersection(given) if schema.field(one).type.precision <= FLOAT_DIGITS)
    shown = tuple(sorted({*exact, *decimals}))
    layout = Layout(reads, "nan", None, condition, shown, tuple(floats), tuple(given.items()), nanoseconds=True)
    return Scope(columns, absent, False, False, layout, kwargs)


def _refuse_twins(where: str, names: Iterable[str]) -> None:
    """SpecError if Great Expectations would find another column by the name of one of these."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(name.casefold().strip("`"), name)) != name:
            raise SpecError(
                f"{where} gets the columns {other} and {name}, which Great Expectations takes for one.",
                remedy="Rename one of them, or write the expectation for its own columns alone.",
            )


# It would print values of the data that it rounds for its own records.
logging.getLogger("great_expectations.util").setLevel(logging.ERROR)


def load_great_expectations() -> Classes:
    """Import what `check` needs of Great Expectations, which takes some seconds; there are no classes of a user."""
    import great_expectations.expectations.expectation_configuration
    import great_expectations.validator.metrics_calculator  # noqa: F401

    return {}


class Check:
    """One expectation while the data is checked.

    Attributes:
        pattern: the argument with its regular expressions, or with what makes some; None without.
        alone: whether it is measured apart from the others.
        measured_by: the names of the arguments with which it is measured.
        metrics: what Great Expectations measured, merged over the blocks.
        judged: its verdict, once there is one.
        error: why it could not be measured or judged, or "".
    """

    def __init__(
        self,
        index: int,
        entry: Expectation,
        schema: pa.Schema,
        sensitive: Collection[str],
        classes: Classes = MappingProxyType({}),
    ) -> None:
        self.schema, self._index = schema, index
        self.pattern = pattern_argument(entry)
        if own := entry.get("class_path"):
            self.expectation = own_expectation(index, entry, classes[own])
            self.scope = own_scope(index, self.expectation, entry, schema)
        else:
            self.scope = scope_of(entry, schema)
            self.expectation = _domain(index, entry, self.scope.kwargs)
        self.finding = Finding(entry, self.scope.columns, sensitive, schema)
        if own and not self.finding.sensitive.isdisjoint(self.scope.layout.columns):
            self.finding.mask()  # what it shows may be a value of any column that it reads
        # Great Expectations takes two measurements for one if their arguments are the same float64.
        self.alone = self.pattern is not None or own is not None or bool(self.scope.exact)
        self.measured_by: set[str] = set()
        self.metrics: dict[Any, Any] = {}
        self.judged: Any = None
        self.error = ""

    @contextlib.contextmanager
    def within_time(self, rows: int) -> Iterator[None]:
        """SpecError if searching a block of so many rows for its patterns takes too long; for a main thread alone."""
        if self.pattern is None:
            yield
            return
        seconds = PATTERN_S + rows * PATTERN_ROW_S
        handler = signal.signal(signal.SIGALRM, _expire)
        left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        except _Expired as error:
            where = f"contract.suite: expectations.{self._index}.kwargs.{self.pattern}"
            written = repr(self.finding.expectation["kwargs"][self.pattern])
            raise SpecError(
                f"{where}: {written} was not found or excluded in {rows:,} row{'s' * (rows != 1)} in {seconds:.0f} s.",
                remedy="Write the pattern without a repetition inside a repetition.",
            ) from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, left)
            signal.signal(signal.SIGALRM, handler)

    def needs(self, engine: Any, runtime: Mapping[str, object] = _RUNTIME) -> dict[str, Any]:
        """The metrics that decide it, by name; SpecError if Great Expectations refuses its arguments only here."""
        asked = self.finding.expectation
        try:
            return self.expectation.get_validation_dependencies(engine, copy.deepcopy(runtime)).metric_configurations
        except ValueError as error:
            if "class_path" in asked:
                raise
            raise _refused(self._index, asked["type"], error) from error

    def merge(self, measured: dict[Any, Any]) -> None:
        """Add the metrics of another block: counts are summed, examples appended."""
        for key, value in measured.items():
            if isinstance(value, list) and "unexpected" in key[0]:
                self.metrics.setdefault(key, []).extend(value)
            elif hasattr(value, "__index__") and not hasattr(value, "__len__"):
                self.metrics[key] = self.metrics.get(key, 0) + int(value)
            else:
                self.metrics.setdefault(key, value)

    def judge(self, engine: Any, metrics: dict[Any, Any]) -> None:
        """Let GX decide from the metrics."""
        try:
            # A copy is not checked, so what is exact is not rounded; arguments for measuring count no more.
            exact = {name: value for name, value in self.scope.exact.items() if name not in self.measured_by}
            expectation = self.expectation.copy(update=exact)
            with localcontext(CONTEXT):
                self.judged = expectation.metrics_validate(
                    metrics=metrics, execution_engine=engine, runtime_configuration=copy.deepcopy(_RUNTIME)
                )
        except Exception as error:  # GX raises whatever its arithmetic raises; that is the failure's reason
            self.error = text_of(error) or type(error).__name__

    def failure(self, read: Read) -> Failure | None:
        """The failure, or None if the expectation holds."""
        if self.scope.absent:
            absent = self.scope.absent[0]
            return self.finding.missing(absent, self.schema.names, by_condition=absent not in self.scope.columns)
        if self.scope.row_wise and not self.error:
            self.judge(_engine(), self.metrics)
        if self.error:
            columns = self.scope.layout.columns
            kinds = {name: str(self.schema.field(name).type) for name in self.scope.columns if name in columns}
            return self._words(read) or self.finding.unclear(self.error, kinds)
        if self.judged.success:
            return None
        unnamed = [name for name in self.scope.columns if self.schema.get_field_index(name) < 0]
        if unnamed:
            return self.finding.missing(unnamed[0], self.schema.names)
        result = self.judged.result or {}
        if not {"partial_unexpected_index_list", "element_count", "unexpected_count"} <= result.keys():
            return self.finding.observed(result.get("observed_value") or result.get("partial_unexpected_list"))
        asked_of = result["element_count"] - (result.get("missing_count") or 0)
        numbers = [int(number) for number in result["partial_unexpected_index_list"]]
        names = {new: name for name, new in self.scope.layout.given}
        values = [
            {names.get(new, new): part for new, part in value.items()} if isinstance(value, dict) else value
            for value in result.get("partial_unexpected_list") or []
        ]
        return self.finding.broken(int(result["unexpected_count"]), int(asked_of), numbers, values)

    def _words(self, read: Read) -> Failure | None:
        """The failing rows of a column of numbers that is text only because some of its rows hold words."""
        import pandas as pd

        asked = self.finding.expectation
        if asked["type"] not in _OF_NUMBERS or asked["kwargs"].get("row_condition"):
            return None
        name = self.scope.columns[0] if len(self.scope.columns) == 1 else None
        if name not in self.scope.layout.columns or not is_text(self.schema.field(name).type):
            return None
        count = of = 0
        numbers: list[int] = []
        values: list[str] = []
        for first, table in blocks(read([name])):
            column = frame(table, Layout((name,), "drop"), first)[name]
            words = column[pd.to_numeric(column, errors="coerce").isna()]
            of, count = of + len(column), count + len(words)
            numbers.extend(words.index[: EXAMPLES - len(numbers)].tolist())
            values.extend(words.iloc[: EXAMPLES - len(values)].tolist())
        if count in (0, of):
            return None
        return self.finding.broken(count, of, numbers, values, "hold text that is not a number, beside numbers")


def row_by_row(checks: Sequence[Check], read: Read, schema: pa.Schema) -> int:
    """Measure row-wise expectations block by block; returns the number of rows."""
    groups = _grouped(checks)
    probes: dict[Layout, list[_Probe]] = {}
    names = {name for layout in groups for name in layout.columns} or {narrowest(schema)}
    rows = 0
    for first, table in blocks(read(sorted(names))):
        rows = first + table.num_rows
        for layout, group in groups.items():
            shown = _shown(group, table, layout, first)
            if layout not in probes or shown is None:
                probes[layout] = [] if shown is None else _probes(group, shown)
            probes[layout] = [after for probe in probes[layout] for after in probe.measure(shown)]
    return rows


def on_whole(checks: Sequence[Check], read: Read, rows: int, schema: pa.Schema) -> None:
    """Measure and judge the others on whole columns, a few columns at a time."""
    for one in (one for one in checks if not one.scope.layout.columns):
        _judged_on([one], without_values(schema, rows, one.scope.of_names))
    groups = _grouped([one for one in checks if one.scope.layout.columns])
    for layouts in packed(sorted(groups, key=lambda layout: layout.columns), rows, schema):
        table = pa.Table.from_batches(read(sorted({name for layout in layouts for name in layout.columns})))
        for layout in layouts:
            if (shown := _shown(groups[layout], table, layout)) is not None:
                _judged_on(groups[layout], shown)


def _shown(checks: list[Check], table: pa.Table, layout: Layout, first: int = 0) -> Any:
    """The frame for the checks; None if pandas cannot hold a time: then they cannot be measured."""
    try:
        return frame(table, layout, first)
    except UnheldTime as error:
        for one in checks:
            one.error = str(error)
        return None


def _grouped(checks: Sequence[Check]) -> dict[Layout, list[Check]]:
    groups: dict[Layout, list[Check]] = defaultdict(list)
    for one in checks:
        groups[one.scope.layout].append(one)
    return groups


def _judged_on(checks: list[Check], shown: Any) -> None:
    for probe in _probes(checks, shown):
        for measured in probe.measure(shown):
            for one in measured.checks:
                one.judge(measured.engine, one.metrics)


def _probes(checks: list[Check], shown: Any) -> list[_Probe]:
    """Probes for checks of one layout."""
    together = [one for one in checks if not one.alone]
    return [_Probe(some, shown) for some in [together, *([one] for one in checks if one.alone)] if some]


class _Expired(BaseException):
    """The time for a pattern is over. It is no Exception, which Great Expectations would catch."""


def _expire(signum: int, frame: Any) -> NoReturn:
    raise _Expired


class _Probe:
    """Lets GX measure several expectations, in one frame after the other.

    The dependency graph is built once: for a block of rows it costs as much as the measuring.
    """

    def __init__(self, checks: list[Check], shown: Any) -> None:
        from great_expectations.validator.metrics_calculator import MetricsCalculator

        self.checks, self.layout = checks, checks[0].scope.layout  # the checks of a probe have one layout
        self.engine = _engine(shown)
        self.calculator = MetricsCalculator(execution_engine=self.engine, show_progress_bars=False)
        self.needs = [one.needs(self.engine) for one in checks]
        for one, needs in zip(checks, self.needs, strict=True):
            one.measured_by = {name for metric in needs.values() for name in metric.metric_value_kwargs}
        of_exact = {new for name, new in self.layout.given if name in {*self.layout.exact} - {*self.layout.floats}}
        self.ours = {
            metric.id: metric
            for needs in self.needs
            for metric in needs.values()
            if metric.metric_name in AGGREGATES and metric.metric_domain_kwargs["column"] in of_exact
        }
        wanted = [metric for needs in self.needs for metric in needs.values() if metric.id not in self.ours]
        self.graph = self.calculator.build_metric_dependency_graph(metric_configurations=wanted)
        if checks[0].alone:  # only now: Great Expectations is slow to record decimals
            for metric in [
                *wanted,
                *(metric for edge in self.graph.edges for metric in (edge.left, edge.right) if metric),
            ]:
                given, exact = metric.metric_value_kwargs, checks[0].scope.exact
                given.update({name: value for name, value in exact.items() if name in given})
        if any(edge.left.metric_name in AGGREGATES for edge in self.graph.edges):  # only a user's class needs them
            floats = {name for name, _ in self.layout.given if name in self.layout.exact}
            self.layout = self.layout._replace(floats=tuple(sorted(floats)))

    def measure(self, shown: Any) -> list[_Probe]:
        """Measure one frame; returns the probes to continue with.

        An expectation that cannot be measured gets its `error` and is left out from then on.
        """
        condition = self.layout.condition
        try:
            rows = shown if condition is None else rows_that_meet(condition, shown)
        except Exception as error:  # pandas raises whatever the comparison of two types raises
            for one in self.checks:
                one.error = text_of(error) or type(error).__name__
            return []
        given = seen(rows, self.layout) if self.layout.columns else rows
        self.engine.load_batch_data("data", given)
        with self.checks[0].within_time(len(rows)), localcontext(CONTEXT):
            resolved, aborted = self.calculator.resolve_validation_graph(self.graph)
        if aborted and len(self.checks) > 1:  # one by one, so that each error belongs to one expectation
            return [probe for one in self.checks for probe in _Probe([one], shown).measure(shown)]
        if aborted:
            reasons = (info["exception_info"].exception_message for info in aborted.values())
            reason = next((reason for reason in reasons if reason), "unknown error")
            own = "class_path" in self.checks[0].finding.expectation and len(shown)
            place = f"on rows {shown.index[0]:,} to {shown.index[-1]:,} of the data: " if own else ""
            self.checks[0].error = place + withhold(reason, "Great Expectations raised")
            return []
        for key, metric in self.ours.items():
            values = given[metric.metric_domain_kwargs["column"]].dropna()
            resolved[key] = aggregate(metric.metric_name, values.tolist())
        for one, needs in zip(self.checks, self.needs, strict=True):
            for metric in needs.values():
                if metric.metric_name == "column.most_common_value":
                    resolved[metric.id] = most_common(given[metric.metric_domain_kwargs["column"]])
            one.merge({metric.id: _numbered(metric, resolved[metric.id], rows.index) for metric in needs.values()})
        return [self]


def _numbered(metric: Any, value: Any, numbers: Any) -> Any:
    """What was measured, with the numbers that rows have in the data in place of their positions among those seen."""
    return numbers[value].tolist() if metric.metric_name.endswith(".unexpected_index_list") and value else value


def _domain(index: int, entry: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Any:
    """GX's own object for an expectation; SpecError with GX's reason when it refuses an argument's value."""
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    if "json_schema" in kwargs:
        kwargs = {**kwargs, "json_schema": local_schema(kwargs["json_schema"])}
    try:
        plain = ExpectationConfiguration(
            type=entry["type"], kwargs=copy.deepcopy({**kwargs}), severity=entry["severity"]
        )
        return plain.to_domain_obj()
    except (ValueError, OverflowError, re.error) as error:  # it builds a regular expression of a format of times
        raise _refused(index, entry["type"], error) from error


def _engine(shown: Any = None) -> Any:
    from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine

    return PandasExecutionEngine() if shown is None else PandasExecutionEngine(batch_data_dict={"data": shown})


def catalogue() -> dict[str, object]:
    """The expectations that the installed Great Expectations runs on files, with their arguments; and those that need a
    SQL database.
    """
    import great_expectations  # noqa: F401 - which registers its expectations
    from great_expectations.expectations import registry

    expectations: dict[str, dict[str, list[str]]] = {}
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


def data_docs(results: Sequence[Result], report: ContractReport, name: str, run_id: str, started: str) -> str:
    """The page's HTML.

    Args:
        results: of all expectations of the suite.
        name: of the suite.
        run_id, started: of the run, for the page's foot.
    """
    page = _LINKS.sub("", _LOADED.sub("", _rendered(results, report, name, run_id, started)))
    head = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><style>{_STYLE}</style>'
    return re.sub(r"<head[^>]*>", lambda found: f"{found[0]}{head}", page, count=1)


def _rendered(results: Sequence[Result], report: ContractReport, name: str, run_id: str, started: str) -> str:
    """The page as Great Expectations renders its own validation results."""
    load_great_expectations()
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.render.renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView

    nothing = {"raised_exception": False, "exception_message": None, "exception_traceback": None}
    held = sum(one.failure is None and not one.unclear for one in results)
    validation = ExpectationSuiteValidationResult(
        success=report.accepted,
        suite_name=_text(name),
        results=[
            ExpectationValidationResult(
                success=one.failure is None and not one.unclear,
                expectation_config=ExpectationConfiguration(**_shown_as(one)),
                result=_details(one, report),
                exception_info=nothing,
            )
            for one in results
        ],
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": held,
            "unsuccessful_expectations": len(results) - held,
            "success_percent": 100 * held / len(results) if results else None,
        },
        meta={"run_id": {"run_name": _text(run_id), "run_time": started}, "active_batch_definition": {}},
    )
    page: str = DefaultJinjaPageView().render(ValidationResultsPageRenderer(run_info_at_end=True).render(validation))
    return page


def _shown_as(result: Result) -> dict[str, Any]:
    """The expectation that stands for a result's: type, arguments, severity, description."""
    column = result.entry["kwargs"].get("column")
    hidden = ": its arguments are not shown, because a column is sensitive" if result.masked else ""
    return {
        "type": _ON_COLUMN if isinstance(column, str) else _ON_TABLE,
        "kwargs": {"column": _text(column)} if isinstance(column, str) else {},
        "severity": result.entry["severity"],
        # Great Expectations fills in $names.
        "description": _text(f"{result.text}{hidden}").replace("$", "&#36;"),
    }


def _details(result: Result, report: ContractReport) -> dict[str, object]:
    """What Great Expectations shows of what was found."""
    entry, details = result.entry, dict[str, object]()
    if result.failure is not None and result.failure.rows:
        details = _broken(result.failure.rows, result.failure.of)
        details["partial_unexpected_list"] = [_text(value) for value in _with_places(result.failure)]
    elif result.observed or result.unclear:
        details = {"observed_value": _text(result.observed or result.unclear)}
    holds = result.failure is None and not result.unclear
    # With `mostly`, rows may break one that holds, and nobody has kept how many.
    if holds and entry["type"].startswith(ABOUT_ROWS) and entry["kwargs"].get("mostly", 1) == 1:
        details |= {"element_count": report.rows, "unexpected_count": 0, "unexpected_percent": 0.0}
    return details


def _broken(rows: int, of: int) -> dict[str, object]:
    """What Great Expectations shows of broken rows; without a share if a report of an earlier version has no `of`."""
    if not of:
        return {"unexpected_count": 0, "observed_value": f"{rows:,} rows broke it"}
    return {"element_count": of, "unexpected_count": rows, "unexpected_percent": 100 * rows / of}


def _with_places(failure: Failure) -> list[str]:
    """The values that broke an expectation, with their rows."""
    places = [f" (row {place.row} of {place.file})" for place in failure.places]
    places = places or [f" (row {row})" for row in failure.row_numbers]
    return [f"{value}{place}" for value, place in zip(failure.values, places, strict=False)]


def _text(text: Any) -> str:
    return html.escape(str(text))


if __name__ == "__main__":
    print(json.dumps(catalogue(), indent=1, sort_keys=True))
