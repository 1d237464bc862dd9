"""Metrics for Prometheus: every metric's name, kind, labels and meaning, and how they are pulled or pushed.

docs/telemetry.md has the same table, which a test compares. Names and units follow Prometheus' practices. What is of
one run so far is a gauge, because a step that a failure undoes is taken back; what is counted is a counter. Each metric
has the labels COMMON, too.

Prometheus pulls `GET /metrics`, for whoever shows the secret as a bearer token, and nothing else; or a process pushes
to a Pushgateway, at intervals and at the end. A gateway that is away, or a port that is taken, ends no run.

A node's samples come from its newest message, and the node may be another version: what this version does not know
gives no sample, so no label has values without a bound.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from data_contracts.messages.gang import PLACES, STEP_BOUNDS, Heartbeat, NodeExit, RankReport, reports_of, used_by_node

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client.registry import Collector


log = logging.getLogger("trainwright")
Kind = Literal["gauge", "counter", "histogram", "summary", "info"]
# The labels of all samples: the pipeline, the work pool of its nodes, and the work queue from which its worker took it.
COMMON = ("pipeline", "pool", "queue")
# A value for each label of COMMON.
Common = Mapping[str, str]
# A client that sends nothing for so long is left.
CLIENT_S = 10.0
# Whoever reaches the port may connect, and each client takes a thread and a file descriptor of the run.
MOST_CLIENTS = 16
PATH = "/metrics"
EVERY_S = 15.0
# A gateway that takes longer is away; the run's end waits for it once.
REQUEST_S = 5.0
JOB = "trainwright"
Messages = Mapping[int, Heartbeat | NodeExit]


@dataclass(frozen=True)
class Metric:
    """A metric under the name that Prometheus shows; `labels` beside COMMON."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _metric(name: str, kind: Kind, labels: str, meaning: str) -> Metric:
    return Metric(f"trainwright_{name}", kind, tuple(labels.split()), meaning)


METRICS: tuple[Metric, ...] = (
    _metric("run_info", "info", "run", "The run that this process carries out, by its id."),
    _metric("run_start_time_seconds", "gauge", "", "When this process began to carry the run out, since the epoch."),
    _metric("stage_running", "gauge", "stage", "1 for the stage that is carried out now."),
    _metric("stage_duration_seconds", "gauge", "stage status", "Duration of a stage that has ended."),
    _metric("goodput_ratio", "gauge", "", "Share of the paid node-seconds so far that was work and is kept."),
    _metric("node_time_seconds", "gauge", "stage cause", "Paid node-seconds so far, by what they went into."),
    _metric("cost", "gauge", "currency cause", "Cost of the run so far in its currency, without what has no price."),
    _metric("cost_per_hour", "gauge", "currency", "What the machines that the run holds now cost in an hour."),
    _metric("unpriced_time_seconds", "gauge", "", "Paid node-seconds so far of machines without a price."),
    _metric("queue_wait_seconds", "gauge", "", "Time that the run has waited for room or another run."),
    _metric("restarts_total", "counter", "cause", "Generations that failed and processes that crashed, by cause."),
    _metric("gang_nodes", "gauge", "", "Nodes of the generation that works now; 0 without one."),
    _metric("generation", "gauge", "", "Number of the newest generation."),
    _metric("step", "gauge", "", "Newest step of the training."),
    _metric("epoch", "gauge", "", "Epoch of the newest step."),
    _metric("samples", "gauge", "", "Samples that the training has consumed since step 0."),
    _metric("samples_per_second", "gauge", "", "Samples a second over the last 15 s."),
    _metric("loss", "gauge", "", "Loss of the newest step that rank 0 has read."),
    _metric("gradient_norm", "gauge", "", "2-norm of a recent step's whole gradient before clipping."),
    _metric("step_duration_seconds", "histogram", "", "Durations of rank 0's steps in this generation."),
    _metric("checkpoint_save_duration_seconds", "summary", "", "Time from copy to seal of rank 0's checkpoints."),
    _metric("checkpoint_stall_seconds_total", "counter", "", "Time that steps of rank 0 waited for checkpoints."),
    _metric("checkpoint_failures_total", "counter", "", "Checkpoints that a rank could not save."),
    _metric("checkpoints_committed_total", "counter", "", "Checkpoints that this process has committed."),
    _metric("checkpoint_step", "gauge", "", "Step of the newest committed checkpoint of this generation."),
    _metric("training_start_time_seconds", "gauge", "", "When the training's first node was heard, since the epoch."),
    _metric("checkpoint_time_seconds", "gauge", "", "When the newest checkpoint was committed, since the epoch."),
    _metric("rank_activity_seconds_total", "counter", "node rank activity", "Time of a rank in each activity."),
    _metric("rank_mfu_ratio", "gauge", "node rank", "Model FLOPs over the device's peak, if the module states them."),
    _metric("rank_memory_bytes", "gauge", "node rank", "Resident memory of a rank's process."),
    _metric("rank_device_memory_bytes", "gauge", "node rank", "Most memory that torch has allocated on the device."),
    _metric("node_heartbeat_time_seconds", "gauge", "node", "When a node was last heard, since the epoch."),
    _metric("node_energy_joules_total", "counter", "node", "Measured energy of a node in this generation."),
    _metric("node_store_requests_total", "counter", "node kind", "Requests of a node to the store: put or get."),
    _metric("node_store_bytes_total", "counter", "node direction", "Bytes of a node to and from the store."),
    _metric("gpu_utilization_ratio", "gauge", "node gpu", "Share of the last moments in which a GPU computed (NVML)."),
    _metric("gpu_memory_used_bytes", "gauge", "node gpu", "Used memory of a GPU, by all processes (NVML)."),
    _metric("gpu_memory_total_bytes", "gauge", "node gpu", "Memory of a GPU (NVML)."),
    _metric("gpu_power_watts", "gauge", "node gpu", "Power that a GPU draws (NVML)."),
    _metric("gpu_temperature_celsius", "gauge", "node gpu", "Temperature of a GPU (NVML)."),
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True)
class Counts:
    """The value of a histogram or a summary: observations, their sum, and those of each class for a histogram."""

    number: int
    total: float
    classes: Sequence[int] = ()


@dataclass(frozen=True)
class MetricSample:
    """A value of the metric `trainwright_<name>`; `labels` in the order of the catalogue."""

    name: str
    value: float | Counts
    labels: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric:
        """The metric in the catalogue."""
        return BY_NAME[f"trainwright_{self.name}"]


# What the Prefect server shows of what is deployed (`infra/orchestrator/serve.py`).
SERVER_METRICS: tuple[Metric, ...] = (
    _metric("pool_ready", "gauge", "pool", "1 if a worker of the work pool is online."),
    _metric("late_seconds", "gauge", "deployment", "How long the oldest late flow run of a deployment has been due."),
    _metric(
        "flow_run_end_time_seconds",
        "gauge",
        "deployment outcome",
        "When the newest flow run with this outcome ended, of those of the last day, since the epoch.",
    ),
)


Samples = Callable[[], Iterable[MetricSample]]


def collector(common: Common, samples: Samples) -> Collector:
    """What Prometheus' library writes or pushes: the samples as they are at that moment."""
    from prometheus_client.registry import Collector

    class _Collector(Collector):
        def collect(self) -> Iterator[Family]:
            yield from families(common, samples())

    return _Collector()


def page(common: Common, samples: Iterable[MetricSample], accept: str = "") -> tuple[bytes, str]:
    """The page for a scrape in the newest format that `accept` asks for, and its content type."""
    from prometheus_client.exposition import choose_encoder

    encode, kind = choose_encoder(accept)
    taken = list(samples)
    return encode(collector(common, lambda: taken)), kind


def families(common: Common, samples: Iterable[MetricSample]) -> Iterator[Family]:
    """One family for each metric that has samples."""
    by_metric: dict[Metric, list[MetricSample]] = {}
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

    kinds: dict[Kind, Any] = {
        "counter": core.CounterMetricFamily,
        "histogram": core.HistogramMetricFamily,
        "summary": core.SummaryMetricFamily,
    }
    return kinds.get(metric.kind, core.GaugeMetricFamily)(metric.name, metric.help, labels=[*COMMON, *metric.labels])


def _add(family: Any, metric: Metric, labels: list[str], value: float | Counts) -> None:
    if not isinstance(value, Counts):
        family.add_metric(labels, value)
    elif metric.kind == "summary":
        family.add_metric(labels, count_value=value.number, sum_value=value.total)
    else:
        classes = [*value.classes, *[0] * (len(STEP_BOUNDS) + 1 - len(value.classes))]
        bounds = [*(str(bound) for bound in STEP_BOUNDS), "+Inf"]
        family.add_metric(labels, buckets=list(zip(bounds, accumulate(classes), strict=True)), sum_value=value.total)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Another process must not be able to listen on the same port, and this one not beside another.
    allow_reuse_address = False
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a place for another client; `process_request_thread` frees it."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's fault."""


class Endpoint:
    """Serves one process's metrics until `close`.

    Raises: OSError if no port of `ports` is free, or the address is not of this machine.
    """

    def __init__(self, address: str, ports: Sequence[int], token: str, common: Common, samples: Samples) -> None:
        handler = _handler(token.encode(), common, samples)
        self._server = _first_free(address, ports, handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _first_free(address: str, ports: Sequence[int], handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    refused = OSError("no port is named")
    for port in ports:
        try:
            return _Server((address, port), handler)
        except OSError as error:
            refused = error
    raise refused


def _handler(token: bytes, common: Common, samples: Samples) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S
        server_version, sys_version = "trainwright", ""

        def do_GET(self) -> None:
            shown = self.headers.get("Authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(shown, b"Bearer " + token):
                self._answer(HTTPStatus.UNAUTHORIZED, b"", "text/plain", {"WWW-Authenticate": "Bearer"})
            elif self.path.partition("?")[0] != PATH:
                self._answer(HTTPStatus.NOT_FOUND, b"", "text/plain", {})
            else:
                body, kind = page(common, samples(), self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, body, kind, {})

        def _answer(self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads who scraped."""

    return Handler


@contextlib.contextmanager
def pushing(url: str, token: str | None, common: Common, samples: Samples, every_s: float = EVERY_S) -> Iterator[None]:
    """Push while the block runs, and once more after it.

    The group is the pipeline's: its next run replaces the values of this one.

    Args:
        token: sent as a bearer token; None: none is sent.
    """
    over, gateway = threading.Event(), _Gateway(url, token, common, samples)

    def push() -> None:
        while not over.wait(every_s):
            gateway.push()

    thread = threading.Thread(target=push, name="metrics-push", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(REQUEST_S)
        gateway.push()


class _Gateway:
    def __init__(self, url: str, token: str | None, common: Common, samples: Samples) -> None:
        self._url, self._token, self._common, self._samples = url, token, common, samples
        self._warned = False

    def push(self) -> None:
        from prometheus_client import push_to_gateway

        registry = collector(self._common, self._samples)
        group = {"pipeline": self._common["pipeline"]}
        try:
            push_to_gateway(self._url, JOB, registry, group, timeout=REQUEST_S, handler=self._handler)
        except Exception as error:  # the library raises what its sockets and its parser raise
            if not self._warned:
                self._warned = True
                log.warning(
                    "The metrics cannot be pushed to %s (%s); the run continues, and tries again without saying so.",
                    self._url,
                    type(error).__name__,
                )

    def _handler(self, url: str, method: str, timeout: float, headers: Any, data: bytes) -> Callable[[], None]:
        from prometheus_client.exposition import default_handler

        own = [] if self._token is None else [("Authorization", f"Bearer {self._token}")]
        return default_handler(url, method, timeout, [*headers, *own], data)


def node_samples(messages: Messages, heard: Mapping[int, float]) -> Iterator[MetricSample]:
    """The samples of nodes and ranks.

    Args:
        messages: the newest of each node; heard: when, in seconds since the epoch.
    """
    reports = [report for message in messages.values() for report in reports_of(message)]
    first = next((report for report in reports if report.rank == 0), None)
    if first is not None:
        yield from _of_training(first)
    for number, message in sorted(messages.items()):
        node = str(number)
        if number in heard:
            yield MetricSample("node_heartbeat_time_seconds", heard[number], (node,))
        yield from _of_node(node, message)
        for report in reports_of(message):
            yield from _of_rank(node, report)


def failed_saves(messages: Messages) -> int:
    """How many checkpoints the ranks could not save."""
    reports = [report for message in messages.values() for report in reports_of(message)]
    return sum(report.measured.failed_saves for report in reports if report.measured is not None)


def _of_training(report: RankReport) -> Iterator[MetricSample]:
    yield MetricSample("step", report.step)
    yield MetricSample("epoch", report.epoch)
    yield MetricSample("samples", report.samples)
    yield MetricSample("checkpoint_stall_seconds_total", report.stalled_s)
    if (measured := report.measured) is None:
        return
    if measured.loss is not None:
        yield MetricSample("loss", measured.loss)
    if measured.gradient_norm is not None:
        yield MetricSample("gradient_norm", measured.gradient_norm)
    counts = measured.step_counts
    yield MetricSample("step_duration_seconds", Counts(sum(counts), measured.steps_s, counts))
    saves = measured.saves + measured.failed_saves
    yield MetricSample("checkpoint_save_duration_seconds", Counts(saves, measured.saving_s))


def _of_node(node: str, message: Heartbeat | NodeExit) -> Iterator[MetricSample]:
    if (used := used_by_node(message)) is not None:
        if used.millijoules is not None:
            yield MetricSample("node_energy_joules_total", used.millijoules / 1000, (node,))
        yield MetricSample("node_store_requests_total", used.put_requests, (node, "put"))
        yield MetricSample("node_store_requests_total", used.get_requests, (node, "get"))
        yield MetricSample("node_store_bytes_total", used.written_bytes, (node, "written"))
        yield MetricSample("node_store_bytes_total", used.read_bytes, (node, "read"))
    for gpu in message.sensors if isinstance(message, Heartbeat) else ():
        labels = (node, str(gpu.index))
        yield MetricSample("gpu_utilization_ratio", gpu.busy, labels)
        yield MetricSample("gpu_memory_used_bytes", gpu.used_bytes, labels)
        yield MetricSample("gpu_memory_total_bytes", gpu.total_bytes, labels)
        if gpu.watts is not None:
            yield MetricSample("gpu_power_watts", gpu.watts, labels)
        if gpu.celsius is not None:
            yield MetricSample("gpu_temperature_celsius", gpu.celsius, labels)


def _of_rank(node: str, report: RankReport) -> Iterator[MetricSample]:
    if (measured := report.measured) is None:
        return
    labels = (node, str(report.rank))
    for place in PLACES:
        if place in measured.spent_s:
            yield MetricSample("rank_activity_seconds_total", measured.spent_s[place], (*labels, place))
    yield MetricSample("rank_memory_bytes", measured.memory_bytes, labels)
    if measured.device_memory_bytes is not None:
        yield MetricSample("rank_device_memory_bytes", measured.device_memory_bytes, labels)
    if measured.mfu is not None:
        yield MetricSample("rank_mfu_ratio", measured.mfu, labels)
