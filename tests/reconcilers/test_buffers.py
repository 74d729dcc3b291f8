"""Buffers are resolved, their capacity is launched and kept, and their status reports it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.capacitybuffer import CapacityBuffer, CapacityBufferStatus
from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE, INITIALIZED, NodeClaim
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta, to_wire
from controller.apis.kubernetes.pods import PodTemplateSpec
from controller.apis.kubernetes.workloads import Deployment, DeploymentSpec, PodTemplate
from controller.constraints.resources import pod_requests
from controller.manager.watches import BUFFERING
from controller.reconcilers.capacitybuffer.resolution import PERIOD, Resolution
from tests.builders import changed, make_nodeclass, make_nodepool, make_pod
from tests.reconcilers.disrupting import make_disruptor
from tests.reconcilers.scenarios import ProvisioningScenario
from tests.reconcilers.world import World

SPEC = make_pod("blueprint", cpu="600m", memory="1Gi").spec
TEMPLATE = PodTemplate(
    metadata=ObjectMeta(name="web", namespace="team", generation=3),
    template=PodTemplateSpec(spec=SPEC),
)


def make_buffer(**spec: Any) -> CapacityBuffer:
    metadata = {"name": "web", "namespace": "team", "uid": "uid", "generation": 1}
    spec = spec or {"podTemplateRef": {"name": "web"}, "replicas": 2}
    return msgspec.convert({"metadata": metadata, "spec": spec}, CapacityBuffer)


async def resolved(world: World) -> timedelta | None:
    pause = await Resolution(world.ports).reconcile("team/web")
    world.see()
    return pause


def status(world: World) -> CapacityBufferStatus:
    buffer = world.api.find(kinds.CAPACITY_BUFFER, "web", "team")
    assert buffer is not None
    return buffer.status


def status_and_reason(world: World, kind: str) -> tuple[str, str]:
    condition = conditions.find(status(world).conditions, kind)
    assert condition is not None
    return condition.status, condition.reason


async def test_a_buffer_with_a_template_and_a_number_is_ready_for_provisioning() -> None:
    world = World(*BUFFERING)
    world.seed(TEMPLATE, make_buffer())

    assert await resolved(world) == PERIOD

    buffer = status(world)
    assert buffer.replicas == 2
    assert buffer.pod_template_ref is not None
    assert buffer.pod_template_ref.name == "web"
    assert buffer.pod_template_generation == 3
    assert buffer.provisioning_strategy == "buffer.x-k8s.io/active-capacity"
    assert status_and_reason(world, "ReadyForProvisioning") == ("True", "Resolved")
    assert len(world.cluster.buffer_pods()) == 2


@pytest.mark.parametrize(
    "reference",
    [{"podTemplateRef": {"name": "web"}}, {"scalableRef": {"kind": "Deployment", "name": "web"}}],
)
async def test_a_limit_of_a_buffers_pod_is_a_request(reference: dict[str, Any]) -> None:
    world = World(*BUFFERING)
    containers = [{"name": "web", "resources": {"limits": {"cpu": "2"}}}]
    template = PodTemplateSpec(spec=make_pod("web", spec={"containers": containers}).spec)
    metadata = ObjectMeta(name="web", namespace="team")
    world.seed(
        PodTemplate(metadata=metadata, template=template),
        Deployment(metadata=metadata, spec=DeploymentSpec(template=template)),
        make_buffer(**reference, limits={"cpu": "5"}),
    )

    await resolved(world)

    pods = world.cluster.buffer_pods()
    assert [pod_requests(pod)["cpu"] for pod in pods] == [2000, 2000]


@pytest.mark.parametrize(
    "slip", [{"replicas": 2**31 - 1}, {"limits": {"cpu": "1e999"}}, {"limits": {"cpu": "1e1.5"}}]
)
async def test_an_invalid_buffer_is_reported_and_reserves_nothing(slip: dict[str, Any]) -> None:
    world = World(*BUFFERING)
    world.seed(TEMPLATE, make_buffer(podTemplateRef={"name": "web"}, **slip))

    await resolved(world)

    assert status_and_reason(world, "ReadyForProvisioning") == ("False", "ResolutionFailed")
    assert world.cluster.buffer_pods() == ()


async def test_a_percentage_buffer_follows_its_workload() -> None:
    world = World(*BUFFERING)
    world.seed(make_buffer(scalableRef={"kind": "Deployment", "name": "web"}, percentage=25))

    async def scaled(to: int) -> int | None:
        spec = DeploymentSpec(replicas=to, template=PodTemplateSpec(spec=SPEC))
        world.seed(Deployment(metadata=ObjectMeta(name="web", namespace="team"), spec=spec))
        await resolved(world)
        return status(world).replicas

    assert await scaled(10) == 3
    assert await scaled(20) == 5


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"podTemplateRef": {"name": "web"}, "replicas": 1}, "PodTemplateNotFound"),
        ({"scalableRef": {"kind": "Deployment", "name": "web"}}, "ScalableRefNotFound"),
        ({"scalableRef": {"kind": "CronJob", "name": "web"}}, "ResolutionFailed"),
        ({"replicas": 1}, "ResolutionFailed"),
    ],
)
async def test_an_unresolvable_buffer_reports_the_reason_and_gets_no_capacity(
    spec: dict[str, Any], reason: str
) -> None:
    scenario = _scenario(make_buffer(**spec))

    await resolved(scenario.world)
    await scenario.round()

    assert status_and_reason(scenario.world, "ReadyForProvisioning") == ("False", reason)
    assert status_and_reason(scenario.world, "Provisioning") == ("False", "NotReadyForProvisioning")
    assert not scenario.asked


async def handed_over(scenario: ProvisioningScenario, status: CapacityBufferStatus) -> None:
    """Give the buffer another strategy and this status, and let the controller react."""
    spec = {"podTemplateRef": {"name": "web"}, "replicas": 2}
    buffer = make_buffer(**spec, provisioningStrategy="example.com/standby")
    scenario.world.seed(msgspec.structs.replace(buffer, status=status))
    assert await resolved(scenario.world) is None
    await scenario.round()


async def test_a_buffer_with_another_strategy_is_left_to_its_controller() -> None:
    scenario = _scenario(TEMPLATE, make_buffer())
    await resolved(scenario.world)
    assert scenario.world.cluster.buffer_pods()
    ready = Condition(type="ReadyForProvisioning", status="True", reason="Resolved")
    theirs = CapacityBufferStatus(
        provisioning_strategy="example.com/standby", replicas=2, conditions=[ready]
    )

    await handed_over(scenario, theirs)

    assert status(scenario.world) == theirs
    assert not scenario.world.cluster.buffer_pods()
    assert not scenario.asked


async def test_a_buffer_that_gets_another_strategy_loses_the_status_of_the_old_one() -> None:
    scenario = _scenario(TEMPLATE, make_buffer())
    await resolved(scenario.world)
    await scenario.round()
    ours = status(scenario.world)
    assert {each.type for each in ours.conditions} == {"ReadyForProvisioning", "Provisioning"}
    theirs = Condition(type="example.com/Standby", status="True")

    await handed_over(
        scenario, msgspec.structs.replace(ours, conditions=[*ours.conditions, theirs])
    )

    assert status(scenario.world) == CapacityBufferStatus(conditions=[theirs])


DEPLOYMENT_WITHOUT_PODS = Deployment(
    metadata=ObjectMeta(name="web", namespace="team"), spec=DeploymentSpec(replicas=0)
)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"podTemplateRef": {"name": "web"}, "replicas": 0}, "spec.replicas is 0"),
        (
            {"podTemplateRef": {"name": "web"}, "limits": {"example.com/gpu": "1"}},
            "example.com/gpu",
        ),
        ({"scalableRef": {"kind": "Deployment", "name": "web"}}, "set spec.replicas"),
        (
            {"scalableRef": {"kind": "Deployment", "name": "web"}, "percentage": 50},
            "the workload has 0 replicas",
        ),
    ],
)
async def test_a_buffer_without_pods_says_why(spec: dict[str, Any], why: str) -> None:
    scenario = _scenario(TEMPLATE, DEPLOYMENT_WITHOUT_PODS, make_buffer(**spec))

    await resolved(scenario.world)
    await scenario.round()

    assert status_and_reason(scenario.world, "Provisioning") == ("False", "BufferEmpty")
    found = conditions.find(status(scenario.world).conditions, "Provisioning")
    assert found is not None
    assert why in found.message


def _scenario(*objects: Any) -> ProvisioningScenario:
    scenario = ProvisioningScenario(*BUFFERING)
    scenario.world.seed(make_nodeclass(), make_nodepool(), *objects)
    return scenario


async def launched(world: World, claim: NodeClaim) -> NodeClaim:
    """Launch the NodeClaim's instance, and set its size."""
    instance = await world.cloud.launch(claim, make_nodeclass())
    size = {"capacity": dict(instance.capacity), "allocatable": dict(instance.allocatable)}
    status = {"status": {"providerID": instance.provider_id, **size}}
    launched = await world.api.patch(
        kinds.NODE_CLAIM, claim.metadata.name, status, subresource="status"
    )
    world.see()
    return launched


async def make_consolidatable(world: World, claim: NodeClaim) -> None:
    """Make the node of a launched NodeClaim ready and consolidatable."""
    node = world.join(claim)
    known = {labels.NODEPOOL: "default", labels.REGISTERED: "true", labels.INITIALIZED: "true"}
    world.seed(changed(node, metadata={"labels": known}, spec={"taints": []}))
    reached = [Condition(type=kind, status="True") for kind in (INITIALIZED, CONSOLIDATABLE)]
    await world.api.patch(
        kinds.NODE_CLAIM,
        claim.metadata.name,
        {"status": {"conditions": to_wire(reached)}},
        subresource="status",
    )
    world.see()


async def test_buffer_capacity_is_launched_once_and_used_by_real_pods() -> None:
    scenario = _scenario(TEMPLATE, make_buffer())
    world = scenario.world
    await resolved(world)

    await scenario.round()

    (claim,) = world.claims()
    assert status_and_reason(world, "Provisioning") == ("False", "RequiresNewCapacity")
    assert status(world).ready_replicas == 0
    assert not scenario.provisioner.plan.expected_on(claim.metadata.name)
    assert not await world.events("Nominated")

    await launched(world, claim)
    await scenario.round()

    assert len(world.claims()) == 1
    assert status_and_reason(world, "Provisioning") == ("True", "FitsExistingCapacity")
    assert status(world).ready_replicas == 2

    world.seed(make_pod("real", cpu="1", memory="1Gi"))
    await scenario.round()

    assert scenario.provisioner.plan.expected_on(claim.metadata.name)
    assert len(world.claims()) == 2, "the used capacity is launched again"


async def test_unschedulable_buffer_pods_are_reported_in_the_status_but_not_as_events() -> None:
    huge = msgspec.structs.replace(
        TEMPLATE, template=PodTemplateSpec(spec=make_pod("x", cpu="9000").spec)
    )
    scenario = _scenario(huge, make_buffer())
    await resolved(scenario.world)

    await scenario.round()

    assert status_and_reason(scenario.world, "Provisioning") == ("False", "Infeasible")
    provisioning = conditions.find(status(scenario.world).conditions, "Provisioning")
    assert provisioning is not None
    assert provisioning.message.startswith(
        "pods: 2; on new nodes: 0; unschedulable: 2: NodePool default: "
    )
    assert not await scenario.world.events("FailedScheduling")


async def test_a_limit_does_not_make_a_buffer_infeasible() -> None:
    scenario = ProvisioningScenario(*BUFFERING)
    pool = make_nodepool(limits={"cpu": "0"})
    scenario.world.seed(make_nodeclass(), pool, TEMPLATE, make_buffer())
    await resolved(scenario.world)

    await scenario.round()

    assert status_and_reason(scenario.world, "Provisioning") == ("False", "RequiresNewCapacity")


async def test_a_node_with_buffer_capacity_is_not_empty_until_the_buffer_is_deleted() -> None:
    scenario = _scenario(TEMPLATE, make_buffer())
    world = scenario.world
    await resolved(world)
    await scenario.round()
    (claim,) = world.claims()
    await make_consolidatable(world, await launched(world, claim))
    disruptor = make_disruptor(world)

    async def pass_a_minute() -> None:
        for _ in range(60):
            await disruptor.run_once()
            world.see()
            world.pass_time(seconds=1)

    await scenario.round()
    await pass_a_minute()
    assert not any(c.metadata.is_deleting for c in world.claims())

    await world.api.delete(kinds.CAPACITY_BUFFER, "web", namespace="team")
    await resolved(world)
    await scenario.round()
    await pass_a_minute()
    assert all(c.metadata.is_deleting for c in world.claims())
