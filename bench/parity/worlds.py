"""Worlds for both engines, generated from seeds: the same seed gives the same world.

A world is the plain JSON of docs/reference/formats.md. Pods are as the API server returns them, so
both engines start from the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

World = dict[str, Any]
Object = dict[str, Any]

ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
ARCH = "kubernetes.io/arch"
FAMILY = "karpenter.k8s.aws/instance-family"

MEMORY_MIB = (100, 256, 512, 1024, 2048, 4096)
CPU_MILLI = (100, 250, 500, 1000, 1500)
LETTERS = "abcdefg"


def pod(
    name: str,
    *,
    cpu: int,
    memory: int,
    labels: Mapping[str, str] | None = None,
    node: str = "",
    **spec: Any,
) -> Object:
    """Return a pod that requests millicores and MiB; with `node` it runs there."""
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    container = {"name": "app", "image": "app", "resources": {"requests": requests}}
    bound = {"nodeName": node} if node else {}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": dict(labels or {}),
        },
        "spec": {"containers": [container], **bound, **spec},
        "status": {"phase": "Running"} if node else {"conditions": [unschedulable]},
    }


def node_pool(name: str = "default", **spec: Any) -> Object:
    """Return a NodePool; `requirements`, `taints` and `labels` go into its template."""
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    labels = spec.pop("labels", {})
    template = {
        "nodeClassRef": reference,
        "requirements": spec.pop("requirements", []),
        "taints": spec.pop("taints", []),
    }
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": template}, **spec},
    }


def requirement(key: str, *values: str, operator: str = "In") -> Object:
    """Return a requirement."""
    return {"key": key, "operator": operator, "values": list(values)}


def instance_type(
    name: str,
    *,
    cpu: int,
    memory_gib: float,
    pods: int,
    offerings: Sequence[Object],
    arch: str = "amd64",
    **labels: str,
) -> Object:
    """Return an instance type with the kubelet overhead of Karpenter's own fakes: 100m and 10Mi."""
    known = {"node.kubernetes.io/instance-type": name, ARCH: arch, "kubernetes.io/os": "linux"}
    return {
        "name": name,
        "requirements": [requirement(k, v) for k, v in {**known, **labels}.items()],
        "offerings": list(offerings),
        "capacity": {"cpu": str(cpu), "memory": f"{int(memory_gib * 1024)}Mi", "pods": str(pods)},
        "overhead": {"cpu": "100m", "memory": "10Mi"},
    }


def offering(zone: str, capacity_type: str, price: float, *, available: bool = True) -> Object:
    """Return an offering; `price` is in $/h."""
    return {
        "requirements": {ZONE: zone, CAPACITY_TYPE: capacity_type},
        "price": round(price, 6),
        "available": available,
    }


# Karpenter's own benchmark: 400 types, and equal parts of five categories of pods.


def benchmark_types(count: int = 400) -> list[Object]:
    """Return the instance types of Karpenter's benchmark.

    Each has one CPU more than the previous one. The offerings are spot in two zones
    and on-demand in three.
    """
    pools = [("test-zone-1", "spot"), ("test-zone-2", "spot")]
    pools += [(f"test-zone-{n}", "on-demand") for n in (1, 2, 3)]
    return [
        instance_type(
            f"fake-it-{n}",
            cpu=n + 1,
            memory_gib=2 * (n + 1),
            pods=10 * (n + 1),
            offerings=[
                offering(z, c, 0.1 * (n + 1) + 0.1 * 2 * (n + 1) * 2**30 / 1e9) for z, c in pools
            ],
        )
        for n in range(count)
    ]


def _random_size(chance: random.Random) -> dict[str, Any]:
    return {"cpu": chance.choice(CPU_MILLI), "memory": chance.choice(MEMORY_MIB)}


def diverse(pods: int, seed: int = 42) -> World:
    """Return Karpenter's benchmark mix of pods.

    A fifth each: generic, zone spread, hostname spread, zone affinity, anti-affinity.
    """
    chance = random.Random(seed)

    def letter(key: str) -> dict[str, str]:
        return {key: chance.choice(LETTERS)}

    def spread(number: int, key: str) -> Object:
        constraint = {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": letter("my-label")},
        }
        return pod(
            f"spread-{key.split('/')[1]}-{number}",
            **_random_size(chance),
            labels=letter("my-label"),
            topologySpreadConstraints=[constraint],
        )

    def near(number: int) -> Object:
        labels = letter("my-affininity")
        return pod(
            f"near-{number}",
            **_random_size(chance),
            labels=labels,
            affinity={"podAffinity": required_term(labels, ZONE)},
        )

    def alone(number: int) -> Object:
        labels = {"app": "nginx"}
        return pod(
            f"apart-{number}",
            **_random_size(chance),
            labels=labels,
            affinity={"podAntiAffinity": required_term(labels, HOSTNAME)},
        )

    def generic(number: int) -> Object:
        return pod(f"generic-{number}", **_random_size(chance), labels=letter("my-label"))

    fifth = pods // 5
    made = [generic(n) for n in range(fifth)]
    made += [spread(n, ZONE) for n in range(fifth)]
    made += [spread(n, HOSTNAME) for n in range(fifth)]
    made += [near(n) for n in range(fifth)]
    made += [alone(n) for n in range(fifth)]
    made += [generic(fifth + n) for n in range(pods - len(made))]
    limits = {"cpu": "10000000", "memory": "10000000Gi"}
    return {
        "pods": made,
        "nodePools": [node_pool(limits=limits)],
        "instanceTypes": benchmark_types(),
    }


def required_term(labels: Mapping[str, str], key: str) -> Object:
    """Return a required pod (anti-)affinity term."""
    term = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": key}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def preferences(pods: int = 4000, seed: int = 42) -> World:
    """Return Karpenter's preference mix: equal pods with three preferences each.

    Their node affinity prefers one zone. Their anti-affinity prefers that no two are in one zone,
    which cannot be met, and that no two are on one node.
    """
    chance = random.Random(seed)
    labels = {"app": "nginx"}
    size = _random_size(chance)

    def anti_affinity_term(weight: int, key: str) -> Object:
        term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
        return {"weight": weight, "podAffinityTerm": term}

    in_zone = {"matchExpressions": [requirement(ZONE, "test-zone-1")]}
    affinity = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": in_zone}
            ]
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                anti_affinity_term(10, ZONE),
                anti_affinity_term(1, HOSTNAME),
            ]
        },
    }
    world = diverse(0)
    world["pods"] = [pod(f"p-{n}", **size, labels=labels, affinity=affinity) for n in range(pods)]
    return world


# Priced worlds, with the real instance types that come with Karpenter's module.


def priced_world(pods: int, types: str, *, limited: bool, seed: int = 7) -> World:
    """Return pods in 50 shapes, and the instance types in the file `types`.

    If `limited`, the NodePool allows only families c, m and r of generation 5 and later.
    """
    chance = random.Random(seed)
    shapes = [
        (chance.choice((100, 250, 500, 1000, 2000, 4000)), chance.choice((1, 2, 4, 8)))
        for _ in range(50)
    ]
    made = []
    for number in range(pods):
        cpu, ratio = shapes[number % len(shapes)]
        made.append(pod(f"p-{number}", cpu=cpu, memory=cpu * ratio * 1024 // 1000))
    families = [
        f"{letter}{generation}{suffix}"
        for letter in "cmr"
        for generation in (5, 6, 7, 8)
        for suffix in ("", "a", "g", "i", "ad", "gd", "id", "d", "n", "gn", "in", "i-flex")
    ]
    only = [requirement("karpenter.kwok.sh/instance-family", *families)] if limited else []
    linux = requirement("kubernetes.io/os", "linux")
    return {
        "pods": made,
        "nodePools": [node_pool(requirements=[linux, *only])],
        "instanceTypes": {"file": types},
    }


# Mixed worlds: what a batch of pods in a real cluster looks like.

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
SIZES = (
    ("large", 2),
    ("xlarge", 4),
    ("2xlarge", 8),
    ("4xlarge", 16),
    ("8xlarge", 32),
    ("12xlarge", 48),
    ("16xlarge", 64),
)
FAMILIES: tuple[tuple[str, float, float, str], ...] = (
    ("c6i", 2, 0.0425, "amd64"),
    ("m6i", 4, 0.048, "amd64"),
    ("r6i", 8, 0.063, "amd64"),
    ("c7g", 2, 0.0363, "arm64"),
    ("m7g", 4, 0.0408, "arm64"),
    ("r7g", 8, 0.0536, "arm64"),
    ("c5", 2, 0.0425, "amd64"),
    ("m5", 4, 0.048, "amd64"),
    ("r5", 8, 0.063, "amd64"),
    ("m7i", 4, 0.0504, "amd64"),
)
"""Family, GiB per vCPU, $/h per vCPU, architecture."""


def mixed_types(chance: random.Random) -> list[Object]:
    """Return 70 types in three zones.

    Some spot offerings have no capacity, and some types are absent from a zone.
    """
    kinds = []
    for family, ratio, per_cpu, arch in FAMILIES:
        for size, cpu in SIZES:
            offerings = []
            for zone in ZONES:
                if chance.random() < 0.05:
                    continue
                price = per_cpu * cpu
                spot = price * chance.uniform(0.3, 0.6)
                offerings.append(offering(zone, "on-demand", price))
                offerings.append(offering(zone, "spot", spot, available=chance.random() > 0.15))
            if not offerings:
                continue
            kinds.append(
                instance_type(
                    f"{family}.{size}",
                    cpu=cpu,
                    memory_gib=cpu * ratio,
                    arch=arch,
                    pods=29 if cpu <= 2 else 58 if cpu <= 8 else 234,
                    offerings=offerings,
                    **{FAMILY: family},
                )
            )
    return kinds


def mixed_world(pods: int, seed: int) -> World:
    """Return two NodePools with weights and taints, constrained pods, and a DaemonSet."""
    chance = random.Random(seed)
    team = {"key": "team", "value": "batch", "effect": "NoSchedule"}
    architectures = requirement(ARCH, "amd64", "arm64")
    both = requirement(CAPACITY_TYPE, "spot", "on-demand")
    pools = [
        node_pool("general", requirements=[architectures, both], weight=chance.randint(1, 50)),
        node_pool(
            "batch",
            requirements=[architectures, both],
            taints=[team],
            weight=chance.randint(51, 100),
        ),
    ]
    made: list[Object] = []
    group = 0
    while len(made) < pods:
        size = min(pods - len(made), max(1, int(chance.lognormvariate(3, 1))))
        made += _group(chance, f"g{group}", size)
        group += 1
    return {
        "pods": made,
        "nodePools": pools,
        "daemonSets": [daemon_set()],
        "instanceTypes": mixed_types(chance),
    }


def daemon_set() -> Object:
    """Return the DaemonSet whose pod requests capacity on every node."""
    agent = {"requests": {"cpu": "100m", "memory": "200Mi"}}
    template = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {
            "containers": [{"name": "agent", "image": "agent", "resources": agent}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "kube-system", "uid": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template},
    }


def beside_others() -> World:
    """Return a world of pods that must share a node with others, while a node admits only some."""

    def group(app: str, count: int, *, beside: str = "", **spec: Any) -> list[Object]:
        labels, affinity = {"app": app}, spec.pop("affinity", {})
        if beside:
            affinity = {**affinity, "podAffinity": required_term({"app": beside}, HOSTNAME)}
        return [
            pod(f"{app}-{n}", cpu=250, memory=256, labels=labels, affinity=affinity, **spec)
            for n in range(count)
        ]

    def anti_affinity(app: str) -> Object:
        return {"podAntiAffinity": required_term({"app": app}, HOSTNAME)}

    spread = {
        "maxSkew": 2,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "even"}},
    }
    port = {"name": "app", "image": "app", "ports": [{"containerPort": 80, "hostPort": 80}]}
    return {
        **mixed_world(0, 1),
        "pods": [
            *group("db", 4),
            *group("apart", 3, beside="db", affinity=anti_affinity("apart")),
            *group("even", 6, beside="db", topologySpreadConstraints=[spread]),
            *group("port", 3, beside="db", containers=[port]),
            *group("own", 3, beside="own", affinity=anti_affinity("own")),
            *group("own-port", 3, beside="own-port", containers=[port]),
        ],
    }


def _group(chance: random.Random, name: str, size: int) -> list[Object]:
    cpu = chance.choice((100, 250, 500, 1000, 2000))
    memory = cpu * chance.choice((1, 2, 4, 8))
    labels = {"app": name}
    spec: dict[str, Any] = {}
    if chance.random() < 0.2:
        spec["tolerations"] = [{"key": "team", "operator": "Equal", "value": "batch"}]
    constrain = chance.choice(CONSTRAINTS)
    constrain(chance, labels, spec)
    return [pod(f"{name}-{n}", cpu=cpu, memory=memory, labels=labels, **spec) for n in range(size)]


ConstraintWriter = Callable[[random.Random, Mapping[str, str], dict[str, Any]], None]


def _no_constraint(chance: random.Random, labels: Mapping[str, str], spec: dict[str, Any]) -> None:
    """Add no constraint: most groups run anywhere."""


def _select(key: str, *values: str) -> ConstraintWriter:
    def write(chance: random.Random, labels: Mapping[str, str], spec: dict[str, Any]) -> None:
        spec["nodeSelector"] = {key: chance.choice(values)}

    return write


def _family(chance: random.Random, labels: Mapping[str, str], spec: dict[str, Any]) -> None:
    wanted = sorted(chance.sample([f[0] for f in FAMILIES], 3))
    terms = [{"matchExpressions": [requirement(FAMILY, *wanted)]}]
    spec["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }


def _spread(key: str) -> ConstraintWriter:
    def write(chance: random.Random, labels: Mapping[str, str], spec: dict[str, Any]) -> None:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1 if key == ZONE else chance.choice((1, 3)),
                "topologyKey": key,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": dict(labels)},
            }
        ]

    return write


def _near(chance: random.Random, labels: Mapping[str, str], spec: dict[str, Any]) -> None:
    spec["affinity"] = {"podAffinity": required_term(labels, ZONE)}


def _anti_affinity(chance: random.Random, labels: Mapping[str, str], spec: dict[str, Any]) -> None:
    spec["affinity"] = {"podAntiAffinity": required_term(labels, HOSTNAME)}


CONSTRAINTS: tuple[ConstraintWriter, ...] = (
    *(_no_constraint,) * 8,
    _select(CAPACITY_TYPE, "on-demand"),
    _select(ZONE, *ZONES),
    _select(ARCH, "amd64", "arm64"),
    _family,
    _spread(ZONE),
    _spread(HOSTNAME),
    _near,
    _anti_affinity,
)


def many_nodes(nodes: int = 2000, pods: int = 5000, seed: int = 11) -> World:
    """Return many nodes that are two thirds full, and pods of which most should fit on them."""
    world = mixed_world(pods, seed)
    chance = random.Random(seed)
    kinds = [t for t in world["instanceTypes"] if t["capacity"]["cpu"] in ("8", "16")]
    world["nodes"], world["nodeClaims"] = [], []
    for number in range(nodes):
        kind = chance.choice(kinds)
        spot = chance.choice(kind["offerings"])
        name, provider_id = f"node-{number:05d}", f"aws:///zone/i-{number:017x}"
        carried = {r["key"]: r["values"][0] for r in kind["requirements"]}
        labels = {
            **carried,
            **spot["requirements"],
            HOSTNAME: name,
            "karpenter.sh/nodepool": "general",
            "karpenter.sh/registered": "true",
            "karpenter.sh/initialized": "true",
        }
        world["nodes"].append(_node(name, provider_id, labels, kind))
        world["nodeClaims"].append(_claim(f"general-{number:05d}", name, provider_id, labels, kind))
        cpu = int(kind["capacity"]["cpu"]) * 1000
        memory = int(kind["capacity"]["memory"][:-2])
        for part in range(2):
            world["pods"].append(
                pod(f"runs-{number}-{part}", cpu=cpu // 3, memory=memory // 3, node=name)
            )
    return world


def _node(name: str, provider_id: str, labels: Mapping[str, str], kind: Object) -> Object:
    cpu, memory = int(kind["capacity"]["cpu"]) * 1000, int(kind["capacity"]["memory"][:-2])
    allocatable = {**kind["capacity"], "cpu": f"{cpu - 100}m", "memory": f"{memory - 10}Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": dict(labels)},
        "spec": {"providerID": provider_id},
        "status": {
            "capacity": kind["capacity"],
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def _claim(
    name: str, node: str, provider_id: str, labels: Mapping[str, str], kind: Object
) -> Object:
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    moment = "2026-01-01T00:00:00Z"
    held = [
        {"type": t, "status": "True", "reason": t, "message": "", "lastTransitionTime": moment}
        for t in ("Launched", "Registered", "Initialized", "Ready")
    ]
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": dict(labels)},
        "spec": {"nodeClassRef": reference, "requirements": []},
        "status": {
            "providerID": provider_id,
            "nodeName": node,
            "capacity": kind["capacity"],
            "allocatable": kind["capacity"],
            "conditions": held,
        },
    }
