"""Features about existing nodes and running pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.parity.generated.draft import Draft, pool, required_pods, spread, term
from bench.parity.worlds import HOSTNAME, ZONE, ZONES, Object, pod

MOMENT = "2026-01-01T00:00:00Z"


def stand(
    draft: Draft,
    *,
    stage: str = "initialized",
    pods: Sequence[Object] = (),
    taints_: Sequence[Object] = (),
    startup: Sequence[Object] = (),
    zone: str | None = None,
) -> str:
    """Add a node and return its name.

    `stage` is `initialized`, `registered`, `launched` (only a NodeClaim, whose name is returned) or
    `unmanaged`. The `pods` are added as running on the node. `startup` are startup taints.
    """
    chance = draft.chance
    kinds = [kind for kind in draft.world["instanceTypes"] if kind["capacity"]["cpu"] in ("4", "8")]
    kind = chance.choice(kinds)
    number = len(draft.world.get("nodes", [])) + len(draft.world.get("nodeClaims", []))
    name, provider_id = f"node-{number}", f"aws:///zone/i-{number:017x}"
    place = chance.choice(kind["offerings"])["requirements"]
    labels = {term["key"]: term["values"][0] for term in kind["requirements"]}
    labels |= {**place, HOSTNAME: name}
    if zone:
        labels[ZONE] = zone
    capacity = dict(kind["capacity"])
    cpu, memory = int(capacity["cpu"]) * 1000, int(capacity["memory"][:-2])
    allocatable = {**capacity, "cpu": f"{cpu - 100}m", "memory": f"{memory - 10}Mi"}
    managed = stage != "unmanaged"
    if managed:
        labels["karpenter.sh/nodepool"] = "default"
        labels |= {"karpenter.sh/registered": "true"} if stage != "launched" else {}
        labels |= {"karpenter.sh/initialized": "true"} if stage == "initialized" else {}
        claim(
            draft,
            f"claim-{number}",
            name,
            stage,
            labels,
            provider_id,
            (taints_, startup),
            {"capacity": capacity, "allocatable": allocatable},
        )
    if stage == "launched":
        return f"claim-{number}"
    present = [*taints_, *(startup if stage == "registered" else ())]
    draft.add(
        "nodes",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
            "spec": {"providerID": provider_id, "taints": present},
            "status": {
                "capacity": capacity,
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        },
    )
    for running in pods:
        running["spec"]["nodeName"] = name
        running["status"] = {"phase": "Running"}
    draft.add("pods", *pods)
    return name


def claim(
    draft: Draft,
    name: str,
    node: str,
    stage: str,
    labels: Mapping[str, str],
    provider_id: str,
    taints_: tuple[Sequence[Object], Sequence[Object]],
    resources: Object,
) -> None:
    reached = ["Launched", *(("Registered",) if stage != "launched" else ())]
    reached += ["Initialized", "Ready"] if stage == "initialized" else []
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    own = {key: value for key, value in labels.items() if key != HOSTNAME}
    draft.add(
        "nodeClaims",
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": own},
            "spec": {
                "nodeClassRef": reference,
                "requirements": [],
                "taints": list(taints_[0]),
                "startupTaints": list(taints_[1]),
            },
            "status": {
                "providerID": provider_id,
                **({"nodeName": node} if stage != "launched" else {}),
                **resources,
                "conditions": [
                    {
                        "type": stage,
                        "status": "True",
                        "reason": stage,
                        "message": "",
                        "lastTransitionTime": MOMENT,
                    }
                    for stage in reached
                ],
            },
        },
    )


def running_pod(draft: Draft, labels: Mapping[str, str] | None = None, **spec: Any) -> Object:
    name = draft.name()
    return pod(
        f"runs-{name}",
        cpu=draft.chance.choice((100, 500, 1500)),
        memory=draft.chance.choice((256, 1024, 4096)),
        labels=labels or {"app": name},
        **spec,
    )


def default_pool(draft: Draft) -> None:
    draft.pools(pool("default"))


def existing_nodes(draft: Draft) -> None:
    """Add nodes with remaining capacity: managed, unmanaged, tainted, cordoned."""
    chance = draft.chance
    default_pool(draft)
    for _ in range(chance.randint(1, 4)):
        stand(
            draft,
            stage=chance.choice(("initialized", "initialized", "unmanaged")),
            pods=[running_pod(draft) for _ in range(chance.randint(0, 3))],
            taints_=chance.choice(
                ((), (), ({"key": "own", "value": "yes", "effect": "NoSchedule"},))
            ),
        )
    if chance.random() < 0.3:
        spec = draft.world["nodes"][-1]["spec"]
        spec["unschedulable"] = True
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        spec["taints"] = [*spec["taints"], cordon]
    draft.group()
    draft.group({"tolerations": [{"key": "own", "operator": "Exists"}]})
    name = draft.name()
    draft.group(
        {"topologySpreadConstraints": [spread({"app": name}, ZONE)]},
        name=name,
        number=draft.number(2, 4),
    )


def coming_nodes(draft: Draft) -> None:
    """Add nodes that are launched or registered, not initialized; some have startup taints."""
    chance = draft.chance
    default_pool(draft)
    startup = [{"key": "starting", "value": "up", "effect": "NoSchedule"}]
    for stage in ("launched", "registered", "launched")[: chance.randint(1, 3)]:
        stand(draft, stage=stage, startup=startup if chance.random() < 0.5 else ())
    draft.group()
    draft.group({"nodeSelector": {ZONE: chance.choice(ZONES)}})


def running_neighbours(draft: Draft) -> None:
    """Add running pods that constrain pending ones: by anti-affinity, affinity and spread."""
    chance = draft.chance
    default_pool(draft)
    app = {"app": draft.name()}
    repelling = required_pods("podAntiAffinity", term(app, chance.choice((ZONE, HOSTNAME))))
    stand(draft, pods=[running_pod(draft, affinity=repelling)])
    stand(draft, pods=[running_pod(draft, {"app": "star"}), running_pod(draft, app)])
    draft.group(labels=app, number=draft.number(1, 4))
    draft.group({"affinity": required_pods("podAffinity", term({"app": "star"}, ZONE))})
    constraint = spread({"app": "star"}, ZONE)
    draft.group(
        {"topologySpreadConstraints": [constraint]},
        labels={"app": "star"},
        number=draft.number(1, 4),
    )
