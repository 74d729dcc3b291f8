"""How instances become nodes, and how nodes end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from typing import Any

import pytest

from testbed.kube.client import KubeClient, NotFoundError, Object, Patch
from testbed.kube.quantities import MEBIBYTE, parse_quantity
from testbed.nodes.kubelets import Kubelets
from testbed.region.cluster import Cluster
from tests.testbed.eventually import eventually
from tests.testbed.fakecloud import NODE_ROLE, FakeCloud, fake_cloud

pytestmark = pytest.mark.cluster

NUMBERS = count(1)


class Instance:
    """A name of its own for each test's instance."""

    def __init__(self) -> None:
        number = next(NUMBERS)
        self.id = f"i-{number:017x}"
        self.name = f"ip-10-9-9-{number}.us-west-2.compute.internal"
        self.path = f"/api/v1/nodes/{self.name}"


@pytest.fixture
def instance() -> Instance:
    return Instance()


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with fake_cloud() as running:
        yield running


@pytest.fixture
def kubelets(cluster: Cluster, cloud: FakeCloud) -> Iterator[Kubelets]:
    parts = Kubelets(cluster.kubeconfig, cloud.url, join_delay_seconds=0.1, ready_delay_seconds=0.1)
    parts.start()
    yield parts
    parts.stop()


def user_data(
    cluster: Cluster,
    *,
    name: str = "joiner",
    endpoint: str | None = None,
    ca: str | None = None,
    config: str = "{maxPods: 29}",
) -> str:
    return f"""\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster:
    name: {name}
    apiServerEndpoint: {endpoint or cluster.server}
    certificateAuthority: {ca or cluster.ca_data}
    cidr: 10.96.0.0/12
  kubelet:
    config: {config}
    flags: ["--node-labels=karpenter.sh/nodepool=default,team=a"]
"""


async def node_of(kube: KubeClient, instance: Instance) -> Object | None:
    try:
        return await kube.get(instance.path)
    except NotFoundError:
        return None


def is_ready(node: Object | None) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def joined(kube: KubeClient, instance: Instance) -> Object:
    """Wait for the instance's Node, ready and initialized."""

    async def node() -> Object | None:
        there = await node_of(kube, instance)
        keys = {taint["key"] for taint in (there or {}).get("spec", {}).get("taints", [])}
        waiting = keys & {
            "node.cloudprovider.kubernetes.io/uninitialized",
            "node.kubernetes.io/not-ready",
        }
        return there if is_ready(there) and not waiting else None

    return await eventually(node)


async def started(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, instance: Instance
) -> Object:
    """Launch the instance, which may join; returns its Node."""
    cloud.allow()
    cloud.launch(instance.id, privateDnsName=instance.name, userData=user_data(cluster))
    return await joined(kube, instance)


async def refusal_of(kubelets: Kubelets, instance: Instance) -> str:
    async def refusal() -> str | None:
        return kubelets.refused.get(instance.id)

    return await eventually(refusal)


async def stopped(kube: KubeClient, instance: Instance) -> None:
    """Wait until the kubelets have heard that the instance is on its way out."""

    async def not_ready() -> bool:
        return not is_ready(await node_of(kube, instance))

    await eventually(not_ready)


async def gone(kube: KubeClient, instance: Instance) -> None:
    async def absent() -> bool:
        return await node_of(kube, instance) is None

    await eventually(absent)


async def create_pod(kube: KubeClient, name: str, instance: Instance, **spec: Any) -> str:
    await kube.create(
        "/api/v1/namespaces/default/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": instance.name,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": "pause"}],
                **spec,
            },
        },
    )
    return f"/api/v1/namespaces/default/pods/{name}"


def boot_id(node: Object) -> str:
    return str(node["status"]["nodeInfo"]["bootID"])


async def is_running(kube: KubeClient, path: str) -> bool:
    return bool((await kube.get(path))["status"]["phase"] == "Running")


async def test_a_running_instance_becomes_a_ready_node_that_runs_pods(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    node = await started(cluster, kube, cloud, instance)

    assert node["spec"]["providerID"] == f"aws:///us-west-2a/{instance.id}"
    labels = node["metadata"]["labels"]
    assert labels["karpenter.sh/nodepool"] == "default"
    assert labels["kubernetes.io/arch"] == "amd64"
    assert labels["kubernetes.io/hostname"] == instance.name
    assert labels["node.kubernetes.io/instance-type"] == "m5.large"
    assert labels["topology.kubernetes.io/zone"] == "us-west-2a"
    assert labels["topology.kubernetes.io/region"] == "us-west-2"
    assert labels["topology.k8s.aws/zone-id"] == "usw2-az2"
    assert labels["failure-domain.beta.kubernetes.io/zone"] == "us-west-2a"

    path = await create_pod(kube, "runs-on-an-instance", instance)

    await eventually(lambda: is_running(kube, path))


async def test_a_node_shows_less_memory_than_its_type_and_more_than_karpenter_expects(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    cloud.allow()
    cloud.launch(
        instance.id,
        privateDnsName=instance.name,
        userData=user_data(cluster),
        extendedResources={"nvidia.com/gpu": 4},
    )

    status = (await joined(kube, instance))["status"]

    visible = parse_quantity(status["capacity"]["memory"])
    nominal = 8192 * MEBIBYTE
    assert nominal * Fraction(925, 1000) <= visible < nominal
    assert status["capacity"]["cpu"] == "2"
    assert status["capacity"]["pods"] == "29"
    assert status["capacity"]["nvidia.com/gpu"] == "4"
    assert status["allocatable"]["cpu"] == "1930m"
    reserved = (11 * 29 + 255 + 100) * MEBIBYTE
    assert parse_quantity(status["allocatable"]["memory"]) == visible - reserved


async def test_what_the_user_data_reserves_is_not_allocatable(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    cloud.allow()
    config = (
        "{maxPods: 10, kubeReserved: {cpu: 500m, memory: 1Gi}, systemReserved: {cpu: 100m},"
        " evictionHard: {memory.available: 10%}}"
    )
    cloud.launch(
        instance.id, privateDnsName=instance.name, userData=user_data(cluster, config=config)
    )

    status = (await joined(kube, instance))["status"]

    assert status["allocatable"]["pods"] == "10"
    assert status["allocatable"]["cpu"] == "1400m"
    visible = parse_quantity(status["capacity"]["memory"])
    left = visible - 1024 * MEBIBYTE - visible / 10
    assert abs(parse_quantity(status["allocatable"]["memory"]) - left) <= 1024


async def test_a_node_registers_with_the_taints_of_its_user_data(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    cloud.allow()
    config = "{registerWithTaints: [{key: karpenter.sh/unregistered, effect: NoExecute}]}"
    cloud.launch(
        instance.id, privateDnsName=instance.name, userData=user_data(cluster, config=config)
    )

    node = await joined(kube, instance)

    kept = [(taint["key"], taint["effect"]) for taint in node["spec"]["taints"]]
    assert kept == [("karpenter.sh/unregistered", "NoExecute")]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        pytest.param({"name": "other"}, "it names cluster other, but this is joiner", id="cluster"),
        pytest.param(
            {"endpoint": "https://127.0.0.1:1"}, "API server https://127.0.0.1:1", id="endpoint"
        ),
        pytest.param({"ca": "Q0E="}, "did not sign", id="certificate"),
        pytest.param({"config": "[]}"}, "not YAML", id="syntax"),
    ],
)
async def test_an_instance_with_invalid_user_data_never_joins_and_reports_why(
    cluster: Cluster,
    kube: KubeClient,
    cloud: FakeCloud,
    kubelets: Kubelets,
    instance: Instance,
    wrong: dict[str, str],
    reason: str,
) -> None:
    cloud.allow()
    cloud.launch(instance.id, privateDnsName=instance.name, userData=user_data(cluster, **wrong))

    refusal = await refusal_of(kubelets, instance)

    assert reason in refusal
    assert await node_of(kube, instance) is None


async def test_an_instance_joins_once_its_subnet_has_internet_access(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    cloud.allow()
    orders = {"privateDnsName": instance.name, "userData": user_data(cluster)}
    cloud.launch(instance.id, reachesOut=False, **orders)

    assert "no way out" in await refusal_of(kubelets, instance)
    assert await node_of(kube, instance) is None
    cloud.launch(instance.id, reachesOut=True)
    await joined(kube, instance)


async def test_an_image_does_not_read_the_user_data_of_another_family(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    cloud.allow()
    cloud.launch(
        instance.id,
        privateDnsName=instance.name,
        userData=user_data(cluster),
        imageName="bottlerocket-aws-k8s-1.37-x86_64-v1.50.0-abcdef12",
    )

    assert "written for AL2023" in await refusal_of(kubelets, instance)
    assert await node_of(kube, instance) is None


async def test_an_instance_joins_as_soon_as_its_role_gets_an_access_entry(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    cloud.allow(kind="STANDARD")
    cloud.launch(instance.id, privateDnsName=instance.name, userData=user_data(cluster))
    refusal = await refusal_of(kubelets, instance)
    assert "no access entry of type EC2_LINUX" in refusal

    cloud.allow()

    await joined(kube, instance)
    assert instance.id not in kubelets.refused


async def test_an_aws_auth_config_map_lets_a_role_join_too(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    mapping = f"- rolearn: {NODE_ROLE}\n  groups: [system:bootstrappers, system:nodes]\n"
    maps = "/api/v1/namespaces/kube-system/configmaps"
    await kube.create(
        maps,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "aws-auth"},
            "data": {"mapRoles": mapping},
        },
    )
    cloud.launch(instance.id, privateDnsName=instance.name, userData=user_data(cluster))

    assert is_ready(await joined(kube, instance))
    await kube.delete(f"{maps}/aws-auth")


@pytest.mark.usefixtures("kubelets")
async def test_the_node_of_a_rebooted_instance_has_another_boot_id_and_its_pods(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, instance: Instance
) -> None:
    node = await started(cluster, kube, cloud, instance)
    path = await create_pod(kube, f"stays-{instance.id}", instance)
    pod = await kube.get(path)

    cloud.launch(instance.id, reboots=1)

    async def rebooted() -> Object | None:
        now = await kube.get(instance.path)
        return now if boot_id(now) != boot_id(node) else None

    assert is_ready(await eventually(rebooted))
    assert (await kube.get(path))["metadata"]["uid"] == pod["metadata"]["uid"]


async def test_the_node_of_a_terminating_instance_is_not_ready_and_stays(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    await started(cluster, kube, cloud, instance)

    cloud.set_state(instance.id, "shutting-down")

    await stopped(kube, instance)
    there = await node_of(kube, instance)
    assert there
    assert "deletionTimestamp" not in there["metadata"]


async def test_a_node_that_kwok_marks_ready_too_late_stays_silent(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    await started(cluster, kube, cloud, instance)
    cloud.set_state(instance.id, "shutting-down")
    await stopped(kube, instance)

    late = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kwok"}
    status = {"status": {"conditions": [late]}}
    await kube.patch(f"{instance.path}/status", status, how=Patch.STRATEGIC)

    await stopped(kube, instance)


async def test_node_and_pods_of_a_terminated_instance_are_deleted(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    await started(cluster, kube, cloud, instance)
    path = await create_pod(kube, "taken-along", instance)

    cloud.set_state(instance.id, "terminated")

    await gone(kube, instance)

    async def no_pod() -> bool:
        try:
            await kube.get(path)
        except NotFoundError:
            return True
        return False

    await eventually(no_pod)


async def test_a_node_with_a_finalizer_stays_until_the_finalizer_is_removed(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    await started(cluster, kube, cloud, instance)
    await kube.patch(instance.path, {"metadata": {"finalizers": ["karpenter.sh/termination"]}})

    cloud.set_state(instance.id, "terminated")

    async def deleting() -> bool:
        there = await node_of(kube, instance)
        assert there
        return "deletionTimestamp" in there["metadata"] and not is_ready(there)

    await eventually(deleting)

    await kube.patch(instance.path, {"metadata": {"finalizers": None}})
    await gone(kube, instance)


async def test_the_kubelet_of_a_running_instance_registers_again_after_its_node_is_deleted(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    first = await started(cluster, kube, cloud, instance)
    await kube.patch(instance.path, {"metadata": {"labels": {"karpenter.sh/registered": "true"}}})

    await kube.delete(instance.path)

    async def another() -> Object | None:
        there = await node_of(kube, instance)
        return there if there and there["metadata"]["uid"] != first["metadata"]["uid"] else None

    second = await eventually(another)
    assert "karpenter.sh/registered" not in second["metadata"]["labels"]


async def test_an_instance_that_is_shutting_down_does_not_register_again(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    await started(cluster, kube, cloud, instance)
    cloud.set_state(instance.id, "shutting-down")
    await stopped(kube, instance)
    await kube.delete(instance.path)
    await gone(kube, instance)

    # Another instance's arrival proves that the kubelets have looked since.
    witness = Instance()
    cloud.launch(witness.id, privateDnsName=witness.name, userData=user_data(cluster))
    await joined(kube, witness)

    assert await node_of(kube, instance) is None


async def test_an_instance_with_a_reused_address_waits_until_the_former_node_is_gone(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    replacement = Instance()
    await started(cluster, kube, cloud, instance)
    await kube.patch(instance.path, {"metadata": {"finalizers": ["karpenter.sh/termination"]}})
    cloud.set_state(instance.id, "terminated")
    cloud.launch(replacement.id, privateDnsName=instance.name, userData=user_data(cluster))
    old = await eventually(lambda: node_of(kube, instance))
    assert old["spec"]["providerID"].endswith(instance.id)

    await kube.patch(
        instance.path, [{"op": "remove", "path": "/metadata/finalizers"}], how=Patch.JSON
    )

    async def inherited() -> bool:
        there = await node_of(kube, instance)
        return there is not None and there["spec"]["providerID"].endswith(replacement.id)

    await eventually(inherited)


async def test_a_node_whose_instance_disappeared_is_removed_at_start(
    cluster: Cluster, kube: KubeClient, cloud: FakeCloud, kubelets: Kubelets, instance: Instance
) -> None:
    await started(cluster, kube, cloud, instance)
    await asyncio.to_thread(kubelets.stop)
    del cloud.instances[instance.id]

    await asyncio.to_thread(kubelets.start)

    await gone(kube, instance)
    assert await node_of(kube, instance) is None
