"""A recorded world gives the answers of the cluster, also without names."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.apifront import kubeconfig
from bench.parity.worlds import mixed_world, node_pool, pod
from controller.apis import kinds, labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.errors import ApiError, ForbiddenError, NotFoundError
from controller.apiserver.fake import FakeApiServer
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClassNotReadyError,
    ThrottledError,
)
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.methods.order import decide
from controller.offline.commandline import CommandError, Progress, messages
from controller.offline.disrupt import problem_of
from controller.offline.instancetypes import from_rows
from controller.offline.record.command import access_of, record_cluster
from controller.offline.record.redacting import redact
from controller.offline.world import KINDS, NO_NODE_POOL, load
from controller.options import FeatureGates, Options
from controller.scheduling.scheduler import schedule
from tests.builders import make_nodeclass
from tests.disruption.clusters import underused
from tests.disruption.test_consolidation import LARGE, NOW, SMALL, pods, problem, world

World = dict[str, Any]
OPTIONS = Options(cluster_name="joiner")
SECRET = "hunter2"


@pytest.mark.parametrize("environ", [{}, {"KUBECONFIG": ""}])
def test_without_a_kubeconfig_the_default_one_is_read(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    default = tmp_path / ".kube" / "config"
    default.parent.mkdir()
    default.write_text(kubeconfig("http://127.0.0.1:1"))

    assert access_of({**environ, "HOME": str(tmp_path)}).server == "http://127.0.0.1:1"


class InstanceTypeSource:
    """Offers the instance types of a world."""

    region = "us-west-2"
    price_error = ""

    def __init__(self, sold: World) -> None:
        self._sold = from_rows(sold["instanceTypes"])
        self.is_shut_down = False

    async def start(self) -> None: ...

    async def shutdown(self) -> None:
        self.is_shut_down = True

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        name = node_pool.metadata.name if node_pool is not None else NO_NODE_POOL
        return self._sold.by_node_pool([name])[name]


def cluster(of: World) -> FakeApiServer:
    """Return an API server that holds what a world does."""
    api = FakeApiServer()
    api.seed(make_nodeclass())
    for key, rows in of.items():
        if key in KINDS:
            api.seed(*msgspec.convert(rows, list[KINDS[key]]))  # type: ignore[valid-type]
    return api


async def record(of: World, said: list[str] | None = None) -> World:
    heard: list[str] = [] if said is None else said
    written = await record_cluster(cluster(of), InstanceTypeSource(of), OPTIONS, heard.append)
    return json.loads(json.dumps(written))  # type: ignore[no-any-return]


def decided(of: World) -> list[tuple[Any, ...]]:
    """Return what would be decided, without names."""
    decision = decide(problem(of))
    return [
        (
            command.reason,
            len(command.candidates),
            [new.instance_types for new in command.replacements],
            [len(keys) for keys in command.moves.values()],
            pytest.approx(command.saving),
        )
        for command in decision.commands
    ] + [len(decision.blocked)]  # type: ignore[list-item]


def placed(of: World) -> tuple[Any, ...]:
    """Return where pods that wait would go, without names."""
    read = load(of)
    results = schedule(read.pods, snapshot=read.snapshot)
    nodes = [(node.instance_types, node.price, len(node.pods)) for node in results.new_nodes]
    return nodes, len(results.unschedulable), pytest.approx(results.cost)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_recorded_and_a_redacted_cluster_have_the_same_disruptions(seed: int) -> None:
    original = underused(80, seed)

    written = await record(original)

    assert decided(written) == decided(original)
    assert decided(redact(written)) == decided(original)


@pytest.mark.parametrize("seed", [3, 4])
async def test_pods_of_a_recorded_cluster_schedule_as_in_the_cluster(seed: int) -> None:
    original = mixed_world(100, seed)

    written = await record(original)

    assert placed(written) == placed(original)
    assert placed(redact(written)) == placed(original)


def private() -> World:
    """A cluster in which every name that a user chose must be redacted."""
    web = pod("acme-web-0", cpu=100, memory=100, labels={"app.kubernetes.io/name": "acme-shop"})
    web["metadata"]["namespace"] = "acme-prod"
    web["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": SECRET,
        labels.DO_NOT_DISRUPT: "true",
    }
    web["spec"]["containers"][0] |= {
        "image": "acme.example/shop:1",
        "env": [{"name": "PASSWORD", "value": SECRET}],
        "command": ["shop", f"--password={SECRET}"],
    }
    web["spec"]["nodeSelector"] = {"example.com/team": "acme-team"}
    web["spec"]["volumes"] = [
        {"name": "acme-scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "s", "secret": {"secretName": SECRET}},
    ]
    claim = {
        "metadata": {"name": "acme-web-0-acme-scratch", "namespace": "acme-prod"},
        "spec": {"volumeName": "acme-volume"},
    }
    cluster = world(
        ("acme-node", "small", [web]),
        pools=[node_pool("acme-pool", labels={"example.com/team": "acme-team"})],
        persistentVolumeClaims=[claim],
        namespaces=[
            {
                "metadata": {
                    "name": "acme-prod",
                    "labels": {"kubernetes.io/metadata.name": "acme-prod"},
                }
            }
        ],
    )
    for node in cluster["nodes"]:
        node["metadata"]["labels"]["example.com/team"] = "acme-team"
    return cluster


async def test_secrets_images_and_unused_fields_are_never_recorded() -> None:
    text = json.dumps(await record(private()))

    assert SECRET not in text
    assert "acme.example" not in text
    assert labels.DO_NOT_DISRUPT in text


async def test_a_redacted_world_does_not_identify_its_cluster() -> None:
    written = redact(await record(private()))

    assert "acme" not in json.dumps(written)
    (web,) = written["pods"]
    (node,) = written["nodes"]
    (space,) = written["namespaces"]
    (claim,) = written["persistentVolumeClaims"]
    team = web["spec"]["nodeSelector"]["example.com/team"]
    assert web["spec"]["nodeName"] == node["metadata"]["name"]
    assert node["metadata"]["labels"]["example.com/team"] == team
    assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "zone-a"
    assert space["metadata"]["labels"]["kubernetes.io/metadata.name"] == space["metadata"]["name"]
    assert claim["metadata"]["namespace"] == web["metadata"]["namespace"]
    volume = web["spec"]["volumes"][0]["name"]
    assert claim["metadata"]["name"] == f"{web['metadata']['name']}-{volume}"


def test_a_redacted_world_has_tokens_for_the_labels_that_user_data_sets() -> None:
    original = private()
    team = {"key": "example.com/team", "operator": "In", "values": ["acme-team"]}
    for row in original["instanceTypes"]:
        row["requirements"] = [*row["requirements"], team]

    written = redact(original)

    assert "acme" not in json.dumps(written["instanceTypes"])
    (web,) = written["pods"]
    assert {
        tuple(term["values"])
        for row in written["instanceTypes"]
        for term in row["requirements"]
        if term["key"] == "example.com/team"
    } == {(web["spec"]["nodeSelector"]["example.com/team"],)}


def volumes() -> World:
    """A pod for each kind of fact about volumes that decides where it goes."""
    original = world(pools=[node_pool("a")])
    storage = {"resources": {"requests": {"storage": "5Gi"}}, "accessModes": ["ReadWriteOnce"]}
    chosen = {"volume.kubernetes.io/selected-node": "acme-node"}
    labelled = {"topology.kubernetes.io/zone": "us-west-2b"}
    drivers = [{"name": "ebs", "nodeID": "i", "allocatable": {"count": 1}}]
    zone = {"topology.kubernetes.io/zone": "us-west-2a"}
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    nodes = ("acme-early", "acme-node")

    def claim(name: str, volume: str = "", **metadata: Any) -> World:
        spec = {**storage, "storageClassName": f"class-of-{name}", "volumeName": volume}
        status = {"phase": "Bound" if volume else "Pending"}
        own = {"name": name, "namespace": "default", **metadata}
        return {"metadata": own, "spec": spec, "status": status}

    def volume(name: str, driver: str, **metadata: Any) -> World:
        source = {"csi": {"driver": driver, "volumeHandle": f"vol-{name}"}}
        return {"metadata": {"name": name, **metadata}, "spec": source}

    def storage_class(name: str, provisioner: str) -> World:
        late = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": provisioner}
        return {"metadata": {"name": f"class-of-{name}"}, **late}

    def pod(name: str) -> World:
        mounted = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
        return {
            "metadata": {"name": f"uses-{name}", "namespace": "default"},
            "spec": {"containers": [{"name": "app"}], "volumes": mounted},
            "status": {"phase": "Pending", "conditions": [waiting]},
        }

    return {
        **original,
        "nodes": [
            {
                "metadata": {"name": name, "labels": zone},
                "spec": {"providerID": f"aws:///us-west-2a/i-{name}"},
                "status": {
                    "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "20"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            for name in nodes
        ],
        "pods": [pod(name) for name in ("selected", "labelled", "limited", "tracked")],
        "persistentVolumeClaims": [
            claim("selected", annotations=chosen),
            claim("labelled", "v1"),
            claim("limited", "v2"),
            claim("tracked"),
        ],
        "persistentVolumes": [
            volume("v1", "other", labels=labelled),
            volume("v2", "ebs"),
            volume("v3", "ebs"),
        ],
        "storageClasses": [storage_class("selected", "other"), storage_class("tracked", "lvm")],
        "csiNodes": [{"metadata": {"name": name}, "spec": {"drivers": drivers}} for name in nodes],
        "csiDrivers": [{"metadata": {"name": "lvm"}, "spec": {"storageCapacity": True}}],
        "csiStorageCapacities": [
            {
                "metadata": {"name": "c", "namespace": "default"},
                "storageClassName": "class-of-tracked",
                "nodeTopology": {"matchLabels": zone},
                "capacity": "1Gi",
            }
        ],
        "volumeAttachments": [
            {
                "metadata": {"name": f"of-{name}"},
                "spec": {
                    "attacher": "ebs",
                    "nodeName": name,
                    "source": {"persistentVolumeName": "v3"},
                },
            }
            for name in nodes
        ],
    }


async def test_facts_about_volumes_are_recorded_and_redacted() -> None:
    original = volumes()
    written = await record(original)

    def on_nodes(of: World) -> list[int]:
        read = load(of)
        placed = schedule(read.pods, snapshot=read.snapshot).existing_nodes
        return [len(placed.get(node.name, ())) for node in read.snapshot.nodes]

    # Only the pod whose claim has the second node selected goes to an existing node.
    assert [on_nodes(each) for each in (original, written, redact(written))] == [[0, 1]] * 3
    assert placed(redact(written)) == placed(written) == placed(original)
    assert "acme" not in json.dumps(redact(written))


async def test_redaction_keeps_compared_numbers() -> None:
    gpus = {"key": "example.com/slots", "operator": "Gt", "values": ["4"]}
    original = world(pools=[node_pool("a", requirements=[gpus])])

    written = redact(await record(original))

    (pool,) = written["nodePools"]
    assert pool["spec"]["template"]["spec"]["requirements"][0]["values"] == ["4"]


async def test_instance_types_are_recorded_per_pool_if_pools_differ() -> None:
    original = world(pools=[node_pool("a"), node_pool("b")])
    original["instanceTypes"] = [{**SMALL, "nodePools": ["a"]}, {**LARGE, "nodePools": ["b"]}]

    seen = load(redact(await record(original))).snapshot.instance_types

    assert [[instance_type.name for instance_type in types] for types in seen.values()] == [
        ["small"],
        ["large"],
    ]


async def test_unreadable_kinds_are_reported_and_left_out() -> None:
    said: list[str] = []
    original = world(("a", "small", pods("web", 1)))
    api = cluster(original)
    api.refuse("list", ForbiddenError("not allowed", status=403), kind=kinds.CSI_NODE)
    written = await record_cluster(api, InstanceTypeSource(original), OPTIONS, said.append)

    assert "csiNodes" not in written
    (warning,) = [sentence for sentence in said if not isinstance(sentence, Progress)]
    assert warning == "cannot list csinodes; the world will have none: not allowed"
    assert load(written).node_pools
    assert "pods: 1" in said


class Terminal(io.StringIO):
    """A terminal that keeps what was written to it."""

    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_of_a_terminal_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)

    with messages() as write:
        write(Progress("pods: 41"))
        write("cannot list csinodes")
        write(Progress("nodes: 18"))

    written = terminal.getvalue()
    assert written.count("\n") <= 3, "the lines before and after progress, and the warning"
    assert "cannot list csinodes" in written
    assert written.endswith("\x1b[1A\x1b[2K"), "progress is erased"


def test_without_a_terminal_only_warnings_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with messages() as write:
        write(Progress("pods: 41"))
        write("cannot list csinodes")

    assert capsys.readouterr().err == "cannot list csinodes\n"


async def test_the_recorded_world_has_the_eviction_cost_settings_of_the_cluster() -> None:
    original = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3)))
    dear = Options(cluster_name="joiner", disruption_eviction_price=1000.0)

    written = await record_cluster(
        cluster(original), InstanceTypeSource(original), dear, lambda text: None
    )

    asked = problem_of(load(redact(written)), now=NOW, with_eviction_cost=True)
    assert asked.settings.eviction_price == 1000.0
    assert not decide(asked).commands


async def test_recording_fails_without_permission_to_list_pods() -> None:
    original = world(("a", "small", []))
    api = cluster(original)
    api.refuse("list", ForbiddenError("not allowed", status=403), kind=kinds.POD)

    with pytest.raises(CommandError, match="cannot list pods"):
        await record_cluster(api, InstanceTypeSource(original), OPTIONS, lambda text: None)


async def test_recording_with_refused_credentials_says_what_to_do() -> None:
    original = world(("a", "small", []))
    api = cluster(original)
    api.refuse("list", ApiError("Unauthorized", status=401), kind=kinds.POD)

    with pytest.raises(CommandError, match="log in again"):
        await record_cluster(api, InstanceTypeSource(original), OPTIONS, lambda text: None)


class Failing(InstanceTypeSource):
    """Offers no instance types because of an error."""

    def __init__(self, sold: World, error: CloudProviderError) -> None:
        super().__init__(sold)
        self._error = error

    async def start(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "todo"),
    [
        (
            CloudProviderError("Unable to locate credentials", remedy="give the service account"),
            "your own AWS credentials: set AWS_PROFILE or run `aws sso login`, and allow "
            "ec2:DescribeInstanceTypes, ec2:DescribeInstanceTypeOfferings, "
            "ec2:DescribeSpotPriceHistory and pricing:GetProducts",
        ),
        (ThrottledError("Request limit exceeded"), "try again in a minute"),
    ],
)
async def test_without_instance_types_the_command_refuses_and_names_the_rights_of_the_user(
    error: CloudProviderError, todo: str
) -> None:
    original = world(("a", "small", []))
    market = Failing(original, error)

    with pytest.raises(CommandError) as raised:
        await record_cluster(cluster(original), market, OPTIONS, lambda text: None)

    assert error.problem in str(raised.value)
    assert str(raised.value).endswith(todo)
    assert "service account" not in str(raised.value)
    assert market.is_shut_down


async def test_without_prices_the_command_refuses() -> None:
    original = world(("a", "small", []))
    market = InstanceTypeSource(original)
    market.price_error = "get_products: not authorized"

    with pytest.raises(CommandError, match=r"not authorized; .* pricing:GetProducts"):
        await record_cluster(cluster(original), market, OPTIONS, lambda text: None)


async def test_a_nodepool_that_is_not_ready_refuses_nothing() -> None:
    original = world(("a", "small", []))
    market, said = InstanceTypeSource(original), list[str]()

    async def unresolved(node_class: EC2NodeClass, node_pool: NodePool | None = None) -> Any:
        raise NodeClassNotReadyError("its subnets are not resolved yet")

    market.instance_types = unresolved  # type: ignore[method-assign]
    written = await record_cluster(cluster(original), market, OPTIONS, said.append)

    assert written["instanceTypes"] == []
    assert "NodePool general has no instance types: its subnets are not resolved yet" in said


class Slow(InstanceTypeSource):
    """Answers after 30 seconds."""

    async def start(self) -> None:
        await asyncio.sleep(30)


@pytest.mark.virtual_clock
async def test_a_command_says_that_it_waits_for_aws_and_ends_at_its_time_limit() -> None:
    original = world(("a", "small", []))
    said: list[str] = []

    with pytest.raises(CommandError, match=r"AWS has not returned .* within 20 s"):
        await record_cluster(cluster(original), Slow(original), OPTIONS, said.append, seconds=20)

    assert asyncio.get_running_loop().time() == pytest.approx(20)
    assert any(sentence.startswith("waiting for AWS") for sentence in said)
    assert await record_cluster(cluster(original), Slow(original), OPTIONS, said.append, seconds=60)


async def test_instance_types_of_another_region_than_the_nodes_are_not_read() -> None:
    original = world(("a", "small", []))
    original["nodes"][0]["metadata"]["labels"][labels.REGION] = "eu-central-1"

    with pytest.raises(CommandError, match=r"the nodes are in eu-central-1.*set AWS_REGION"):
        await record(original)

    original["nodes"][0]["metadata"]["labels"][labels.REGION] = "us-west-2"
    assert (await record(original))["instanceTypes"]


class Bare(FakeApiServer):
    """A cluster without Karpenter's kinds."""

    async def list(self, kind: kinds.Kind[Any], **options: Any) -> Any:
        if "karpenter" in kind.api_version:
            raise NotFoundError("the server could not find the requested resource", status=404)
        return await super().list(kind, **options)


class Seller(InstanceTypeSource):
    """Offers every instance type, and records for which EC2NodeClass."""

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        self.asked = node_class
        return self._sold.all


async def test_a_cluster_without_karpenter_is_recorded_with_the_types_of_its_zones() -> None:
    original = world(("a", "small", pods("web", 1)))
    api, market = Bare(), Seller(original)
    api.seed(*msgspec.convert(original["nodes"], list[Node]))
    said: list[str] = []

    written = await record_cluster(api, market, OPTIONS, said.append)

    assert [kind["name"] for kind in written["instanceTypes"]] == ["small", "large"]
    assert [subnet.zone for subnet in market.asked.status.subnets] == ["zone-a"]
    assert market.asked.spec.resolved_ami_family == "AL2023"
    assert any("no NodePool: instance types for AL2023" in each for each in said)


async def test_an_object_that_a_world_cannot_have_is_reported_and_left_out() -> None:
    original = world(("a", "small", pods("web", 1)))
    negative = node_pool("negative")
    negative["spec"]["limits"] = {"cpu": "-1"}
    original["nodePools"].append(negative)
    said: list[str] = []

    written = await record(original, said)

    assert "negative" not in [pool.metadata.name for pool in load(written).node_pools]
    assert [pool.metadata.name for pool in load(written).node_pools]
    (fault,) = [sentence for sentence in said if "limits" in sentence]
    assert "negative: spec.limits.cpu: '-1' is negative" in fault
    assert fault.endswith("the world is without this object")


async def test_objects_that_the_controller_ignores_are_reported_and_left_out() -> None:
    original = world(("a", "small", pods("web", 1)))
    original["podTemplates"] = [
        {"metadata": {"name": "web", "namespace": "default"}, "template": {"spec": {}}}
    ]
    original["capacityBuffers"] = [
        make_capacity_buffer("good", podTemplateRef={"name": "web"}, replicas=2),
        make_capacity_buffer("untemplated", podTemplateRef={"name": "gone"}, replicas=2),
        make_capacity_buffer("foreign", provisioningStrategy="other.io/x", replicas=2),
    ]
    original["nodeOverlays"] = [
        {"metadata": {"name": "cheap"}, "spec": {"price": "0.01"}},
        {"metadata": {"name": "dear"}, "spec": {"price": "99999999"}},
    ]
    said: list[str] = []

    gates = FeatureGates(node_overlay=True, capacity_buffer=True)
    options = Options(cluster_name="joiner", feature_gates=gates)
    written = await record_cluster(
        cluster(original), InstanceTypeSource(original), options, said.append
    )

    assert len(load(written).buffer_pods) == 2
    assert [row["metadata"]["name"] for row in written["nodeOverlays"]] == ["cheap"]
    ending = "; the controller ignores this object, and the world is without it"
    faults = [sentence.removesuffix(ending) for sentence in said if sentence.endswith(ending)]
    assert [fault.split(":")[0] for fault in faults] == [
        "nodeOverlays dear",
        "capacityBuffers default/untemplated",
    ]
    assert faults[1].endswith('PodTemplate "default/gone" does not exist')


def test_a_world_may_have_buffers_that_another_controller_provisions() -> None:
    buffer = make_capacity_buffer("foreign", provisioningStrategy="other.io/x", replicas=2)

    assert load(world() | {"capacityBuffers": [buffer]}).buffer_pods == ()


def make_capacity_buffer(name: str, **spec: Any) -> World:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
