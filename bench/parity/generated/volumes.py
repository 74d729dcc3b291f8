"""Features about volumes: bound ones, and ones that are created for a pod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.parity.generated.draft import DRIVER, Draft, spread
from bench.parity.generated.existing import default_pool, stand
from bench.parity.worlds import ZONE, ZONES, Object, requirement


def volumes(draft: Draft) -> None:
    """Add bound volumes in zones, StorageClasses with topologies, and ephemeral volumes."""
    chance = draft.chance
    two = [{"matchLabelExpressions": [{"key": ZONE, "values": list(ZONES[:2])}]}]
    either = [{"matchLabelExpressions": [{"key": ZONE, "values": [zone]}]} for zone in ZONES[1:]]
    draft.storage_classes("anywhere")
    draft.storage_classes("two-zones", allowedTopologies=two)
    draft.storage_classes("either", allowedTopologies=either)
    for index in range(draft.number(1, 4)):
        with_claims(draft, [volume_claim(draft, f"data-{index}", chance.choice(("bound", "free")))])
    if chance.random() < 0.4:
        with_claims(
            draft,
            [volume_claim(draft, f"pair-{n}", kind) for n, kind in enumerate(("bound", "free"))],
        )
    ephemeral(draft, chance.choice(("two-zones", "either")), draft.group(number=draft.number(1, 3)))


def ephemeral(draft: Draft, storage_class: str, pods: Sequence[Object]) -> None:
    """Give each pod an ephemeral volume, with the claim that the cluster creates for it."""
    asked = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    for waiting in pods:
        template = {"volumeClaimTemplate": {"spec": asked}}
        waiting["spec"]["volumes"] = [{"name": "own", "ephemeral": template}]
        name = waiting["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": waiting["metadata"]["uid"]}
        metadata = {
            "name": f"{name}-own",
            "namespace": waiting["metadata"]["namespace"],
            "uid": f"uid-{name}-own",
            "ownerReferences": [{**owner, "controller": True}],
        }
        claim = {"metadata": metadata, "spec": asked, "status": {"phase": "Pending"}}
        draft.add("persistentVolumeClaims", claim)


def with_claims(draft: Draft, names: Sequence[str]) -> None:
    chosen = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    for waiting in draft.group(number=1):
        waiting["spec"]["volumes"] = chosen


def volume_claim(draft: Draft, name: str, kind: str) -> str:
    chance = draft.chance
    spec: dict[str, Any] = {
        "storageClassName": chance.choice(("anywhere", "two-zones", "either")),
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    status = {"phase": "Pending"}
    if kind == "bound":
        spec["volumeName"] = f"pv-{name}"
        metadata["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        status = {"phase": "Bound"}
        zones = sorted(chance.sample(ZONES, chance.choice((1, 1, 2))))
        terms = [{"matchExpressions": [requirement(ZONE, zone)]} for zone in zones]
        draft.add(
            "persistentVolumes",
            {
                "metadata": {"name": f"pv-{name}"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": DRIVER, "volumeHandle": f"vol-{name}"},
                    "storageClassName": spec["storageClassName"],
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                },
            },
        )
    draft.add("persistentVolumeClaims", {"metadata": metadata, "spec": spec, "status": status})
    return name


def volume_limits(draft: Draft) -> None:
    """Add a node that can attach two volumes, and more pods with one volume each."""
    default_pool(draft)
    draft.storage_classes("attached")
    name = stand(draft)
    drivers = [{"name": DRIVER, "nodeID": name, "allocatable": {"count": 2}}]
    draft.add("csiNodes", {"metadata": {"name": name}, "spec": {"drivers": drivers}})
    ephemeral(draft, "attached", draft.group(number=draft.number(3, 5), cpu=100, memory=100))


def volume_rules(draft: Draft) -> None:
    """Add types with few attachments, a volume with a zone label, and claims of static volumes."""
    chance = draft.chance
    for kind in draft.world["instanceTypes"]:
        kind["attachableVolumes"] = chance.randint(2, 4)
    draft.storage_classes("anywhere")
    draft.storage_classes("static", provisioner="kubernetes.io/no-provisioner")
    ephemeral(draft, "anywhere", draft.group(number=draft.number(3, 9), cpu=100, memory=100))
    labelled = f"labelled-{draft.name()}"
    with_claims(draft, [volume_claim(draft, labelled, "bound")])
    volume = draft.world["persistentVolumes"][-1]
    volume["spec"].pop("nodeAffinity")
    volume["metadata"]["labels"] = {ZONE: "__".join(sorted(chance.sample(ZONES, 2)))}
    for index in range(chance.randint(1, 3)):
        name = f"static-{draft.name()}"
        with_claims(draft, [volume_claim(draft, name, "free")])
        draft.world["persistentVolumeClaims"][-1]["spec"]["storageClassName"] = "static"
        if index < 2:
            volume_claim(draft, f"other-{name}", "bound")
            draft.world["persistentVolumeClaims"].pop()
            volume = draft.world["persistentVolumes"][-1]
            # One zone: which of two volumes that fit is bound depends on the order of the pods.
            del volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][1:]
            volume["spec"]["storageClassName"] = "static"
            volume["status"] = {"phase": "Available"}


def volumes_and_spread(draft: Draft) -> None:
    """Add a group with topology spread over zones: one pod per zone, pinned there by a volume."""
    draft.storage_classes("anywhere")
    name = draft.name()
    spec = {"topologySpreadConstraints": [spread({"app": name}, ZONE)]}
    for index, zone in enumerate(ZONES):
        claim = f"{name}-claim-{index}"
        volume_claim(draft, claim, "bound")
        volume = draft.world["persistentVolumes"][-1]
        terms = [{"matchExpressions": [requirement(ZONE, zone)]}]
        volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = terms
        draft.world["persistentVolumeClaims"][-1]["spec"]["storageClassName"] = "anywhere"
        for waiting in draft.group(spec, labels={"app": name}, number=1):
            waiting["spec"]["volumes"] = [
                {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
            ]
