"""Writes samples in the formats that Prometheus reads, by its own client library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from data_contracts.messages.ranks import STEP_BOUNDS
from infra.telemetry.catalogue import COMMON, Counts, Metric, Sample

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client.registry import Collector

Samples = Callable[[], Iterable[Sample]]
# A value for each label of COMMON.
Common = Mapping[str, str]


def collector(common: Common, samples: Samples) -> Collector:
    """What Prometheus' library writes or pushes: the samples as they are at that moment."""
    from prometheus_client.registry import Collector

    class _Collector(Collector):
        def collect(self) -> Iterator[Family]:
            yield from families(common, samples())

    return _Collector()


def page(common: Common, samples: Iterable[Sample], accept: str = "") -> tuple[bytes, str]:
    """The page for a scrape in the newest format that `accept` asks for, and its content type."""
    from prometheus_client.exposition import choose_encoder

    encode, kind = choose_encoder(accept)
    taken = list(samples)
    return encode(collector(common, lambda: taken)), kind


def families(common: Common, samples: Iterable[Sample]) -> Iterator[Family]:
    """One family for each metric that has samples."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    for metric, found in by_metric.items():
        family = _family(metric)
        for sample in found:
            assert len(sample.labels) == len(metric.labels), metric.name
            _add(family, metric, [*(common[name] for name in COMMON), *sample.labels], sample.value)
        yield family


def _family(metric: Metric) -> Any:
    from prometheus_client import core

    labels = [*COMMON, *metric.labels]
    match metric.kind:
        case "counter":
            return core.CounterMetricFamily(metric.name, metric.help, labels=labels)
        case "histogram":
            return core.HistogramMetricFamily(metric.name, metric.help, labels=labels)
        case "summary":
            return core.SummaryMetricFamily(metric.name, metric.help, labels=labels)
        case _:
            return core.GaugeMetricFamily(metric.name, metric.help, labels=labels)


def _add(family: Any, metric: Metric, labels: list[str], value: float | Counts) -> None:
    if not isinstance(value, Counts):
        family.add_metric(labels, value)
    elif metric.kind == "summary":
        family.add_metric(labels, count_value=value.number, sum_value=value.total)
    else:
        classes = [*value.classes, *[0] * (len(STEP_BOUNDS) + 1 - len(value.classes))]
        bounds = [*(str(bound) for bound in STEP_BOUNDS), "+Inf"]
        family.add_metric(labels, buckets=list(zip(bounds, accumulate(classes), strict=True)), sum_value=value.total)
