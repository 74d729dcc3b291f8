"""Mistakes of users, and the resulting messages: API server errors, conditions, events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from testbed.kube.client import KubeClient, NotFoundError, Object, UnprocessableError
from testbed.plugins.engine import EngineError
from tests.system.manifests import (
    asking,
    class_ref,
    in_pool,
    need,
    node_class,
    node_pool,
)
from tests.system.region import (
    CONTROLLER,
    CONTROLLER_PODS,
    DEFINITIONS,
    DEPLOYMENTS,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    NODES,
    PODS,
    Region,
    condition,
    deployment,
    eventually,
    holds,
)

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stack(region: Region) -> Region:
    """Return the region after `pulumi up`."""
    region.up()
    return region


@asynccontextmanager
async def present(kube: KubeClient, *wires: Object) -> AsyncIterator[None]:
    """Create objects, and delete them when the block ends."""
    paths = {"NodePool": NODE_POOLS, "EC2NodeClass": NODE_CLASSES, "Deployment": DEPLOYMENTS}
    async with AsyncExitStack() as made:
        for wire in wires:
            await kube.create(paths[wire["kind"]], wire)
            path = f"{paths[wire['kind']]}/{wire['metadata']['name']}"
            made.push_async_callback(removed, kube, path)
        yield


async def removed(kube: KubeClient, path: str) -> None:
    await kube.delete(path)

    async def is_gone() -> bool:
        try:
            await kube.get(path)
        except NotFoundError:
            return True
        return False

    await eventually(f"{path} is gone", is_gone)


async def refusal(kube: KubeClient, path: str, kind: str) -> Mapping[str, Any]:
    """Wait until a condition is False, and return it."""

    async def refused() -> Mapping[str, Any] | None:
        held = condition(await kube.get(path), kind)
        return held if held.get("status") == "False" else None

    return await eventually(f"{path} says in {kind} what is wrong", refused)


async def expect_event(kube: KubeClient, name: str, reason: str, *words: str) -> str:
    """Wait for an event with all these words on an object whose name has this prefix."""
    seen: set[str] = set()

    async def event() -> str | None:
        events, _ = await kube.list("/api/v1/events")
        for published in events:
            if (
                published["involvedObject"]["name"].startswith(name)
                and published["reason"] == reason
            ):
                seen.add(published["message"])
                if all(word in published["message"] for word in words):
                    return str(published["message"])
        return None

    return await eventually(f"an event {reason} with {words}", event, otherwise=lambda: seen)


def test_an_invalid_setting_stops_pulumi_up_before_anything_is_created(
    region: Region,
) -> None:
    with pytest.raises(EngineError) as refused:
        region.up(identity="root", drainTimeout="soon", nodePool="here")

    said = refused.value.output
    assert "joiner:identity='root'" in said
    assert "pod-identity" in said
    assert "irsa" in said
    assert "joiner:drainTimeout='soon'" in said
    assert "joiner:nodePool='here': unknown setting" in said
    assert "Traceback" not in said
    assert region.cloud.leftovers() == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"disruption": {"budgets": [{"nodes": "1", "schedule": "@daily"}]}},
            "'schedule' must be set with 'duration'",
        ),
        ({"disruption": {"consolidateAfter": "soon"}}, "spec.disruption.consolidateAfter"),
        ({"weight": 101}, "less than or equal to 100"),
        (
            {"requirements": [need("karpenter.sh/made-up", "In", "a")]},
            'label domain "karpenter.sh" is restricted',
        ),
        (
            {"requirements": [need("kubernetes.io/arch", "In")]},
            "operator 'In' must have a value defined",
        ),
        (
            {"requirements": [need("example.com/size", "Gt", "many")]},
            "must have a single positive integer value",
        ),
        (
            {"requirements": [need("kubernetes.io/hostname", "In", "a")]},
            '"kubernetes.io/hostname" is restricted',
        ),
        ({"taints": [{"key": "a", "effect": "Never"}]}, "Unsupported value"),
        ({"nodeClassRef": class_ref("")}, "name may not be empty"),
        ({"replicas": 1, "weight": 5}, "'weight' is not supported on static NodePools"),
        (
            {"replicas": 1, "limits": {"cpu": "5"}},
            "only 'limits.nodes' is supported on static NodePools",
        ),
        ({"limits": {"cpu": "some"}}, "spec.limits"),
    ],
)
async def test_the_api_server_refuses_a_malformed_node_pool_with_the_rules_message(
    stack: Region, kube: KubeClient, spec: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(UnprocessableError) as refused:
        await kube.create(NODE_POOLS, node_pool("malformed", **spec))

    assert message in refused.value.message


async def test_a_pool_without_its_class_names_the_class_to_create(
    stack: Region, kube: KubeClient
) -> None:
    pool = node_pool("classless", nodeClassRef=class_ref("nowhere"))
    pods = deployment("classless", 1, **in_pool("classless"))
    async with present(kube, pool, pods):
        refused = await refusal(kube, f"{NODE_POOLS}/classless", "NodeClassReady")
        assert refused["reason"] == "NodeClassNotFound"
        assert 'EC2NodeClass "nowhere" does not exist: create it' in refused["message"]
        lacking = 'NodePool classless is not ready: EC2NodeClass "nowhere" does not exist'
        await expect_event(kube, "classless-", "FailedScheduling", lacking)


@pytest.mark.parametrize(
    ("spec", "kind", "reason", "words", "terms"),
    [
        (
            {"subnetSelectorTerms": [{"tags": {"tier": "moon"}}]},
            "SubnetsReady",
            "SubnetsNotFound",
            "SubnetSelector did not match any Subnets",
            "; spec.subnetSelectorTerms: tag tier=moon. ",
        ),
        (
            {"securityGroupSelectorTerms": [{"tags": {"tier": "moon"}}]},
            "SecurityGroupsReady",
            "SecurityGroupsNotFound",
            "SecurityGroupSelector did not match any SecurityGroups",
            "; spec.securityGroupSelectorTerms: tag tier=moon. ",
        ),
        (
            {"amiFamily": "AL2023", "amiSelectorTerms": [{"name": "moon-*"}]},
            "AMIsReady",
            "AMINotFound",
            "AMISelector did not match any AMIs",
            "; spec.amiSelectorTerms: name moon-*. ",
        ),
        (
            {"amiSelectorTerms": [{"alias": "al2023@v19990101"}]},
            "AMIsReady",
            "AMINotFound",
            "AMISelector did not match any AMIs",
            "; spec.amiSelectorTerms: alias al2023@v19990101. ",
        ),
        (
            {"instanceProfile": None, "role": "nobody"},
            "ValidationSucceeded",
            "InstanceProfileNameInvalid",
            "set joiner:instanceProfiles to managed",
            "",
        ),
    ],
)
async def test_a_class_that_is_not_ready_says_why_and_the_pool_repeats_it(
    stack: Region,
    kube: KubeClient,
    spec: Mapping[str, Any],
    kind: str,
    reason: str,
    words: str,
    terms: str,
) -> None:
    pool = node_pool("lost", nodeClassRef=class_ref("lost"))
    async with present(kube, node_class("lost", **spec), pool):
        refused = await refusal(kube, f"{NODE_CLASSES}/lost", kind)
        assert words in refused["message"]
        assert reason in refused["reason"]
        of_pool = await refusal(kube, f"{NODE_POOLS}/lost", "NodeClassReady")
        assert f'EC2NodeClass "lost" is not ready: {kind}=False: ' in of_pool["message"]
        assert words + terms in of_pool["message"]
        of_pool = await refusal(kube, f"{NODE_POOLS}/lost", "Ready")
        assert of_pool["message"] == "NodeClassReady=False"
        if terms:
            await expect_event(kube, "lost", reason, words + terms)


async def test_pods_beyond_a_pools_limit_report_the_limit(stack: Region, kube: KubeClient) -> None:
    pool = node_pool("small", limits={"cpu": "2"})
    pods = deployment("small", 3, **in_pool("small"), **asking({"cpu": "1500m"}))
    async with present(kube, pool, pods):
        await expect_event(
            kube, "small-", "FailedScheduling", "NodePool small: limit of cpu reached"
        )

        claims, _ = await kube.list(NODE_CLAIMS)
        assert len(claims) == 1


async def test_a_pool_with_unsatisfiable_requirements_reports_it(
    stack: Region, kube: KubeClient
) -> None:
    wanted = [need("node.kubernetes.io/instance-type", "In", "m5.moonshot")]
    pool = node_pool("dreamer", requirements=wanted)
    pods = deployment("dreamer", 1, **in_pool("dreamer"))
    async with present(kube, pool, pods):
        refused = await refusal(kube, f"{NODE_POOLS}/dreamer", "ValidationSucceeded")
        assert refused["reason"] == "NoCompatibleInstanceTypes"
        assert "In [m5.moonshot]" in refused["message"]
        assert "change it" in refused["message"]
        of_pool = await refusal(kube, f"{NODE_POOLS}/dreamer", "Ready")
        assert of_pool["message"] == "ValidationSucceeded=False"
        await expect_event(
            kube, "dreamer-", "FailedScheduling", "NodePool dreamer", "In [m5.moonshot]"
        )


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("giant", asking({"cpu": "5000"}), ("NodePool default", "too small for cpu")),
        (
            "gamer",
            asking({"cpu": "1", "nvidia.com/gpu": "1"}),
            ("NodePool default", "nvidia.com/gpu"),
        ),
        (
            "stray",
            {"nodeSelector": {"topology.kubernetes.io/zone": "us-west-2z"}},
            ("NodePool default", "topology.kubernetes.io/zone In [us-west-2z]"),
        ),
        (
            "odd",
            {"nodeSelector": {"kubernetes.io/arch": "s390x"}},
            ("NodePool default", "kubernetes.io/arch In [s390x]"),
        ),
        ("teamless", {"nodeSelector": {"team": "a"}}, ("NodePool default", "team In [a]")),
    ],
)
async def test_an_unschedulable_pod_reports_the_pool_closest_to_fitting(
    stack: Region,
    kube: KubeClient,
    name: str,
    spec: Mapping[str, Any],
    words: tuple[str, ...],
) -> None:
    async with present(kube, deployment(name, 3, **spec)):
        for pod in await pods_of(kube, name, 3):
            await expect_event(kube, pod, "FailedScheduling", *words)


async def test_a_pod_without_a_toleration_reports_the_pools_taint(
    stack: Region, kube: KubeClient
) -> None:
    pool = node_pool(
        "tainted", taints=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
    )
    async with present(kube, pool, deployment("outsider", 1, **in_pool("tainted"))):
        await expect_event(
            kube,
            "outsider-",
            "FailedScheduling",
            "NodePool tainted: the pod does not tolerate taint dedicated=ml",
        )


async def test_pools_of_no_stack_block_the_destroy_until_confirmed(
    stack: Region, kube: KubeClient
) -> None:
    """Destroy the stack that the tests above share."""
    await kube.create(NODE_POOLS, node_pool("by-hand"))
    await kube.create(DEPLOYMENTS, deployment("app", 2, **in_pool("by-hand")))
    await running(kube, "app", 2)

    with pytest.raises(EngineError, match="no stack owns these NodePools: by-hand"):
        stack.destroy()
    await running(kube, "app", 2)
    # The nodes of the previous tests may still be terminating.
    await only_instances_of(stack, "by-hand")

    stack.up(deleteForeignNodePools="true")
    stack.destroy()

    await expect_nothing(stack, kube)


async def test_destroy_without_a_controller_terminates_instances_by_tag(
    region: Region, kube: KubeClient
) -> None:
    region.up()
    await running(kube, "app", 0)
    await kube.patch(f"{DEPLOYMENTS}/app", REDIRECTED)
    await running(kube, "app", 2)
    assert region.instances()
    await kube.delete(CONTROLLER)
    await no_controller(kube)

    region.destroy()

    assert any(
        "the controller's Deployment does not exist: terminating" in line for line in region.said
    )
    await expect_nothing(region, kube)


async def test_destroy_without_a_cluster_needs_its_abandonment_and_terminates_by_tag(
    region: Region, kube: KubeClient
) -> None:
    """Last test: the control plane does not recover."""
    region.up(drainTimeout="5s")
    await running(kube, "app", 2)
    before = len(region.instances())
    assert before
    region.testbed.cluster.stop()

    with pytest.raises(EngineError, match="EKS has the cluster"):
        region.destroy()
    assert len(region.instances()) == before
    given_up = {"JOINER_ABANDON_CLUSTER": "joiner", "PULUMI_K8S_DELETE_UNREACHABLE": "true"}
    environment = {**region.engine.environment, **given_up}
    region.engine = replace(region.engine, environment=environment)
    region.destroy()

    assert any("found by tags" in line for line in region.said)
    assert region.cloud.leftovers() == {}


REDIRECTED = {"spec": {"template": {"spec": {"nodeSelector": None}}}}
"""Lets the pods run in any NodePool."""


async def pods_of(kube: KubeClient, app: str, count: int) -> list[str]:
    """Wait until a Deployment has `count` pods; return their names."""

    async def names() -> list[str] | None:
        pods, _ = await kube.list(PODS, labelSelector=f"app={app}")
        return [p["metadata"]["name"] for p in pods] if len(pods) == count else None

    return await eventually(f"{app} has {count} pods", names)


async def only_instances_of(region: Region, pool: str) -> None:
    """Wait until all remaining instances belong to one NodePool."""

    async def alone() -> bool:
        return {i.tags.get("karpenter.sh/nodepool") for i in region.instances()} == {pool}

    await eventually(f"only instances of {pool} are left", alone, otherwise=region.instances)


async def no_controller(kube: KubeClient) -> None:
    """Wait until the processes of a deleted Deployment have ended: they act until then."""

    async def ended() -> bool:
        pods, _ = await kube.list(
            CONTROLLER_PODS, labelSelector="app.kubernetes.io/instance=karpenter"
        )
        return not pods

    await eventually("no controller runs", ended)


async def running(kube: KubeClient, app: str, pods: int) -> None:
    """Wait until exactly `pods` pods of a Deployment run."""
    seen: dict[str, str] = {}

    async def count() -> bool:
        listed, _ = await kube.list(PODS, labelSelector=f"app={app}")
        live = [p for p in listed if p["metadata"].get("deletionTimestamp") is None]
        seen.clear()
        seen.update({p["metadata"]["name"]: p["status"].get("phase", "") for p in live})
        return sum(holds(p, "Ready") for p in live) == pods

    await eventually(f"{pods} pods of {app} run", count, otherwise=lambda: seen)


async def expect_nothing(region: Region, kube: KubeClient) -> None:
    """Assert that nothing of the stack is left, in the cloud or in the cluster."""
    assert region.cloud.leftovers() == {}
    definitions, _ = await kube.list(DEFINITIONS)
    assert [
        d["metadata"]["name"] for d in definitions if "karpenter" in d["metadata"]["name"]
    ] == []
    nodes, _ = await kube.list(NODES, labelSelector="karpenter.sh/nodepool")
    assert nodes == []
