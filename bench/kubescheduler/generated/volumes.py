"""Features about volumes: where they are reachable, who uses them, how many a node attaches."""

from __future__ import annotations

from typing import Any

from bench.kubescheduler.generated.draft import MOMENT, RACK, Draft
from bench.parity.worlds import HOSTNAME, ZONE, ZONES, Object

DRIVER = "ebs.csi.aws.com"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
LATE = "WaitForFirstConsumer"


def use(draft: Draft, pod: Object, claim: str, **claim_fields: Any) -> None:
    """Mount a claim in a pod."""
    source = {"claimName": claim, **claim_fields}
    volumes = pod["spec"].setdefault("volumes", [])
    volumes.append({"name": f"v{len(volumes)}", "persistentVolumeClaim": source})


def claim(draft: Draft, name: str, **spec: Any) -> Object:
    """Add a claim in the pending pod's namespace and return it."""
    made: Object = {
        "metadata": {
            "name": name,
            "namespace": draft.pod["metadata"]["namespace"],
            "uid": f"uid-{name}",
            "creationTimestamp": MOMENT,
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeMode": "Filesystem",
            **spec,
        },
        "status": {"phase": "Pending"},
    }
    draft.add("persistentVolumeClaims", made)
    return made


def volume(draft: Draft, name: str, **spec: Any) -> Object:
    """Add a volume and return it; without a source, the driver of EBS has it."""
    source = {"csi": {"driver": DRIVER, "volumeHandle": f"vol-{name}"}}
    if {"local", "awsElasticBlockStore", "nfs"} & spec.keys():
        source = {}
    made: Object = {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "10Gi"},
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Delete",
            **source,
            **spec,
        },
        "status": {"phase": "Available"},
    }
    draft.add("persistentVolumes", made)
    return made


def bind(claim: Object, volume: Object) -> None:
    """Bind a claim to a volume, as the control plane does."""
    claim["spec"]["volumeName"] = volume["metadata"]["name"]
    claim["status"]["phase"] = volume["status"]["phase"] = "Bound"
    claim["metadata"]["annotations"] = {
        "pv.kubernetes.io/bind-completed": "yes",
        "pv.kubernetes.io/bound-by-controller": "yes",
    }
    volume["spec"]["claimRef"] = {
        "kind": "PersistentVolumeClaim",
        "namespace": claim["metadata"]["namespace"],
        "name": claim["metadata"]["name"],
        "uid": claim["metadata"]["uid"],
    }


def storage_class(draft: Draft, name: str, **fields: Any) -> None:
    """Add a StorageClass; by default, EBS volumes of it are made where the pod is scheduled."""
    made = {"metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": LATE, **fields}
    draft.add("storageClasses", made)


def near(*expressions: Object) -> Object:
    """Return the node affinity of a volume with one term."""
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}}


def inside(key: str, *values: str) -> Object:
    return {"key": key, "operator": "In", "values": list(values)}


def bound_volume(draft: Draft) -> None:
    """Use a volume that exists in a zone, by its affinity, by its labels, or in several terms."""
    chance = draft.chance
    zone = chance.choice(ZONES)
    made = volume(draft, "data")
    match chance.choice(("affinity", "label", "old label", "both", "terms", "odd")):
        case "affinity":
            made["spec"]["nodeAffinity"] = near(inside(ZONE, zone))
        case "label":
            made["metadata"]["labels"][ZONE] = chance.choice((zone, "__".join(ZONES[:2])))
        case "old label":
            made["metadata"]["labels"][OLD_ZONE] = zone
        case "both":
            made["metadata"]["labels"][ZONE] = chance.choice(ZONES)
            made["spec"]["nodeAffinity"] = near(inside(ZONE, zone))
        case "terms":
            terms = [near(inside(key, v)) for key, v in ((ZONE, zone), (RACK, "1"))]
            joined = [term["required"]["nodeSelectorTerms"][0] for term in terms]
            made["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": joined}}
        case _:
            odd = chance.choice(
                ({"operator": "NotIn", "values": ["1"]}, {"operator": "DoesNotExist"})
            )
            made["spec"]["nodeAffinity"] = near({"key": RACK, **odd})
    bind(claim(draft, "data"), made)
    use(draft, draft.pod, "data")


def in_tree_volume(draft: Draft) -> None:
    """Use an EBS volume of the in-tree plugin, whose zone is in its labels."""
    zone = draft.chance.choice(ZONES)
    source = {"volumeID": f"aws://{zone}/vol-1", "fsType": "ext4"}
    made = volume(draft, "data", awsElasticBlockStore=source)
    made["metadata"]["labels"][draft.chance.choice((ZONE, OLD_ZONE))] = zone
    bind(claim(draft, "data"), made)
    use(draft, draft.pod, "data")


def local_volume(draft: Draft) -> None:
    """Use a volume on one node: bound, or one of several that a class without provisioner has."""
    storage_class(draft, "local", provisioner="kubernetes.io/no-provisioner")
    for node in draft.chance.sample(draft.nodes, draft.chance.randint(1, len(draft.nodes))):
        name = node["metadata"]["name"]
        at = near(inside(HOSTNAME, node["metadata"]["labels"][HOSTNAME]))
        made = volume(
            draft,
            f"disk-{name}",
            local={"path": "/disk"},
            nodeAffinity=at,
            storageClassName="local",
        )
    wanted = claim(draft, "data", storageClassName="local")
    if draft.likely(0.4):
        bind(wanted, made)
    use(draft, draft.pod, "data")


def static_volumes(draft: Draft) -> None:
    """Want one or two volumes of a class without provisioner, by size, mode, access, labels."""
    chance = draft.chance
    storage_class(draft, "static", provisioner="kubernetes.io/no-provisioner")
    for number in range(chance.randint(1, 3)):
        made = volume(
            draft,
            f"static-{number}",
            storageClassName="static",
            nodeAffinity=near(inside(ZONE, chance.choice(ZONES))),
            capacity={"storage": chance.choice(("1Gi", "10Gi"))},
            accessModes=chance.choice((["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"])),
            volumeMode=chance.choice(("Filesystem", "Filesystem", "Block")),
        )
        made["metadata"]["labels"]["tier"] = chance.choice(("fast", "slow"))
        if draft.likely(0.2):
            other = {"kind": "PersistentVolumeClaim", "namespace": "red", "name": "x", "uid": "x"}
            made["spec"]["claimRef"] = other
            made["status"]["phase"] = chance.choice(("Bound", "Released"))
    for name in ("data", "more")[: chance.randint(1, 2)]:
        spec: Object = {"resources": {"requests": {"storage": chance.choice(("1Gi", "5Gi"))}}}
        spec["accessModes"] = [chance.choice(("ReadWriteOnce", "ReadWriteMany"))]
        if draft.likely(0.3):
            spec["selector"] = {"matchLabels": {"tier": "fast"}}
        claim(draft, name, storageClassName="static", **spec)
        use(draft, draft.pod, name)


def new_volume(draft: Draft) -> None:
    """Want a volume of a class that makes it late, at once, in some topologies, or never."""
    chance = draft.chance
    fields: Object = {}
    match chance.choice(("late", "at once", "zones", "zones", "labels", "absent")):
        case "at once":
            fields["volumeBindingMode"] = "Immediate"
        case "zones":
            values = sorted(chance.sample(ZONES, 2))
            expression = {"key": ZONE, "values": values}
            fields["allowedTopologies"] = [{"matchLabelExpressions": [expression]}]
        case "labels":
            pairs = ((ZONE, [chance.choice(ZONES)]), (RACK, ["1", "2"]))
            both = [{"key": key, "values": values} for key, values in pairs]
            fields["allowedTopologies"] = [{"matchLabelExpressions": both}]
            if draft.likely(0.5):
                fields["allowedTopologies"] = [{"matchLabelExpressions": [one]} for one in both]
        case "absent":
            fields = {"absent": True}
    if not fields.pop("absent", False):
        storage_class(draft, "gp3", **fields)
    if draft.likely(0.3):
        size = {"requests": {"storage": "1Gi"}}
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "gp3", "resources": size}
        template = {"spec": spec}
        ephemeral = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}
        draft.spec.setdefault("volumes", []).append(ephemeral)
        return
    wanted = claim(draft, "data", storageClassName="gp3")
    if draft.likely(0.2):
        chosen = draft.node()["metadata"]["name"]
        wanted["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": chosen}
    use(draft, draft.pod, "data")


def claim_in_trouble(draft: Draft) -> None:
    """Use a claim that is absent, being deleted, lost, or bound to a volume that is gone."""
    storage_class(draft, "gp3")
    match draft.chance.choice(("absent", "deleted", "lost", "gone", "no class")):
        case "absent":
            pass
        case "deleted":
            made = claim(draft, "data", storageClassName="gp3")
            made["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
            made["metadata"]["finalizers"] = ["kubernetes.io/pvc-protection"]
            if draft.likely(0.5):
                bind(made, volume(draft, "data"))
        case "lost":
            bind(claim(draft, "data"), volume(draft, "data"))
            draft.others["persistentVolumeClaims"][-1]["status"]["phase"] = "Lost"
            draft.others["persistentVolumes"].pop()
        case "gone":
            bind(claim(draft, "data"), volume(draft, "data"))
            draft.others["persistentVolumes"].pop()
        case _:
            claim(draft, "data", storageClassName="")
    use(draft, draft.pod, "data")


def exclusive_claim(draft: Draft) -> None:
    """Use a claim that another pod uses: ReadWriteOncePod, or shared."""
    mode = draft.chance.choice(("ReadWriteOncePod", "ReadWriteOncePod", "ReadWriteOnce"))
    made = volume(draft, "data", accessModes=[mode])
    if draft.likely(0.5):
        made["spec"]["nodeAffinity"] = near(inside(ZONE, draft.chance.choice(ZONES)))
    bind(claim(draft, "data", accessModes=[mode]), made)
    use(draft, draft.pod, "data")
    if draft.likely(0.7):
        other = draft.run()
        other["metadata"]["namespace"] = draft.pod["metadata"]["namespace"]
        use(draft, other, "data")
        if draft.likely(0.2):
            other["status"] = {"phase": "Succeeded"}
        elif draft.likely(0.3):
            other["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"


def attachments(draft: Draft) -> None:
    """Attach volumes up to the limits of nodes; pods share some, and some are not yet made."""
    chance = draft.chance
    storage_class(draft, "gp3")
    for node in draft.nodes:
        driver: Object = {"name": DRIVER, "nodeID": "i", "topologyKeys": [ZONE]}
        if draft.likely(0.9):
            driver["allocatable"] = {"count": chance.randint(1, 2)}
        drivers = [driver] if draft.likely(0.9) else []
        if draft.likely(0.9):
            metadata = {"name": node["metadata"]["name"]}
            draft.add("csiNodes", {"metadata": metadata, "spec": {"drivers": drivers}})
    for number in range(4):
        bind(claim(draft, f"c{number}"), volume(draft, f"c{number}"))
    for node in draft.nodes:
        for _ in range(chance.randint(0, 2)):
            other = draft.run(node)
            other["metadata"]["namespace"] = draft.pod["metadata"]["namespace"]
            use(draft, other, f"c{chance.randint(0, 3)}")
            if draft.likely(0.2):
                other["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    _attach_further(draft)
    for number in sorted(chance.sample(range(4), chance.randint(1, 2))):
        use(draft, draft.pod, f"c{number}")
    if draft.likely(0.3):
        claim(draft, "late", storageClassName="gp3")
        use(draft, draft.pod, "late")


def _attach_further(draft: Draft) -> None:
    """Leave a volume attached to some nodes, whether a pod there uses it or not."""
    for node in draft.nodes:
        if draft.likely(0.3):
            spec = {
                "attacher": DRIVER,
                "nodeName": node["metadata"]["name"],
                "source": {"persistentVolumeName": f"c{draft.chance.randint(0, 3)}"},
            }
            metadata = {"name": f"attachment-{spec['nodeName']}"}
            draft.add("volumeAttachments", {"metadata": metadata, "spec": spec})


def storage_capacity(draft: Draft) -> None:
    """Want volumes of a driver that publishes the storage of each node, or of each zone."""
    chance = draft.chance
    storage_class(draft, "disk", provisioner="topolvm.io")
    draft.add("csiDrivers", {"metadata": {"name": "topolvm.io"}, "spec": {"storageCapacity": True}})
    if draft.likely(0.2):
        draft.others["csiDrivers"][-1]["spec"]["storageCapacity"] = False
    for number, node in enumerate(draft.nodes):
        key = chance.choice((HOSTNAME, HOSTNAME, ZONE, RACK))
        value = node["metadata"]["labels"].get(key)
        if value is None or draft.likely(0.1):
            continue
        made: Object = {
            "metadata": {"name": f"capacity-{number}", "namespace": "kube-system"},
            "storageClassName": chance.choice(("disk", "disk", "disk", "other")),
            "nodeTopology": {"matchLabels": {key: value}},
            "capacity": chance.choice(("1Gi", "5Gi", "20Gi")),
        }
        if draft.likely(0.2):
            made["maximumVolumeSize"] = chance.choice(("1Gi", "5Gi"))
        draft.add("csiStorageCapacities", made)
    size = {"requests": {"storage": chance.choice(("1Gi", "5Gi", "10Gi"))}}
    claim(draft, "data", storageClassName="disk", resources=size)
    use(draft, draft.pod, "data")


def volume_of_spec(draft: Draft) -> None:
    """Name an EBS volume in the pod's own spec, as other pods do."""
    for pod in (draft.pod, *(draft.run(node) for node in draft.nodes if draft.likely(0.5))):
        source = {"volumeID": f"vol-{draft.chance.randint(1, 2)}", "fsType": "ext4"}
        volumes = pod["spec"].setdefault("volumes", [])
        volumes.append({"name": "own", "awsElasticBlockStore": source})
