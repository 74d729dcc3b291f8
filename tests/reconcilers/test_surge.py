"""The replacement of a Deployment's only pod runs before that pod is evicted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import Deployment
from controller.apiserver.errors import ForbiddenError
from controller.reconcilers.termination.surge import ROLLOUT_TIMEOUT, Surge
from tests.builders import make_budget, make_pod, make_replicaset, owned_by
from tests.reconcilers.test_termination import NODE, TerminationScenario


def only_pod(**annotations: str) -> Pod:
    """Return the only pod of the Deployment `web`."""
    return make_pod(
        "web-1",
        node=NODE,
        labels={"app": "web"},
        owner="ReplicaSet/web-abc",
        uid="uid-of-web-1",
        annotations=annotations,
    )


def make_deployment(**spec: Any) -> Deployment:
    deployment = {"metadata": {"name": "web", "namespace": "default"}, "spec": spec}
    return msgspec.convert(deployment, Deployment)


class SurgeScenario(TerminationScenario):
    """A node that drains, with the only pod of a Deployment."""

    def __init__(self) -> None:
        super().__init__()
        self.terminator.surge = Surge(self.world.ports)

    async def drains(self, pod: Pod, deployment: Deployment) -> None:
        replica_set = make_replicaset("web-abc", ownerReferences=[owned_by("Deployment", "web")])
        self.world.seed(pod, deployment, replica_set, make_budget(allowed=1, match={"app": "web"}))
        await self.delete_node()
        await self.work(seconds=3)

    async def next_pod_is_available(self) -> None:
        """Do what the Deployment controller does after a restart."""
        await self.world.api.delete(kinds.POD, "web-1", namespace="default")
        self.world.api.finish_pods()
        self.world.see()

    @property
    def rollouts(self) -> list[str]:
        deployments = self.world.api.objects(kinds.DEPLOYMENT)
        annotations = deployments[0].spec.template.metadata.annotations
        return [annotations[key] for key in (labels.SURGED_FOR,) if key in annotations]

    @property
    def patches(self) -> int:
        return sum(
            (verb, kind) == ("patch", "Deployment") for verb, kind, _ in self.world.api.calls
        )


@pytest.fixture
async def scenario() -> SurgeScenario:
    scenario = SurgeScenario()
    await scenario.up()
    return scenario


async def test_the_deployment_is_restarted_once_and_its_pod_not_evicted(
    scenario: SurgeScenario,
) -> None:
    await scenario.drains(only_pod(**{labels.SURGE: "true"}), make_deployment())

    assert scenario.rollouts == ["uid-of-web-1"]
    assert scenario.patches == 1
    assert scenario.evicted() == []

    await scenario.next_pod_is_available()
    await scenario.work(seconds=10)
    assert scenario.world.node(NODE) is None
    assert scenario.evicted() == []


async def test_another_replica_of_the_controller_does_not_restart_it_again(
    scenario: SurgeScenario,
) -> None:
    await scenario.drains(only_pod(**{labels.SURGE: "true"}), make_deployment())
    scenario.terminator.surge = Surge(scenario.world.ports)
    await scenario.work(seconds=3)

    assert scenario.patches == 1
    assert scenario.evicted() == []


async def test_a_failed_rollout_does_not_keep_the_node_forever(
    scenario: SurgeScenario,
) -> None:
    await scenario.drains(only_pod(**{labels.SURGE: "true"}), make_deployment())
    scenario.world.pass_time(seconds=ROLLOUT_TIMEOUT.total_seconds())
    await scenario.work()

    assert scenario.evicted() == ["default/web-1"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"replicas": 2}, "has 2 replicas, not 1", id="several replicas"),
        pytest.param({"strategy": {"type": "Recreate"}}, "Recreate", id="recreate"),
        pytest.param({"strategy": {"rollingUpdate": {"maxSurge": 0}}}, "maxSurge 0", id="no surge"),
        pytest.param({"paused": True}, "paused", id="paused"),
    ],
)
async def test_if_a_restart_does_not_help_the_pod_is_evicted_and_the_node_reports_it(
    scenario: SurgeScenario, spec: dict[str, Any], why: str
) -> None:
    await scenario.drains(only_pod(**{labels.SURGE: "true"}), make_deployment(**spec))

    assert scenario.evicted() == ["default/web-1"]
    assert scenario.patches == 0
    (message,) = await scenario.world.events("SurgeImpossible")
    assert why in message


async def test_a_deployment_without_the_annotation_is_not_restarted(
    scenario: SurgeScenario,
) -> None:
    await scenario.drains(only_pod(), make_deployment())

    assert scenario.evicted() == ["default/web-1"]
    assert scenario.patches == 0


async def test_without_permission_to_restart_the_pod_is_evicted(scenario: SurgeScenario) -> None:
    scenario.world.api.refuse("patch", ForbiddenError("no rights"), kind=kinds.DEPLOYMENT)
    await scenario.drains(only_pod(**{labels.SURGE: "true"}), make_deployment())

    assert scenario.evicted() == ["default/web-1"]
    assert await scenario.world.events("SurgeImpossible")
