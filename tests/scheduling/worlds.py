"""Worlds by seed: JSON objects in the world format, for properties and for measuring."""

from __future__ import annotations

import random
from typing import Any

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
ARCH = "kubernetes.io/arch"
FAMILY = "karpenter.k8s.aws/instance-family"
World = dict[str, Any]


def pod(name: str, cpu: int, memory: int, app: str, **spec: Any) -> World:
    """A waiting pod: millicores and MiB."""
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}], **spec},
    }


def node_pool(name: str, weight: int = 0, requirements: Any = (), taints: Any = ()) -> World:
    """A NodePool."""
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    template = {
        "nodeClassRef": reference,
        "requirements": list(requirements),
        "taints": list(taints),
    }
    return {
        "metadata": {"name": name},
        "spec": {"weight": weight, "template": {"spec": template}},
    }


def within(key: str, *values: str) -> World:
    """An `In` term."""
    return {"key": key, "operator": "In", "values": list(values)}


def types(chance: random.Random, *, dry_zones: bool = True) -> list[World]:
    """Seventy types: three families by two architectures, spot and on-demand, three zones."""
    per_cpu = {"c": 2, "m": 4, "r": 8}
    price_of = {"c": 0.0425, "m": 0.048, "r": 0.063}
    found = []
    for family, gib in per_cpu.items():
        for arch, generation, discount in (
            ("amd64", "6i", 1.0),
            ("arm64", "7g", 0.83),
            ("amd64", "5a", 0.92),
        ):
            for cpu in (1, 2, 4, 8, 16, 32, 48, 64):
                name = f"{family}{generation}.{cpu}"
                price = price_of[family] * cpu * discount
                offerings = []
                for zone in ZONES:
                    offerings.append(_offering(zone, "on-demand", price, True))
                    cheap = round(price * chance.uniform(0.28, 0.55), 5)
                    offerings.append(
                        _offering(zone, "spot", cheap, not dry_zones or chance.random() > 0.25)
                    )
                found.append(
                    {
                        "name": name,
                        "requirements": [
                            within("node.kubernetes.io/instance-type", name),
                            within(ARCH, arch),
                            within("kubernetes.io/os", "linux"),
                            within(FAMILY, family + generation),
                        ],
                        "offerings": offerings,
                        "capacity": {
                            "cpu": str(cpu),
                            "memory": f"{gib * cpu}Gi",
                            "pods": str(min(110, 15 + 8 * cpu)),
                        },
                        "overhead": {"cpu": "80m", "memory": f"{255 + 11 * min(110, 29)}Mi"},
                    }
                )
    return found


def _offering(zone: str, capacity_type: str, price: float, available: bool) -> World:
    return {
        "requirements": {ZONE: zone, CAPACITY_TYPE: capacity_type},
        "price": price,
        "available": available,
    }


def mixed_world(seed: int, count: int) -> World:
    """Several pools, spot and on-demand, groups with every common constraint, a DaemonSet."""
    chance = random.Random(seed)
    pods: list[World] = []
    groups = max(6, count // 40)
    for number in range(groups):
        size = count // groups + (number < count % groups)
        app = f"app-{number:04d}"
        cpu = chance.choice((100, 250, 500, 1000, 2000, 4000))
        memory = int(cpu * chance.choice((1, 2, 2, 4, 4, 8)) * 1.024)
        spec = _group_spec(chance, app)
        pods.extend(pod(f"{app}-{index:05d}", cpu, memory, app, **spec) for index in range(size))
    chance.shuffle(pods)
    return {
        "pods": pods,
        "nodePools": [
            node_pool("general", 10, [within(CAPACITY_TYPE, "spot", "on-demand")]),
            node_pool(
                "batch",
                0,
                [within(CAPACITY_TYPE, "spot")],
                [{"key": "batch", "value": "true", "effect": "NoSchedule"}],
            ),
        ],
        "daemonSets": [
            {
                "metadata": {"name": "agent", "namespace": "kube-system"},
                "spec": {
                    "template": {
                        "spec": pod("agent", 100, 128, "agent")["spec"]
                        | {"tolerations": [{"operator": "Exists"}]}
                    }
                },
            }
        ],
        "instanceTypes": types(chance),
    }


def _group_spec(chance: random.Random, app: str) -> World:
    spec: World = {}
    labels = {"matchLabels": {"app": app}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    draw = chance.random()
    if draw < 0.12:
        spec["nodeSelector"] = {CAPACITY_TYPE: "on-demand"}
    elif draw < 0.2:
        spec["nodeSelector"] = {ARCH: chance.choice(("amd64", "arm64"))}
    elif draw < 0.28:
        spec["nodeSelector"] = {ZONE: chance.choice(ZONES)}
    elif draw < 0.34:
        terms = [{"matchExpressions": [within(FAMILY, chance.choice(("c6i", "m6i", "r6i")))]}]
        spec["affinity"] = {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}
    elif draw < 0.42:
        spec["tolerations"] = [{"key": "batch", "operator": "Exists"}]
    draw = chance.random()
    if draw < 0.2:
        spec["topologySpreadConstraints"] = [_spread(ZONE, 1, labels)]
    elif draw < 0.3:
        spec["topologySpreadConstraints"] = [_spread(HOSTNAME, chance.choice((1, 2, 4)), labels)]
    elif draw < 0.38:
        spec.setdefault("affinity", {})["podAntiAffinity"] = {
            required: [{"topologyKey": HOSTNAME, "labelSelector": labels}]
        }
    elif draw < 0.44:
        spec.setdefault("affinity", {})["podAffinity"] = {
            required: [{"topologyKey": ZONE, "labelSelector": labels}]
        }
    return spec


def _spread(key: str, skew: int, labels: World) -> World:
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": labels,
    }


def diverse_pods(seed: int, count: int) -> list[World]:
    """Karpenter's benchmark mix: five sorts of pods in equal parts."""
    chance = random.Random(seed)

    def value() -> str:
        return chance.choice("abcdefg")

    def one(name: str, labels: dict[str, str], **spec: Any) -> World:
        cpu = chance.choice((100, 250, 500, 1000, 1500))
        memory = chance.choice((100, 256, 512, 1024, 2048, 4096))
        made = pod(name, cpu, memory, "", **spec)
        made["metadata"]["labels"] = labels
        return made

    required = "requiredDuringSchedulingIgnoredDuringExecution"
    pods = []
    part = count // 5
    for index in range(count - 4 * part):
        pods.append(one(f"generic-{index}", {"my-label": value()}))
    for sort, key in (("zone", ZONE), ("host", HOSTNAME)):
        for index in range(part):
            labels = {"matchLabels": {"my-label": value()}}
            pods.append(
                one(
                    f"{sort}-{index}",
                    {"my-label": value()},
                    topologySpreadConstraints=[_spread(key, 1, labels)],
                )
            )
    for index in range(part):
        own = {"my-affininity": value()}
        term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": own}}
        pods.append(one(f"near-{index}", own, affinity={"podAffinity": {required: [term]}}))
    for index in range(part):
        own = {"app": "nginx"}
        term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": own}}
        pods.append(one(f"far-{index}", own, affinity={"podAntiAffinity": {required: [term]}}))
    return pods


def fake_types(count: int) -> list[World]:
    """The types of Karpenter's benchmark: 1 CPU, 2 GiB and 10 pods more each."""
    found = []
    for number in range(1, count + 1):
        price = 0.1 * number + 0.1 * number * 2 * 2**30 / 1e9
        places = (
            ("test-zone-1", "spot"),
            ("test-zone-2", "spot"),
            ("test-zone-1", "on-demand"),
            ("test-zone-2", "on-demand"),
            ("test-zone-3", "on-demand"),
        )
        found.append(
            {
                "name": f"fake-it-{number - 1}",
                "requirements": [
                    within("node.kubernetes.io/instance-type", f"fake-it-{number - 1}"),
                    within(ARCH, "amd64"),
                    within("kubernetes.io/os", "linux", "windows"),
                ],
                "offerings": [_offering(zone, sort, price, True) for zone, sort in places],
                "capacity": {
                    "cpu": str(number),
                    "memory": f"{2 * number}Gi",
                    "pods": str(10 * number),
                },
                "overhead": {"cpu": "100m", "memory": "10Mi"},
            }
        )
    return found


def diverse_world(seed: int, count: int, types_: int = 400) -> World:
    """Karpenter's benchmark: the diverse pods, one pool, its made-up types."""
    return {
        "pods": diverse_pods(seed, count),
        "nodePools": [node_pool("default")],
        "instanceTypes": fake_types(types_),
    }


def sized_pods(seed: int, count: int, shapes: int = 50) -> list[World]:
    """Plain pods in so many shapes of CPU and memory."""
    chance = random.Random(seed)
    sizes = []
    for _ in range(shapes):
        cpu = chance.choice((100, 250, 500, 1000, 2000, 4000, 8000))
        sizes.append((cpu, int(cpu * chance.choice((0.5, 1, 2, 4, 8)) * 1.024)))
    return [
        pod(f"pod-{index:06d}", *sizes[chance.randrange(shapes)], app="plain")
        for index in range(count)
    ]
