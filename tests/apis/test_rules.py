"""Which objects of Joiner's kinds the API server accepts and rejects."""

from __future__ import annotations

import copy
import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.apis import kinds, labels
from controller.apis.karpenter import validation
from controller.apis.karpenter.nodepool import NodePool
from tests.apis.conftest import ApiServer

pytestmark = pytest.mark.cluster

CHECKOUT = Path(__file__).parents[2]
SAMPLES = {path.stem: path.read_text() for path in (CHECKOUT / "crds" / "samples").glob("*.yaml")}
EXAMPLES = {
    f"{page.stem}-{number}": textwrap.dedent(block)
    for page in (CHECKOUT / "docs").rglob("*.md")
    for number, (_, block) in enumerate(
        re.findall(r"^( *)```yaml\n(.*?)^ *```$", page.read_text(), re.M | re.S)
    )
    if "apiVersion: karpenter" in block
}
"""The NodePools and EC2NodeClasses that the documentation shows."""

NODE_POOL: dict[str, Any] = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "pool"},
    "spec": {
        "template": {
            "spec": {
                "nodeClassRef": {
                    "group": "karpenter.k8s.aws",
                    "kind": "EC2NodeClass",
                    "name": "default",
                },
                "requirements": [],
            }
        }
    },
}
NODE_CLAIM: dict[str, Any] = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodeClaim",
    "metadata": {"name": "claim"},
    "spec": copy.deepcopy(NODE_POOL["spec"]["template"]["spec"]),
}
NODE_OVERLAY: dict[str, Any] = {
    "apiVersion": "karpenter.sh/v1alpha1",
    "kind": "NodeOverlay",
    "metadata": {"name": "overlay"},
    "spec": {"requirements": []},
}
CAPACITY_BUFFER: dict[str, Any] = {
    "apiVersion": "autoscaling.x-k8s.io/v1beta1",
    "kind": "CapacityBuffer",
    "metadata": {"name": "buffer", "namespace": "default"},
    "spec": {"podTemplateRef": {"name": "shape"}, "replicas": 1},
}
EC2_NODE_CLASS: dict[str, Any] = {
    "apiVersion": "karpenter.k8s.aws/v1",
    "kind": "EC2NodeClass",
    "metadata": {"name": "class"},
    "spec": {
        "role": "KarpenterNodeRole-joiner",
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": "joiner"}}],
        "securityGroupSelectorTerms": [{"id": "sg-0123456789abcdef0"}],
    },
}

ABSENT = object()
"""Takes a field away."""


def with_field(wire: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of an object with one field of its spec set; dots lead down."""
    changed = copy.deepcopy(wire)
    place = changed["spec"]
    *parents, last = path.split(".")
    for name in parents:
        place = place.setdefault(name, {})
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return changed


def requires(key: str, operator: str = "Exists", *values: str, **more: Any) -> list[dict[str, Any]]:
    """One requirement, as a list."""
    return [
        {"key": key, "operator": operator, **({"values": list(values)} if values else {}), **more}
    ]


def taint(**fields: Any) -> list[dict[str, Any]]:
    """One taint, as a list."""
    return [{"key": "example.com/team", "effect": "NoSchedule", **fields}]


def budget(**fields: Any) -> list[dict[str, Any]]:
    """One budget, as a list."""
    return [{"nodes": "10%", **fields}]


REQUIREMENTS = "template.spec.requirements"
TEMPLATE = "template.spec"

POOL_REFUSED: list[tuple[str, Any, str]] = [
    ("template", ABSENT, "template"),
    (f"{TEMPLATE}.requirements", ABSENT, "requirements"),
    (f"{TEMPLATE}.nodeClassRef", ABSENT, "nodeClassRef"),
    (f"{TEMPLATE}.nodeClassRef.group", "", "group may not be empty"),
    (f"{TEMPLATE}.nodeClassRef.group", "karpenter.k8s.aws/v1", "group"),
    (f"{TEMPLATE}.nodeClassRef.kind", "", "kind may not be empty"),
    (f"{TEMPLATE}.nodeClassRef.name", "", "name may not be empty"),
    (f"{TEMPLATE}.expireAfter", "-1h", "expireAfter"),
    (f"{TEMPLATE}.expireAfter", "1d", "expireAfter"),
    (f"{TEMPLATE}.terminationGracePeriod", "Never", "terminationGracePeriod"),
    (f"{TEMPLATE}.taints", taint(key=""), "key"),
    (f"{TEMPLATE}.taints", taint(key="a b"), "key"),
    (f"{TEMPLATE}.taints", taint(value="a b"), "value"),
    (f"{TEMPLATE}.taints", taint(value=""), "value"),
    (f"{TEMPLATE}.taints", taint(effect="Never"), "effect"),
    (f"{TEMPLATE}.startupTaints", [{"key": "a"}], "effect"),
    (REQUIREMENTS, requires("a b"), "key"),
    (REQUIREMENTS, requires("a" * 317), "key"),
    (REQUIREMENTS, requires("a", "Is", "b"), "operator"),
    (REQUIREMENTS, [{"key": "a"}], "operator"),
    (REQUIREMENTS, requires("a", "In"), "operator 'In' must have a value defined"),
    (REQUIREMENTS, requires("a", "Gt"), "must have a single positive integer value"),
    (REQUIREMENTS, requires("a", "Gt", "1", "2"), "must have a single positive integer value"),
    (REQUIREMENTS, requires("a", "Lt", "-1"), "must have a single positive integer value"),
    (REQUIREMENTS, requires("a", "Gte", "many"), "must have a single positive integer value"),
    (
        REQUIREMENTS,
        requires("a", "In", "x", minValues=2),
        "'minValues' must have at least that many values",
    ),
    (REQUIREMENTS, requires("a", minValues=0), "minValues"),
    (REQUIREMENTS, requires("a", minValues=51), "minValues"),
    (REQUIREMENTS, requires("a") * 101, "100"),
    (REQUIREMENTS, requires("karpenter.sh/custom"), 'label domain "karpenter.sh" is restricted'),
    (
        REQUIREMENTS,
        requires("sub.karpenter.sh/custom"),
        'label domain "karpenter.sh" is restricted',
    ),
    (REQUIREMENTS, requires(labels.NODEPOOL), '"karpenter.sh/nodepool" is restricted'),
    (REQUIREMENTS, requires(labels.HOSTNAME), 'label "kubernetes.io/hostname" is restricted'),
    (
        REQUIREMENTS,
        requires("karpenter.k8s.aws/custom"),
        'label domain "karpenter.k8s.aws" is restricted',
    ),
    (
        "template.metadata.labels",
        {"karpenter.sh/custom": "x"},
        'label domain "karpenter.sh" is restricted',
    ),
    (
        "template.metadata.labels",
        {"karpenter.k8s.aws/custom": "x"},
        'label domain "karpenter.k8s.aws" is restricted',
    ),
    ("template.metadata.labels", {labels.NODEPOOL: "x"}, '"karpenter.sh/nodepool" is restricted'),
    (
        "template.metadata.labels",
        {labels.HOSTNAME: "x"},
        'label "kubernetes.io/hostname" is restricted',
    ),
    ("template.metadata.labels", {"a": "b c"}, "labels"),
    ("template.metadata.labels", {"a": "b" * 64}, "labels"),
    ("template.metadata.labels", {f"k{n}": "x" for n in range(101)}, "100"),
    ("disruption.consolidateAfter", "soon", "consolidateAfter"),
    ("disruption.consolidationPolicy", "WhenIdle", "consolidationPolicy"),
    ("disruption.budgets", budget(nodes="101%"), "nodes"),
    ("disruption.budgets", budget(nodes="-1"), "nodes"),
    ("disruption.budgets", budget(nodes="some"), "nodes"),
    ("disruption.budgets", budget(reasons=["Expired"]), "reasons"),
    ("disruption.budgets", budget(reasons=["Empty", "Empty"]), "Duplicate"),
    ("disruption.budgets", budget(schedule="@daily"), "'schedule' must be set with 'duration'"),
    ("disruption.budgets", budget(duration="1h"), "'schedule' must be set with 'duration'"),
    ("disruption.budgets", budget(schedule="sometimes", duration="1h"), "schedule"),
    ("disruption.budgets", budget(schedule="@daily", duration="90s"), "duration"),
    ("disruption.budgets", budget() * 51, "50"),
    ("limits", {"cpu": "plenty"}, "limits"),
    ("weight", 0, "weight"),
    ("weight", 101, "weight"),
    ("replicas", -1, "replicas"),
    ("unheard", "of", "unheard"),
]
POOL_TAKEN: list[tuple[str, Any]] = [
    (f"{TEMPLATE}.expireAfter", "Never"),
    (f"{TEMPLATE}.expireAfter", "1h30m5s"),
    (f"{TEMPLATE}.terminationGracePeriod", "30m"),
    (f"{TEMPLATE}.taints", taint(value="payments", timeAdded="2026-01-01T00:00:00Z")),
    (f"{TEMPLATE}.startupTaints", taint(effect="NoExecute")),
    (REQUIREMENTS, requires("example.com/team", "In", "a", "b", minValues=2)),
    (REQUIREMENTS, requires(labels.CAPACITY_TYPE, "In", "spot")),
    (REQUIREMENTS, requires("notkarpenter.sh/custom")),
    (REQUIREMENTS, requires("example.com/karpenter.sh")),
    (REQUIREMENTS, requires("karpenter.k8s.aws/instance-cpu", "Gte", "0")),
    (REQUIREMENTS, requires("karpenter.k8s.aws/ec2nodeclass", "In", "x")),
    (REQUIREMENTS, requires("a", "DoesNotExist")),
    ("template.metadata.labels", {"example.com/team": "payments", "empty": ""}),
    ("template.metadata.labels", {labels.CAPACITY_TYPE: "spot"}),
    ("disruption.consolidateAfter", "Never"),
    ("disruption.consolidationPolicy", "Balanced"),
    ("disruption.budgets", budget(schedule="0 8 * * mon-fri", duration="1h30m0s")),
    ("disruption.budgets", budget(nodes="0", reasons=["Empty", "Drifted", "Underutilized"])),
    ("disruption.budgets", []),
    ("limits", {"cpu": 10, "memory": "1.5Gi", "nvidia.com/gpu": "4", "nodes": "7"}),
    ("weight", 100),
    ("replicas", 0),
]


@pytest.mark.parametrize(("path", "value", "why"), POOL_REFUSED)
def test_a_malformed_node_pool_is_refused_with_the_reason(
    api_server: ApiServer, path: str, value: Any, why: str
) -> None:
    answer = api_server.create(with_field(NODE_POOL, path, value))

    assert not answer.accepted
    assert why in answer.message


@pytest.mark.parametrize(("path", "value"), POOL_TAKEN)
def test_a_valid_node_pool_is_accepted(api_server: ApiServer, path: str, value: Any) -> None:
    answer = api_server.create(with_field(NODE_POOL, path, value))

    assert answer.accepted, answer.message
    assert validation.problems(msgspec.convert(answer.body, NodePool)) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"weight": 5}, "'weight' is not supported on static NodePools"),
        ({"limits": {"cpu": "5"}}, "only 'limits.nodes' is supported on static NodePools"),
    ],
)
def test_a_static_pool_refuses_fields_that_do_not_apply_to_it(
    api_server: ApiServer, change: dict[str, Any], why: str
) -> None:
    static = with_field(NODE_POOL, "replicas", 3)
    static["spec"] |= change

    assert why in api_server.create(static).message
    assert api_server.create(
        with_field(static, "weight", ABSENT)
        if "weight" in change
        else with_field(static, "limits", {"nodes": "5"})
    ).accepted


def test_whether_a_pool_is_static_and_the_kind_of_its_class_are_immutable(
    api_server: ApiServer,
) -> None:
    created = api_server.create(NODE_POOL, dry_run=False).body

    reference = f"{TEMPLATE}.nodeClassRef"
    static = api_server.replace(with_field(created, "replicas", 3))
    group = api_server.replace(with_field(created, f"{reference}.group", "example.com"))
    kind = api_server.replace(with_field(created, f"{reference}.kind", "OtherClass"))
    name = api_server.replace(with_field(created, f"{reference}.name", "other"))
    api_server.delete(created)

    assert "Cannot transition NodePool between static" in static.message
    assert "nodeClassRef.group is immutable" in group.message
    assert "nodeClassRef.kind is immutable" in kind.message
    assert name.accepted


def test_a_node_pool_scales_by_its_scale_subresource(api_server: ApiServer) -> None:
    created = api_server.create(with_field(NODE_POOL, "replicas", 3), dry_run=False).body

    scale = api_server.get("/apis/karpenter.sh/v1/nodepools/pool/scale")
    api_server.delete(created)

    assert scale["spec"]["replicas"] == 3


CLAIM_REFUSED: list[tuple[str, Any, str]] = [
    ("requirements", ABSENT, "requirements"),
    ("nodeClassRef", ABSENT, "nodeClassRef"),
    ("requirements", requires("karpenter.sh/custom"), 'label domain "karpenter.sh" is restricted'),
    ("requirements", requires(labels.HOSTNAME), 'label "kubernetes.io/hostname" is restricted'),
    ("requirements", requires("a", "In"), "operator 'In' must have a value defined"),
    (
        "requirements",
        requires("a", "In", "x", minValues=2),
        "'minValues' must have at least that many values",
    ),
    ("requirements", requires("a", "Lte"), "must have a single positive integer value"),
    ("taints", taint(effect="Never"), "effect"),
    ("expireAfter", "later", "expireAfter"),
    ("terminationGracePeriod", "Never", "terminationGracePeriod"),
    ("resources", {"requests": {"cpu": "x"}}, "cpu"),
]


@pytest.mark.parametrize(("path", "value", "why"), CLAIM_REFUSED)
def test_a_malformed_node_claim_is_refused_with_the_reason(
    api_server: ApiServer, path: str, value: Any, why: str
) -> None:
    answer = api_server.create(with_field(NODE_CLAIM, path, value))

    assert not answer.accepted
    assert why in answer.message


def test_a_node_claim_may_require_its_pool_and_is_immutable(api_server: ApiServer) -> None:
    owned = with_field(NODE_CLAIM, "requirements", requires(labels.NODEPOOL, "In", "pool"))
    created = api_server.create(owned, dry_run=False)
    changed = api_server.replace(with_field(created.body, "expireAfter", "1h"))
    api_server.delete(created.body)

    assert created.accepted
    assert "spec is immutable" in changed.message


def test_a_condition_of_a_claim_needs_no_reason(api_server: ApiServer) -> None:
    created = api_server.create(NODE_CLAIM, dry_run=False).body
    fact = {"type": "Launched", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    loose = api_server.replace(created | {"status": {"conditions": [fact]}}, subresource="/status")
    api_server.delete(created)

    assert loose.accepted, loose.message


OVERLAY_REFUSED: list[tuple[str, Any, str]] = [
    ("requirements", ABSENT, "requirements"),
    ("requirements", requires("a", "In"), "operator 'In' must have a value defined"),
    ("requirements", requires("a", "NotIn"), "operator 'NotIn' must have a value defined"),
    ("requirements", requires("a", "Gt", "x", "y"), "must have a single positive integer value"),
    ("requirements", requires("a", minValues=1), "minValues"),
    ("requirements", requires("karpenter.sh/custom"), 'label domain "karpenter.sh" is restricted'),
    (
        "requirements",
        requires("karpenter.k8s.aws/instance-tenancy"),
        'label domain "karpenter.k8s.aws" is restricted',
    ),
    ("requirements", requires(labels.HOSTNAME), 'label "kubernetes.io/hostname" is restricted'),
    ("price", "-1", "price"),
    ("price", "cheap", "price"),
    ("priceAdjustment", "10%", "priceAdjustment"),
    ("priceAdjustment", "-101%", "priceAdjustment"),
    ("priceAdjustment", "0.5", "priceAdjustment"),
    ("capacity", {"cpu": "4"}, "invalid resource restricted"),
    ("weight", 0, "weight"),
    ("weight", 10001, "weight"),
]


@pytest.mark.parametrize(("path", "value", "why"), OVERLAY_REFUSED)
def test_a_malformed_node_overlay_is_refused_with_the_reason(
    api_server: ApiServer, path: str, value: Any, why: str
) -> None:
    answer = api_server.create(with_field(NODE_OVERLAY, path, value))

    assert not answer.accepted
    assert why in answer.message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("price", "0.25"),
        *(("priceAdjustment", text) for text in ("+0.1", "-.5", "+150%", "-99.5%", "-100%")),
        ("capacity", {"example.com/licence": "4"}),
        ("requirements", requires(labels.NODEPOOL, "In", "pool")),
        ("weight", 10000),
    ],
)
def test_a_valid_node_overlay_is_accepted(api_server: ApiServer, path: str, value: Any) -> None:
    answer = api_server.create(with_field(NODE_OVERLAY, path, value))

    assert answer.accepted, answer.message


def test_an_overlay_sets_a_price_or_a_price_adjustment_but_not_both(api_server: ApiServer) -> None:
    both = with_field(with_field(NODE_OVERLAY, "price", "1"), "priceAdjustment", "+1")

    assert "cannot set both 'price' and 'priceAdjustment'" in api_server.create(both).message


BUFFER_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"podTemplateRef": {"name": "a"}}, "replicas or limits must also be set"),
    (
        {
            "podTemplateRef": {"name": "a"},
            "scalableRef": {"kind": "Deployment", "name": "b"},
            "replicas": 1,
        },
        "either PodTemplateRef or ScalableRef, but not both",
    ),
    ({"podTemplateRef": {"name": ""}, "replicas": 1}, "name"),
    ({"scalableRef": {"kind": "", "name": "b"}}, "kind"),
    ({"podTemplateRef": {"name": "a"}, "replicas": -1}, "replicas"),
    ({"scalableRef": {"kind": "Deployment", "name": "b"}, "percentage": -1}, "percentage"),
]


@pytest.mark.parametrize(("spec", "why"), BUFFER_REFUSED)
def test_a_malformed_capacity_buffer_is_refused_with_the_reason(
    api_server: ApiServer, spec: dict[str, Any], why: str
) -> None:
    answer = api_server.create(CAPACITY_BUFFER | {"spec": spec})

    assert not answer.accepted
    assert why in answer.message


def disk(**ebs: Any) -> list[dict[str, Any]]:
    """One block device mapping, as a list."""
    return [{"deviceName": "/dev/xvda", "ebs": ebs}]


def interfaces(*triples: tuple[int, int, str]) -> list[dict[str, Any]]:
    """Network interfaces by card, device and type."""
    return [
        {"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
        for card, device, kind in triples
    ]


AMIS, SUBNETS, GROUPS = "amiSelectorTerms", "subnetSelectorTerms", "securityGroupSelectorTerms"

CLASS_REFUSED: list[tuple[str, Any, str]] = [
    ("kubelet", "maxPods: 3", "kubelet"),
    ("kubelet", ["maxPods"], "kubelet"),
    (SUBNETS, ABSENT, SUBNETS),
    (SUBNETS, [], SUBNETS),
    (SUBNETS, [{}], "expected at least one, got none, ['tags', 'id']"),
    (SUBNETS, [{"id": "sg-1"}], "id"),
    (SUBNETS, [{"tags": {"": "x"}}], "empty tag keys or values aren't supported"),
    (SUBNETS, [{"tags": {"x": ""}}], "empty tag keys or values aren't supported"),
    (SUBNETS, [{"tags": {f"k{n}": "x" for n in range(21)}}], "20"),
    (SUBNETS, [{"id": "subnet-1", "tags": {"a": "b"}}], "'id' is mutually exclusive"),
    (SUBNETS, [{"id": "subnet-1"}] * 31, "30"),
    (GROUPS, ABSENT, GROUPS),
    (GROUPS, [{}], "expected at least one, got none, ['tags', 'id', 'name']"),
    (GROUPS, [{"id": "subnet-1"}], "id"),
    (GROUPS, [{"id": "sg-1", "name": "a"}], "'id' is mutually exclusive"),
    (GROUPS, [{"name": "a", "tags": {"a": "b"}}], "'name' is mutually exclusive"),
    (AMIS, ABSENT, AMIS),
    (AMIS, [{"owner": "self"}], "expected at least one, got none"),
    (AMIS, [{"id": "x-1"}], "id"),
    (AMIS, [{"id": "ami-1", "name": "a"}], "'id' is mutually exclusive"),
    (AMIS, [{"alias": "al2023@latest", "owner": "self"}], "'alias' is mutually exclusive"),
    (
        AMIS,
        [{"alias": "al2023@latest"}, {"id": "ami-1"}],
        "a combination of other amiSelectorTerms",
    ),
    (AMIS, [{"alias": "al2023"}], "must match the format 'family@version'"),
    (AMIS, [{"alias": "AL2023@latest"}], "family is not supported"),
    (AMIS, [{"alias": "ubuntu@latest"}], "must be one of the following: 'al2'"),
    (AMIS, [{"alias": "windows2022@1.2"}], "may only specify version 'latest'"),
    (AMIS, [{"alias": "al2023@" + "v" * 30}], "30"),
    (AMIS, [{"id": "ami-1"}], "must specify amiFamily if"),
    ("amiFamily", "Ubuntu", "amiFamily"),
    ("amiFamily", "AL2", "must be 'AL2023' or 'Custom' when using an AL2023 alias"),
    ("role", ABSENT, "exactly one of ['role', 'instanceProfile']"),
    ("role", "", "role cannot be empty"),
    ("instanceProfile", "profile", "exactly one of ['role', 'instanceProfile']"),
    ("capacityReservationSelectorTerms", [{"ownerID": "123456789012"}], "got none"),
    ("capacityReservationSelectorTerms", [{"id": "ami-1"}], "id"),
    ("capacityReservationSelectorTerms", [{"tags": {"a": "b"}, "ownerID": "1"}], "ownerID"),
    ("capacityReservationSelectorTerms", [{"instanceMatchCriteria": "any"}], "open"),
    (
        "capacityReservationSelectorTerms",
        [{"id": "cr-1", "tags": {"a": "b"}}],
        "'id' is mutually exclusive",
    ),
    ("placementGroupSelector", {}, "got none, ['name', 'id']"),
    (
        "placementGroupSelector",
        {"id": "pg-1", "name": "a"},
        "'name' and 'id' are mutually exclusive",
    ),
    ("placementGroupSelector", {"name": ""}, "name"),
    ("ipPrefixCount", -1, "ipPrefixCount"),
    ("tags", {"": "x"}, "empty tag keys aren't supported"),
    ("tags", {"kubernetes.io/cluster/joiner": "owned"}, "tag matching kubernetes.io/cluster/"),
    ("tags", {labels.TAG_CLUSTER_NAME: "x"}, "restricted tag matching eks:eks-cluster-name"),
    ("tags", {labels.NODEPOOL: "x"}, "restricted tag matching karpenter.sh/nodepool"),
    ("tags", {labels.TAG_NODECLAIM: "x"}, "restricted tag matching karpenter.sh/nodeclaim"),
    ("tags", {labels.EC2NODECLASS: "x"}, "restricted tag matching karpenter.k8s.aws/ec2nodeclass"),
    ("blockDeviceMappings", disk(volumeType="gp3"), "snapshotID or volumeSize must be defined"),
    ("blockDeviceMappings", disk(volumeSize="1Mi"), "volumeSize"),
    ("blockDeviceMappings", disk(volumeSize="59001Gi"), "volumeSize"),
    ("blockDeviceMappings", disk(volumeSize="64001G"), "volumeSize"),
    ("blockDeviceMappings", disk(volumeSize="59Ti"), "volumeSize"),
    ("blockDeviceMappings", disk(volumeSize="65T"), "volumeSize"),
    ("blockDeviceMappings", disk(volumeSize="1Gi", volumeType="gp4"), "volumeType"),
    (
        "blockDeviceMappings",
        disk(volumeSize="1Gi", volumeInitializationRate=100),
        "snapshotID must be set when",
    ),
    ("blockDeviceMappings", disk(snapshotID="s", volumeInitializationRate=99), "100"),
    ("blockDeviceMappings", disk(snapshotID="s", volumeInitializationRate=301), "300"),
    (
        "blockDeviceMappings",
        [{"rootVolume": True}, {"rootVolume": True}],
        "only one blockDeviceMappings",
    ),
    ("blockDeviceMappings", disk(volumeSize="1Gi") * 51, "50"),
    ("instanceStorePolicy", "RAID1", "instanceStorePolicy"),
    ("networkInterfaces", interfaces((0, 1, "interface")), "must include a primary interface"),
    ("networkInterfaces", interfaces((0, 0, "efa-only")), "must include a primary interface"),
    (
        "networkInterfaces",
        interfaces((0, 0, "interface"), (0, 0, "interface")),
        "duplicate networkCardIndex",
    ),
    (
        "networkInterfaces",
        interfaces((0, 0, "interface"), (0, 1, "efa-only"), (0, 2, "efa-only")),
        "at most one efa device per network card",
    ),
    ("networkInterfaces", interfaces((0, 0, "efa")), "interfaceType"),
    ("networkInterfaces", [{"networkCardIndex": 0}], "deviceIndex"),
    ("metadataOptions.httpPutResponseHopLimit", 65, "httpPutResponseHopLimit"),
    ("metadataOptions.httpPutResponseHopLimit", 0, "httpPutResponseHopLimit"),
    ("metadataOptions.httpTokens", "always", "httpTokens"),
    ("metadataOptions.httpEndpoint", "on", "httpEndpoint"),
    ("connectionTracking", {}, "at least one of tcpEstablishedTimeout"),
    ("connectionTracking.tcpEstablishedTimeout", 59, "tcpEstablishedTimeout"),
    ("connectionTracking.udpStreamTimeout", 181, "udpStreamTimeout"),
    ("connectionTracking.udpTimeout", 61, "udpTimeout"),
    ("cpuOptions.nestedVirtualization", "yes", "nestedVirtualization"),
    ("enclaveOptions", {}, "enabled"),
]
CLASS_TAKEN: list[tuple[str, Any]] = [
    (SUBNETS, [{"tags": {"Name": "*"}}, {"id": "subnet-0a1b"}]),
    (SUBNETS, [{"id": "subnet-1", "tags": {"a": "b"}}, {"id": "subnet-2"}]),
    (GROUPS, [{"name": "nodes"}, {"tags": {"a": "b"}}]),
    ("amiFamily", "AL2023"),
    ("amiFamily", "Custom"),
    *((AMIS, [{"alias": f"{family}@latest"}]) for family in ("al2", "bottlerocket", "windows2025")),
    ("capacityReservationSelectorTerms", [{"tags": {"a": "b"}, "ownerID": "123456789012"}]),
    ("capacityReservationSelectorTerms", [{"instanceMatchCriteria": "targeted"}]),
    ("placementGroupSelector", {"name": "rack"}),
    ("placementGroupSelector", {"id": "pg-0a1b"}),
    ("associatePublicIPAddress", False),
    ("ipPrefixCount", 2),
    ("userData", "#!/bin/sh"),
    ("tags", {"Name": "node", "team": ""}),
    ("kubelet", {}),
    ("kubelet", {"maxPods": 60, "evictionHard": {"memory.available": "5%"}, "anyKey": [1, "a"]}),
    ("kubelet", {"systemReserved": {"memory": "max(100, memory_mib / 64)"}}),
    # The API server accepts any map, as in Karpenter 1.15; the controller validates it.
    ("kubelet", {"podsPerCore": "ten", "maxPods": -1}),
    ("kubelet", {"imageGCHighThresholdPercent": 10, "imageGCLowThresholdPercent": 60}),
    ("kubelet", {"imageGCHighThresholdPercent": 101, "imageGCLowThresholdPercent": -1}),
    ("kubelet", {"evictionHard": {"memory.availabel": "5 percent"}}),
    ("kubelet", {"evictionSoft": {"pid.available": "5%"}}),
    ("kubelet", {"evictionSoftGracePeriod": {"pid.available": "-1m"}}),
    ("kubelet", {"kubeReserved": {"gpu": "1"}, "systemReserved": {"cpu": "-100m"}}),
    ("kubelet", {"kubeReserved": "all", "evictionHard": [{"a": {"b": [None, 1.5]}}]}),
    ("blockDeviceMappings", disk(volumeSize="59000Gi", volumeType="gp3", iops=3000)),
    ("blockDeviceMappings", disk(volumeSize="64T")),
    ("blockDeviceMappings", disk(snapshotID="snap-1", volumeInitializationRate=300)),
    ("instanceStorePolicy", "RAID0"),
    ("networkInterfaces", interfaces((0, 0, "interface"), (0, 1, "efa-only"), (1, 0, "efa-only"))),
    ("networkInterfaces", []),
    ("connectionTracking", {"udpTimeout": 30}),
    ("detailedMonitoring", True),
    ("context", "fleet-context"),
    ("cpuOptions", {"nestedVirtualization": "enabled"}),
    *(("enclaveOptions", {"enabled": enabled}) for enabled in (True, False)),
]


@pytest.mark.parametrize(("path", "value", "why"), CLASS_REFUSED)
def test_a_malformed_node_class_is_refused_with_the_reason(
    api_server: ApiServer, path: str, value: Any, why: str
) -> None:
    answer = api_server.create(with_field(EC2_NODE_CLASS, path, value))

    assert not answer.accepted
    assert why in answer.message


@pytest.mark.parametrize(("path", "value"), CLASS_TAKEN)
def test_a_valid_node_class_is_accepted(api_server: ApiServer, path: str, value: Any) -> None:
    answer = api_server.create(with_field(EC2_NODE_CLASS, path, value))

    assert answer.accepted, answer.message
    place: Any = answer.body["spec"]
    for name in path.split("."):
        place = place[name]
    assert place == value


def test_a_node_class_with_a_custom_ami_must_name_its_family(api_server: ApiServer) -> None:
    own = with_field(EC2_NODE_CLASS, AMIS, [{"ssmParameter": "/images/ours"}])

    assert api_server.create(with_field(own, "amiFamily", "AL2023")).accepted


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        (NODE_POOL, kinds.NODE_POOL),
        (NODE_CLAIM, kinds.NODE_CLAIM),
        (NODE_OVERLAY, kinds.NODE_OVERLAY),
        (CAPACITY_BUFFER, kinds.CAPACITY_BUFFER),
        (EC2_NODE_CLASS, kinds.EC2_NODE_CLASS),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_defaults_of_the_schema_equal_those_of_the_controller(
    api_server: ApiServer, wire: dict[str, Any], kind: kinds.Kind[Any]
) -> None:
    filled = msgspec.convert(api_server.create(wire).body, kind.type)
    assumed = msgspec.convert(wire, kind.type)

    assert filled.spec == assumed.spec


def test_defaults_are_visible_in_the_schema(api_server: ApiServer) -> None:
    pool = api_server.create(with_field(NODE_POOL, "disruption", {})).body["spec"]
    node_class = api_server.create(with_field(EC2_NODE_CLASS, "metadataOptions", {})).body["spec"]

    assert pool["disruption"] == {
        "budgets": [{"nodes": "10%"}],
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
    }
    assert pool["template"]["spec"]["expireAfter"] == "720h"
    assert node_class["metadataOptions"] == {
        "httpEndpoint": "enabled",
        "httpProtocolIPv6": "disabled",
        "httpPutResponseHopLimit": 1,
        "httpTokens": "required",
    }


@pytest.mark.parametrize("name", sorted(SAMPLES | EXAMPLES))
def test_every_sample_is_accepted_and_has_no_problems(api_server: ApiServer, name: str) -> None:
    for wire in yaml.safe_load_all((SAMPLES | EXAMPLES)[name]):
        answer = api_server.create(wire)

        assert answer.accepted, answer.message
        if wire["kind"] == "NodePool":
            assert validation.problems(msgspec.convert(answer.body, NodePool)) == []
