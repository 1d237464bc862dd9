"""The table of metrics in the docs is the catalogue, and names follow Prometheus' practices."""

from __future__ import annotations

import re
from pathlib import Path

from infra.metrics import COMMON, METRICS, SERVER_METRICS

PAGE = Path(__file__).parents[4] / "docs/telemetry.md"


def test_the_docs_list_every_metric_with_its_kind_labels_and_meaning() -> None:
    rows = re.findall(r"^\| `(trainwright_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    written = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows]
    assert written == [(metric.name, metric.kind, metric.labels, metric.help) for metric in (*METRICS, *SERVER_METRICS)]


def test_names_are_unique_and_say_their_unit() -> None:
    names = [metric.name for metric in (*METRICS, *SERVER_METRICS)]
    assert len(set(names)) == len(names)
    for metric in (*METRICS, *SERVER_METRICS):
        assert re.fullmatch(r"trainwright(_[a-z]+)+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric in SERVER_METRICS or not {*COMMON} & {*metric.labels}
        assert metric.help.endswith(".")
        # A metric of a time or a size is in the base unit.
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|gb|percent|joule|watt)(_|$)", metric.name)
        units = set(metric.name.replace("per_second", "").split("_")) & {
            "seconds",
            "bytes",
            "joules",
            "watts",
            "celsius",
        }
        assert not units or metric.name.removesuffix("_total").rpartition("_")[2] in units
