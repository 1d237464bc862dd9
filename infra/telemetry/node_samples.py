"""Samples of a generation's nodes and ranks, from the newest message of each node: a pure function.

A message comes from a node, which may be another version: what this version does not know gives no sample, so no label
has values without a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from data_contracts.messages.gang import Heartbeat, NodeExit, reports_of, used_by_node
from data_contracts.messages.ranks import PLACES, RankReport
from infra.telemetry.catalogue import Counts, Sample

Messages = Mapping[int, Heartbeat | NodeExit]


def node_samples(messages: Messages, heard: Mapping[int, float]) -> Iterator[Sample]:
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
            yield Sample("node_heartbeat_time_seconds", heard[number], (node,))
        yield from _of_node(node, message)
        for report in reports_of(message):
            yield from _of_rank(node, report)


def failed_saves(messages: Messages) -> int:
    """How many checkpoints the ranks could not save."""
    reports = [report for message in messages.values() for report in reports_of(message)]
    return sum(report.measured.failed_saves for report in reports if report.measured is not None)


def _of_training(report: RankReport) -> Iterator[Sample]:
    yield Sample("step", report.step)
    yield Sample("epoch", report.epoch)
    yield Sample("samples", report.samples)
    yield Sample("checkpoint_stall_seconds_total", report.stalled_s)
    if (measured := report.measured) is None:
        return
    if measured.loss is not None:
        yield Sample("loss", measured.loss)
    if measured.gradient_norm is not None:
        yield Sample("gradient_norm", measured.gradient_norm)
    counts = measured.step_counts
    yield Sample("step_duration_seconds", Counts(sum(counts), measured.steps_s, counts))
    saves = measured.saves + measured.failed_saves
    yield Sample("checkpoint_save_duration_seconds", Counts(saves, measured.saving_s))


def _of_node(node: str, message: Heartbeat | NodeExit) -> Iterator[Sample]:
    if (used := used_by_node(message)) is not None:
        if used.millijoules is not None:
            yield Sample("node_energy_joules_total", used.millijoules / 1000, (node,))
        yield Sample("node_store_requests_total", used.put_requests, (node, "put"))
        yield Sample("node_store_requests_total", used.get_requests, (node, "get"))
        yield Sample("node_store_bytes_total", used.written_bytes, (node, "written"))
        yield Sample("node_store_bytes_total", used.read_bytes, (node, "read"))
    for gpu in message.sensors if isinstance(message, Heartbeat) else ():
        labels = (node, str(gpu.index))
        yield Sample("gpu_utilization_ratio", gpu.busy, labels)
        yield Sample("gpu_memory_used_bytes", gpu.used_bytes, labels)
        yield Sample("gpu_memory_total_bytes", gpu.total_bytes, labels)
        if gpu.watts is not None:
            yield Sample("gpu_power_watts", gpu.watts, labels)
        if gpu.celsius is not None:
            yield Sample("gpu_temperature_celsius", gpu.celsius, labels)


def _of_rank(node: str, report: RankReport) -> Iterator[Sample]:
    if (measured := report.measured) is None:
        return
    labels = (node, str(report.rank))
    for place in PLACES:
        if place in measured.spent_s:
            yield Sample("rank_activity_seconds_total", measured.spent_s[place], (*labels, place))
    yield Sample("rank_memory_bytes", measured.memory_bytes, labels)
    if measured.device_memory_bytes is not None:
        yield Sample("rank_device_memory_bytes", measured.device_memory_bytes, labels)
    if measured.mfu is not None:
        yield Sample("rank_mfu_ratio", measured.mfu, labels)
