"""Features of few clusters: reservations, static NodePools, overlays, pods during a resize."""

from __future__ import annotations

from bench.parity.generated.draft import (
    CPU,
    DRIVER,
    FAMILIES,
    SIZE,
    TEAM,
    TYPE,
    Draft,
    pool,
    required_affinity,
)
from bench.parity.generated.existing import default_pool, running_pod, stand
from bench.parity.generated.volumes import ephemeral
from bench.parity.worlds import ARCH, CAPACITY_TYPE, FAMILY, ZONE, ZONES, Object, requirement

RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"
DISK = "example.com/disk"


def reservations(draft: Draft) -> None:
    """Add a few reserved instances, and pods that allow, exclude or require reserved capacity."""
    chance = draft.chance
    kinds = [kind for kind in draft.world["instanceTypes"] if kind["capacity"]["cpu"] in ("4", "8")]
    for number, kind in enumerate(chance.sample(kinds, 3)):
        place = {ZONE: chance.choice(ZONES), CAPACITY_TYPE: "reserved", RESERVATION: f"cr-{number}"}
        price = min(offering["price"] for offering in kind["offerings"]) / 10_000_000
        kind["offerings"].append(
            {
                "requirements": place,
                "price": price,
                "available": True,
                "reservationCapacity": chance.randint(1, 3),
            }
        )
    draft.group(cpu=3000, memory=2000)
    if chance.random() < 0.5:
        draft.group({"nodeSelector": {CAPACITY_TYPE: "on-demand"}})
    if chance.random() < 0.5:
        draft.group({"nodeSelector": {CAPACITY_TYPE: "reserved"}}, number=2)


def static_pools(draft: Draft) -> None:
    """Add a static NodePool, which has at most one node; no pod may add nodes to it."""
    fixed = pool("a-static", labels={"example.com/fixed": "yes"})
    fixed["spec"]["replicas"] = draft.chance.randint(0, 3)
    draft.pools(fixed)
    default_pool(draft)
    if draft.chance.random() < 0.5:
        name = stand(draft)
        for wire in (*draft.world["nodes"], *draft.world["nodeClaims"]):
            if name in (wire["metadata"]["name"], wire.get("status", {}).get("nodeName")):
                wire["metadata"]["labels"]["karpenter.sh/nodepool"] = "a-static"
    draft.group()
    if draft.chance.random() < 0.5:
        draft.group({"nodeSelector": {"example.com/fixed": "yes"}}, number=2)


def overlays(draft: Draft) -> None:
    """Add three overlays, each of which changes prices or adds a custom resource."""
    chance = draft.chance
    wanted: tuple[list[Object], ...] = (
        [requirement(FAMILY, chance.choice(FAMILIES)[0])],
        [requirement(CAPACITY_TYPE, "spot")],
        [requirement(TYPE, f"{chance.choice(FAMILIES)[0]}.xlarge"), requirement(ZONE, ZONES[0])],
        [requirement(ARCH, "arm64", operator="NotIn")],
        [],
    )
    changes: tuple[Object, ...] = (
        {"price": "0.05"},
        {"priceAdjustment": "-50%"},
        {"priceAdjustment": "+25%"},
        {"priceAdjustment": "+0.1"},
        {"capacity": {DISK: "4"}},
        {"capacity": {DISK: "8"}},
    )
    weights = chance.sample(range(1, 1000), 3)
    for number, weight in enumerate(weights):
        spec = {"requirements": chance.choice(wanted), "weight": weight, **chance.choice(changes)}
        metadata = {"name": f"overlay-{number}", "uid": f"overlay-{number}"}
        draft.add("nodeOverlays", {"metadata": metadata, "spec": spec})
    draft.group()
    draft.group({"nodeSelector": {ZONE: chance.choice(ZONES)}})
    for waiting in draft.group(number=2) if chance.random() < 0.5 else ():
        waiting["spec"]["containers"][0]["resources"]["requests"][DISK] = "1"


def resizes(draft: Draft) -> None:
    """Add running pods whose allocation is above or below their request, on nodes with capacity."""
    chance = draft.chance
    default_pool(draft)
    for _ in range(chance.randint(1, 3)):
        pods = [running_pod(draft) for _ in range(chance.randint(1, 3))]
        stand(draft, pods=pods)
        for waiting in pods:
            granted = {"cpu": f"{chance.choice((100, 500, 2500))}m", "memory": "512Mi"}
            container = {"name": "app", "allocatedResources": granted}
            waiting["status"]["containerStatuses"] = [
                {**container, "resources": {"requests": granted, "limits": {}}}
            ]
    draft.group(cpu=500)
    draft.group(cpu=1500)


def ports_of_daemons(draft: Draft) -> None:
    """Add daemons that take a host port on some nodes, and pods that need it."""
    chance = draft.chance
    form = chance.choice(
        (
            {"nodeSelector": {ARCH: "amd64"}},
            {"affinity": required_affinity([requirement(CPU, "7", operator="Lt")])},
            {"nodeSelector": {CAPACITY_TYPE: "spot"}},
        )
    )
    ports = [{"containerPort": 9100, "hostPort": 9100, "protocol": "TCP"}]
    agent = {"name": "agent", "image": "agent", "ports": ports}
    draft.add(
        "daemonSets",
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "exporter", "namespace": "kube-system", "uid": "exporter"},
            "spec": {
                "selector": {"matchLabels": {"agent": "exporter"}},
                "template": {
                    "metadata": {"labels": {"agent": "exporter"}},
                    "spec": {"containers": [agent], **form},
                },
            },
        },
    )
    for waiting in draft.group(number=draft.number(1, 3)):
        waiting["spec"]["containers"][0]["ports"] = ports
    draft.group()


def labels_of_started_nodes(draft: Draft) -> None:
    """Add pods and daemons that select the labels which every node gets while it starts."""
    chance = draft.chance
    keys = ("karpenter.sh/registered", "karpenter.sh/initialized")
    requests = {"requests": {"cpu": f"{chance.choice((100, 500, 1000))}m"}}
    agent = {"name": "agent", "image": "agent", "resources": requests}
    draft.add(
        "daemonSets",
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "started", "namespace": "kube-system", "uid": "started"},
            "spec": {
                "selector": {"matchLabels": {"agent": "started"}},
                "template": {
                    "metadata": {"labels": {"agent": "started"}},
                    "spec": {"containers": [agent], "nodeSelector": {chance.choice(keys): "true"}},
                },
            },
        },
    )
    draft.group({"nodeSelector": {chance.choice(keys): "true"}})
    never = requirement(chance.choice(keys), operator="DoesNotExist")
    draft.group({"affinity": required_affinity([never])})
    draft.group()


def volumes_made_before(draft: Draft) -> None:
    """Add ephemeral volumes that exist before their pod is bound, with either binding mode."""
    chance = draft.chance
    mode = chance.choice(("Immediate", "WaitForFirstConsumer"))
    draft.storage_classes(f"made-{mode.lower()}", volumeBindingMode=mode)
    pods = draft.group(number=draft.number(1, 3))
    ephemeral(draft, f"made-{mode.lower()}", pods)
    for claim in draft.world["persistentVolumeClaims"][-len(pods) :]:
        name = f"pv-{claim['metadata']['name']}"
        claim["spec"] = {**claim["spec"], "volumeName": name}
        claim["status"] = {"phase": "Bound"}
        claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        terms = [{"matchExpressions": [requirement(ZONE, chance.choice(ZONES))]}]
        draft.add(
            "persistentVolumes",
            {
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": DRIVER, "volumeHandle": f"vol-{name}"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                },
            },
        )


def best_effort_minimums(draft: Draft) -> None:
    """Add a NodePool with `minValues`, and pods for which too few instance types are large enough.

    The setting `MIN_VALUES_POLICY` is `BestEffort`.
    """
    chance = draft.chance
    draft.settings["MIN_VALUES_POLICY"] = "BestEffort"
    key, least = chance.choice(((TYPE, 8), (FAMILY, 4), (SIZE, 4), (TYPE, 40)))
    term = {**requirement(key, operator="Exists"), "minValues": least}
    draft.pools(pool("bending", requirements=[term]))
    draft.group()
    draft.group(cpu=12_000, memory=16_000, number=2)
    draft.group(cpu=500, memory=100_000, number=1)


def weights_and_limits(draft: Draft) -> None:
    """Add an expensive NodePool with higher weight and a limit, and a cheap one for the rest."""
    chance = draft.chance
    draft.pools(
        pool(
            "reserved-part",
            requirements=[requirement(CAPACITY_TYPE, "on-demand")],
            limits={"cpu": str(chance.choice((8, 16, 32)))},
            weight=chance.randint(2, 100),
        ),
        pool("everything-above", labels={TEAM: "above"}, weight=1),
    )
    draft.group(number=draft.number(8, 30))
    draft.group()
    if chance.random() < 0.5:
        draft.group({"nodeSelector": {TEAM: "above"}}, number=2)
