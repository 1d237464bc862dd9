"""Every query of every panel and rule has data in a real Prometheus that saw a real gang be killed and diverge."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_contracts.costs import GpuReading, Resources
from data_contracts.messages.gang import Heartbeat, RankMeasures, RankReport
from infra.metrics import Endpoint, MetricSample, node_samples
from infra.traces import metrics_token
from tests.support import views
from tests.support.prometheus import answer, free_port, prometheus
from tests.support.tiny import MODEL, SPEC, trainwright, write_project

# Node 1 is killed once, and the loss is not finite once; slow enough that several scrapes see each generation.
FAULTS = """

class Struck(Net):
    def __init__(self, place):
        super().__init__()
        self.place = place

    def on_train_batch_start(self, batch, batch_idx):
        time.sleep(0.1)
        for step, fault in ((25, self.die), (70, self.diverge)):
            marker = pathlib.Path(self.place, f"struck-at-{step}")
            if self.global_step == step and self.global_rank == 1 and not marker.exists():
                marker.touch()
                fault()

    def die(self):
        os.kill(os.getpid(), 9)

    def diverge(self):
        with torch.no_grad():
            next(self.parameters()).fill_(float("nan"))
"""
# What needs GPUs, or a counter of energy, which this machine need not have: a second target shows a node with both.
GPU_NODE = Heartbeat(
    ranks=[RankReport(rank=0, step=7, measured=RankMeasures(mfu=0.4, memory_bytes=10, device_memory_bytes=20))],
    used=Resources(millijoules=2500),
    sensors=[GpuReading(index=0, busy=0.5, used_bytes=1, total_bytes=2, watts=300.0, celsius=60.0)],
)
NEEDS_GPUS = ("gpu_", "rank_mfu_ratio", "rank_device_memory", "node_energy")


def gpu_samples() -> list[MetricSample]:
    return [MetricSample("run_info", 1, ("gpus",)), *node_samples({0: GPU_NODE}, {0: time.time()})]


@contextlib.contextmanager
def gpu_node(port: int, token: str) -> Iterator[None]:
    common = {"pipeline": "gpus", "pool": "gpus", "queue": "default"}
    endpoint = Endpoint("127.0.0.1", [port], token, common, gpu_samples)
    try:
        yield
    finally:
        endpoint.close()


def spec_of_a_gang(folder: Path) -> Path:
    train = {
        **SPEC["train"],
        "lightning": {
            "model": {"class_path": "net.Struck", "init_args": {"place": str(folder)}},
            "trainer": {"max_epochs": 8},
        },
        "strategy": "ddp",
        "nodes": 2,
        "machine": "aws-m7g.large",
        "checkpoint": {"every_steps": 10},
    }
    spec = write_project(folder, {"train": train})
    (folder / "net.py").write_text("import os\nimport pathlib\nimport time\n" + MODEL + FAULTS)
    return spec


def series(address: str, expr: str, began: float) -> list[Mapping[str, str]]:
    """The labels of the series that have a number at some moment since."""
    found = answer(address, "query_range", query=expr, start=began, end=time.time(), step=1)["result"]
    return [one["metric"] for one in found if any(not math.isnan(float(value)) for _, value in one["values"])]


def choices(address: str, path: Path, began: float) -> Iterator[dict[str, str]]:
    """The values of a dashboard's variables: all, as Grafana writes it, and each that it offers for one pipeline."""
    names = [name for name, _, _ in views.variables(path)]
    yield dict.fromkeys(names, ".*")
    chosen = {"pipeline": "tiny"}
    for name, selector, label in views.variables(path):
        match = views.filled(selector, chosen)
        offered = answer(address, f"label/{label}/values", **{"match[]": match, "start": began, "end": time.time()})
        assert name != "pipeline" or set(offered) == {"tiny", "gpus"}
        chosen[name] = chosen.get(name, "|".join(offered))
        assert chosen[name], f"{path.stem}: {name}"
    yield chosen


def without_data(address: str, began: float) -> list[str]:
    """Where a question has no data, or a legend names a label that its series do not have."""
    missing = []
    for path in views.BOARDS:
        for number, values in enumerate(choices(address, path, began)):
            for question in views.panel_questions(path):
                if number and any(f"trainwright_{name}" in question.expr for name in NEEDS_GPUS):
                    continue
                # Zero, where there are no runs, is no data of a run.
                expr = views.filled(question.expr.removesuffix(" or vector(0)"), values)
                found = series(address, expr, began)
                if not found or any(label not in one for one in found for label in question.legend):
                    missing.append(f"{question.place} {values}: {found}")
    for rule in views.rules():
        missing += [f"{one.place}: {one.expr}" for one in views.operands(rule) if not series(address, one.expr, began)]
    return missing


@pytest.mark.slow
@pytest.mark.apt("prometheus")
def test_every_panel_and_rule_has_data_of_a_gang_that_was_killed_and_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, port, gpus, began = tmp_path / "home", free_port(), free_port(), time.time()
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(home))
    token = metrics_token()
    spec = spec_of_a_gang(tmp_path / "tiny")
    secret = home / "metrics-token"
    with (
        prometheus(tmp_path, {port: secret, gpus: secret}, views.RULES_FILE) as seen,
        gpu_node(gpus, token),
    ):
        done = trainwright("run", spec, env={"TRAINWRIGHT_METRICS_PORT": str(port)})
        trainwright("down")
        assert done.returncode == 0, done.stderr
        missing = without_data(seen, began)
        nothing = series(seen, 'trainwright_cost{cause="lottery"}', began)
        restarts = answer(seen, "query", query='increase(trainwright_restarts_total{pipeline="tiny"}[10m]) > 0')
        evaluated: list[dict[str, Any]] = answer(seen, "rules")["groups"][0]["rules"]
    assert missing == []
    assert nothing == []
    assert {one["metric"]["cause"] for one in restarts["result"]} == {"node_lost", "diverged"}
    assert {(one["name"], one["health"], one.get("lastError", "")) for one in evaluated} == {
        (rule["alert"], "ok", "") for rule in yaml.safe_load(views.RULES_FILE.read_text())["groups"][0]["rules"]
    }
