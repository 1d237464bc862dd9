"""The deployment of a pipeline's conductor: what a worker is told, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prefect.exceptions import ObjectNotFound

from data_contracts.errors import UsageError
from flows.retrain import retrain
from infra.orchestrator.deployments import CONDUCTOR, PipelineDeployment, deploy_pipeline
from infra.processes.processes import CODE_ROOT
from tests.support.deployed import Deployments

HERE = [{"prefect.deployments.steps.set_working_directory": {"directory": str(CODE_ROOT)}}]


class Server(Deployments):
    """A Prefect server with pools `cpu` (processes), `cluster` (Kubernetes) and `push`, and the workers given."""

    def __init__(self, **workers: list[str]) -> None:
        super().__init__()
        self.workers = workers

    def read_work_pool(self, name: str) -> Any:
        kinds = {"cpu": "process", "cluster": "kubernetes", "push": "cloud-run:push"}
        if name not in kinds:
            raise ObjectNotFound(Exception("404"))
        limits = {"is_paused": False, "concurrency_limit": None}
        return SimpleNamespace(
            name=name, type=kinds[name], is_push_pool=name == "push", is_managed_pool=False, **limits
        )

    def read_work_queues(self, work_pool_name: str) -> Any:
        return [SimpleNamespace(name="default", is_paused=False)]

    def read_workers_for_work_pool(self, name: str) -> Any:
        return [SimpleNamespace(status=status) for status in self.workers.get(name, [])]

    def create_deployment(self, flow: str, name: str, **fields: Any) -> Any:
        fields["job_variables"] = fields["job_variables"] or {}
        fields["schedules"] = [SimpleNamespace(**dict(one)) for one in fields["schedules"]]
        return super().create_deployment(flow, name, **fields)


def wanted(**changes: Any) -> PipelineDeployment:
    return PipelineDeployment(**{"name": "digits", "pool": "cpu", "spec": "/p/pipeline.yaml", "schema": {}, **changes})


def test_a_worker_is_told_where_the_code_lies_and_which_spec_to_run() -> None:
    server: Any = Server()
    deploy_pipeline(server, wanted(parameters={"window": "7d"}, cron="0 3 * * *", timezone="Europe/Berlin"))
    made = server.known["retrain/digits"]
    assert (made.entrypoint, made.pull_steps, made.work_pool_name) == (CONDUCTOR, HERE, "cpu")
    assert made.parameters == {"spec": "/p/pipeline.yaml", "window": "7d"}
    [schedule] = made.schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone, schedule.active) == ("0 3 * * *", "Europe/Berlin", True)
    assert f"{retrain.fn.__module__}.{retrain.fn.__name__}" == CONDUCTOR


def test_the_same_spec_is_deployed_anew_and_another_one_never_takes_its_name() -> None:
    server: Any = Server()
    deploy_pipeline(server, wanted(cron="0 3 * * *"))
    deploy_pipeline(server, wanted(cron="0 4 * * *"))
    for theirs in ({"spec": "/other/pipeline.yaml"}, {"pool": "cluster"}):
        with pytest.raises(UsageError, match=r"already: it runs /p/pipeline\.yaml on the work pool cpu\."):
            deploy_pipeline(server, wanted(**theirs))
    [made] = server.known.values()
    assert made.schedules[0].schedule.cron == "0 4 * * *"
    deploy_pipeline(server, wanted(spec="/other/pipeline.yaml", replaces=True))
    [made] = server.known.values()
    assert (made.parameters, made.schedules) == ({"spec": "/other/pipeline.yaml"}, [])


def test_a_spec_below_the_checkout_is_the_same_spec_as_prefect_yaml_names() -> None:
    server: Any = Server()
    server.create_deployment(
        "retrain",
        "digits",
        parameters={"spec": "examples/digits/pipeline.yaml"},
        pull_steps=HERE,
        schedules=[],
        job_variables=None,
        paused=False,
        work_pool_name="cpu",
    )
    deploy_pipeline(server, wanted(spec=f"{CODE_ROOT}/examples/digits/pipeline.yaml"))
    assert server.known["retrain/digits"].parameters["spec"] == f"{CODE_ROOT}/examples/digits/pipeline.yaml"


def test_what_is_not_given_stays_as_it_was() -> None:
    server: Any = Server()
    first = wanted(parameters={"set": "train.seed=1", "window": "7d"}, cron="0 3 * * *")
    assert deploy_pipeline(server, first) == ["at `0 3 * * *` (UTC)"]
    made = server.known["retrain/digits"]
    made.paused, made.job_variables = True, {"env": {"A": "1"}}
    made.schedules[0].parameters = {"window": "7d"}
    assert deploy_pipeline(server, wanted(parameters={"window": "1d"})) == ["at `0 3 * * *` (UTC)"]
    made = server.known["retrain/digits"]
    assert made.parameters == {"spec": "/p/pipeline.yaml", "set": "train.seed=1", "window": "1d"}
    assert (made.paused, made.job_variables) == (True, {"env": {"A": "1"}})
    assert made.schedules[0].parameters == {"window": "7d"}
    assert deploy_pipeline(server, wanted(cron="off")) == []
    assert server.known["retrain/digits"].schedules == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pool": "gpu"}, "--pool: this Prefect server has no work pool gpu"),
        ({"cron": "every night"}, "--cron: 'every night' is not valid"),
        ({"cron": "* * * * * *"}, "--cron: .* is not valid"),
        ({"cron": "0 3 * * *", "timezone": ""}, "--timezone: '' is not valid"),
        ({"cron": "0 3 * * *", "timezone": "Berlin"}, "--timezone: 'Berlin' is not valid"),
    ],
)
def test_what_cannot_be_deployed_is_refused(changes: dict[str, Any], sentence: str) -> None:
    server: Any = Server()
    with pytest.raises(UsageError, match=sentence):
        deploy_pipeline(server, wanted(**changes))
    assert server.known == {}
