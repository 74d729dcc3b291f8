"""Pods with ResourceClaims on a real control plane: kube-scheduler must allocate as planned.

Nodes are created as the answer requests them, each with the ResourceSlices that the drivers of its
instance type would publish. The pods of a node are released in the order of the answer, because
kube-scheduler decides at binding which of several devices a pod gets, and no plan holds for every
order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest

from bench.parity import comparison, worlds
from bench.parity.livecluster import LiveCluster, elsewhere, plan, until
from testbed.kube.client import KubeClient
from testbed.region.cluster import Cluster
from tests.oracle.nodeinfos import NodeInfo

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

DRIVER = "gpu.example.com"
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        directory=tmp_path_factory.mktemp("devices") / "cluster", name="devices"
    ) as started:
        yield started


@pytest.fixture
async def stage(kube: KubeClient) -> AsyncIterator[LiveCluster]:
    stage = LiveCluster(kube)
    yield stage
    await stage.clear()
    for kind in ("resourceslices", "resourceclaims", "deviceclasses", "devicetaintrules"):
        await stage.remove(f"{GROUP}/{kind}")


# Worlds with devices.


def card(name: str, model: str, numa: int, **more: Any) -> Object:
    """A GPU: its model, the half of the node it is in, 40Gi of memory."""
    return {
        "name": name,
        "attributes": {
            "model": {"string": model},
            "numa": {"int": numa},
            "driverVersion": {"version": "12.4.1"},
        },
        "capacity": {"memory": {"value": "40Gi"}},
        **more,
    }


def part(name: str, size: int) -> Object:
    """A partition of the card `c`, which has four slices."""
    taken = {"counterSet": "c", "counters": {"slices": {"value": str(size)}}}
    return card(name, f"part-{size}", 0, consumesCounters=[taken])


WORN = {"key": "worn", "effect": "NoSchedule"}
HARDWARE: Mapping[str, tuple[list[Object], list[Object]]] = {
    "none": ([], []),
    "one": ([card("g0", "a100", 0)], []),
    "four": ([card(f"g{n}", "a100", n // 2) for n in range(4)], []),
    "mixed": ([card(f"g{n}", "h100" if n else "a100", n % 2) for n in range(4)], []),
    "parts": (
        [part("whole", 4), part("half-0", 2), part("half-1", 2), part("rest", 1)],
        [{"name": "c", "counters": {"slices": {"value": "4"}}}],
    ),
    "shared": ([card("nic", "nic", 0, allowMultipleAllocations=True)], []),
    "worn": (
        [
            card("g0", "a100", 0, taints=[{"key": "worn", "effect": "NoSchedule"}]),
            card("g1", "a100", 1),
        ],
        [],
    ),
}
PRICES = {
    "none": 0.1,
    "one": 1.0,
    "four": 3.0,
    "mixed": 4.5,
    "parts": 2.0,
    "shared": 0.7,
    "worn": 1.2,
}


def instance_type(name: str) -> Object:
    devices, counters = HARDWARE[name]
    pool = {"name": "own"}
    templates = [{"driver": DRIVER, "pool": pool, "devices": devices}] if devices else []
    if counters:
        templates.append({"driver": DRIVER, "pool": pool, "sharedCounters": counters})
    bare = worlds.instance_type(
        name,
        cpu=32,
        memory_gib=128,
        pods=110,
        offerings=[worlds.offering(zone, "on-demand", PRICES[name]) for zone in ("a", "b")],
    )
    return {**bare, "dynamicResources": {"resourceSliceTemplates": templates}}


def slices(node: str, name: str) -> list[Object]:
    """Return the ResourceSlices that the driver publishes on a node of a type."""
    templates = instance_type(name)["dynamicResources"]["resourceSliceTemplates"]
    return [
        {
            "metadata": {"name": f"{node}-{number}"},
            "spec": {
                "driver": DRIVER,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": len(templates)},
                "nodeName": node,
                **{key: template[key] for key in ("devices", "sharedCounters") if key in template},
            },
        }
        for number, template in enumerate(templates)
    ]


def asked(count: int = 1, *, of: str = "gpu", **more: Any) -> Object:
    """A request."""
    exactly = {"deviceClassName": of, "allocationMode": "ExactCount", "count": count, **more}
    return {"name": "gpu", "exactly": exactly}


def where(condition: str) -> Object:
    return {"selectors": [{"cel": {"expression": condition}}]}


def model(name: str) -> Object:
    return where(f"device.attributes['{DRIVER}'].model == '{name}'")


NUMA = [{"matchAttribute": f"{DRIVER}/numa"}]
SIDES = [{"distinctAttribute": f"{DRIVER}/numa"}]
KINDS: Sequence[tuple[Object, list[Object]]] = (
    (asked(), []),
    (asked(2, **model("a100")), []),
    (asked(2), NUMA),
    (asked(2), SIDES),
    (asked(**model("h100")), []),
    ({"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}, []),
    (asked(of="part", **where(f"device.attributes['{DRIVER}'].model == 'part-2'")), []),
    (asked(of="part", **where(f"device.attributes['{DRIVER}'].model.endsWith('-4')")), []),
    (asked(of="nic", capacity={"requests": {"memory": "15Gi"}}), []),
    (asked(tolerations=[{"key": "worn", "operator": "Exists"}]), []),
    (
        asked(
            **where(
                f"cel.bind(gpu, device.attributes['{DRIVER}'], "
                "gpu.driverVersion.isGreaterThan(semver('12.0.0')) && gpu.?numa.orValue(9) == 1)"
            )
        ),
        [],
    ),
    (
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "best", **asked(2, **model("h100"))["exactly"]},
                {"name": "good", **asked(3, **model("a100"))["exactly"]},
            ],
        },
        [],
    ),
)
CLASSES = [
    {"metadata": {"name": name}, "spec": where(condition)}
    for name, condition in (
        (
            "gpu",
            f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].model.matches('100$')",
        ),
        ("part", f"device.attributes['{DRIVER}'].model.startsWith('part-')"),
        ("nic", "device.allowMultipleAllocations == true"),
    )
]


TAINT_RULES = [
    {
        "metadata": {"name": "worn"},
        "spec": {"deviceSelector": {"driver": DRIVER, "device": "g3"}, "taint": WORN},
    }
]


def claim(name: str, request: Object, constraints: list[Object]) -> Object:
    devices: Object = {"requests": [request]}
    if constraints:
        devices["constraints"] = constraints
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}


def world(seed: int) -> Object:
    """Twelve pods with a claim of their own, three that share one, and four without any."""
    chance = random.Random(seed)
    claims, pods = [], []
    for number in range(12):
        request, constraints = KINDS[(seed * 5 + number) % len(KINDS)]
        claims.append(claim(f"c{number}", request, constraints))
        uses = [{"name": "gpu", "resourceClaimName": f"c{number}"}]
        pods.append(
            worlds.pod(
                f"p{number}", cpu=chance.choice((500, 2000)), memory=512, resourceClaims=uses
            )
        )
    claims.append(claim("ours", *KINDS[seed % 2]))
    uses = [{"name": "gpu", "resourceClaimName": "ours"}]
    pods += [worlds.pod(f"ours-{n}", cpu=500, memory=256, resourceClaims=uses) for n in range(3)]
    pods += [worlds.pod(f"plain-{n}", cpu=1000, memory=256) for n in range(4)]
    name = chance.choice(("four", "mixed", "parts"))
    size = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": "there", "kubernetes.io/os": "linux"}
    there = {
        "metadata": {"name": "there", "labels": labels},
        "spec": {},
        "status": {"allocatable": size, "capacity": size},
    }
    return {
        "pods": pods,
        "nodes": [there],
        "nodePools": [worlds.node_pool()],
        "instanceTypes": [instance_type(hardware) for hardware in HARDWARE],
        "resourceClaims": claims,
        "resourceSlices": slices("there", name),
        "deviceClasses": CLASSES,
        "deviceTaintRules": TAINT_RULES if seed % 2 else [],
        "settings": {"IGNORE_DRA_REQUESTS": False},
    }


async def misplaced(stage: LiveCluster, kube: KubeClient, world: Object) -> dict[str, str]:
    """Replay Joiner's answer to a world; return the pods that are not bound as planned, and why."""
    answer = comparison.ours(world)
    assert not answer["unschedulable"], answer["unschedulable"]
    node_infos, expected = plan(world, answer)
    for wire in CLASSES:
        await kube.create(f"{GROUP}/deviceclasses", wire)
    for wire in world["deviceTaintRules"]:
        await kube.create(f"{GROUP}/devicetaintrules", wire)
    for wire in world["resourceClaims"]:
        await kube.create(CLAIMS, wire)
    for wire in [*world["resourceSlices"], *coming(node_infos)]:
        await kube.create(f"{GROUP}/resourceslices", wire)
    await stage.set(world, node_infos)
    pods = {f"default/{pod['metadata']['name']}": pod for pod in world["pods"]}
    await stage.pods(list(pods.values()), gated=True)
    for wave in waves(expected):
        await stage.nominate({key: expected[key] for key in wave})
        await stage.release(wave)
        await until(lambda wave=wave: have(stage, wave), within=SECONDS)  # type: ignore[misc]
    bound, reasons = await stage.bound(), await stage.reasons()
    return {
        key: f"planned for {expected[key]}, bound to {bound.get(key)}: {reasons.get(key, '')}"
        for key in elsewhere(pods, expected, bound)
    }


def coming(node_infos: Sequence[NodeInfo]) -> list[Object]:
    kind = "node.kubernetes.io/instance-type"
    return [
        published
        for node_info in node_infos
        for published in slices(node_info.name, node_info.labels[kind])
    ]


def waves(expected: Mapping[str, str]) -> list[list[str]]:
    """Yield the first pod of each node, then the second, and so on."""
    in_order: list[list[str]] = []
    of_node: Counter[str] = Counter()
    for key, node in expected.items():
        if of_node[node] == len(in_order):
            in_order.append([])
        in_order[of_node[node]].append(key)
        of_node[node] += 1
    return in_order


async def have(stage: LiveCluster, wave: Sequence[str]) -> bool:
    return set(wave) <= (await stage.bound()).keys()


@pytest.mark.parametrize("seed", range(6))
async def test_kube_scheduler_allocates_the_planned_devices(
    stage: LiveCluster, kube: KubeClient, seed: int
) -> None:
    assert await misplaced(stage, kube, world(seed)) == {}


async def test_kube_scheduler_does_not_try_a_pod_whose_claim_does_not_exist(
    kube: KubeClient, stage: LiveCluster
) -> None:
    """Such a pod gets no condition: the controller must find out itself that it is pending."""
    pods = "/api/v1/namespaces/default/pods"
    spec: Object = {"containers": [{"name": "main", "image": "none"}]}
    claims = [{"name": "gpu", "resourceClaimName": "gone"}]
    await kube.create(
        pods, {"metadata": {"name": "claiming"}, "spec": {**spec, "resourceClaims": claims}}
    )
    await kube.create(pods, {"metadata": {"name": "plain"}, "spec": spec})

    async def is_tried() -> bool:
        plain = await kube.get(f"{pods}/plain")
        return bool(plain["status"].get("conditions"))

    assert await until(is_tried, within=SECONDS)
    claiming = await kube.get(f"{pods}/claiming")
    assert "conditions" not in claiming["status"]
