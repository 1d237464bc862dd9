"""Every metric: its name, kind, labels and meaning. docs/telemetry.md has the same table, which a test compares.

Names and units follow Prometheus' practices. What is of one run so far is a gauge, because a step that a failure undoes
is taken back; what is counted is a counter. Each metric has the labels COMMON, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "summary", "info"]
# The labels of all samples: the pipeline, the work pool of its nodes, and the work queue from which its worker took it.
COMMON = ("pipeline", "pool", "queue")


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
class Sample:
    """A value of the metric `trainwright_<name>`; `labels` in the order of the catalogue."""

    name: str
    value: float | Counts
    labels: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric:
        """The metric in the catalogue."""
        return BY_NAME[f"trainwright_{self.name}"]


# What the Prefect server shows of what is deployed (`infra/orchestrator/server/server_metrics.py`).
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
