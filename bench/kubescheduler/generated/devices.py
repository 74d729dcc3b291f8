"""Features about devices of dynamic resource allocation, on nodes that exist."""

from __future__ import annotations

from bench.kubescheduler.generated.draft import MOMENT, Draft
from bench.parity.worlds import Object

DRIVER = "gpu.example.com"
CLASS = "gpu"


def devices(draft: Draft) -> None:
    """Claim devices by class, number, model and size, of which some are allocated or tainted."""
    chance = draft.chance
    draft.settings["IGNORE_DRA_REQUESTS"] = "false"
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    draft.add("deviceClasses", {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}})
    for node in draft.nodes:
        name = node["metadata"]["name"]
        made = [_device(draft, number) for number in range(chance.randint(0, 3))]
        if not made:
            continue
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": made}
        draft.add("resourceSlices", {"metadata": {"name": f"{name}-{DRIVER}"}, "spec": spec})
        if draft.likely(0.5):
            _allocate(draft, node, made[0]["name"])
    wanted: Object = {"deviceClassName": CLASS, "count": chance.randint(1, 2)}
    if draft.likely(0.2):
        wanted = {"deviceClassName": CLASS, "allocationMode": "All"}
    if draft.likely(0.4):
        condition = chance.choice(
            (
                f'device.attributes["{DRIVER}"].model == "a"',
                f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
            )
        )
        wanted["selectors"] = [{"cel": {"expression": condition}}]
    if draft.likely(0.2):
        wanted["tolerations"] = [{"key": "worn", "operator": "Exists"}]
    constraints = []
    if draft.likely(0.3):
        constraints = [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/model"}]
    _claim(draft, draft.pod, {"exactly": wanted}, constraints)


def one_of_several_devices(draft: Draft) -> None:
    """Claim a device of the first kind that a node has, from a list."""
    devices(draft)
    first = {"name": "two", "deviceClassName": CLASS, "count": 2}
    second = {"name": "one", "deviceClassName": CLASS, "count": 1}
    request = {"firstAvailable": [first, second]}
    draft.others["resourceClaims"][-1]["spec"]["devices"] = {
        "requests": [{"name": "gpu", **request}]
    }


def _device(draft: Draft, number: int) -> Object:
    chance = draft.chance
    device: Object = {
        "name": f"gpu-{number}",
        "attributes": {"model": {"string": chance.choice("ab")}},
        "capacity": {"memory": {"value": chance.choice(("20Gi", "40Gi"))}},
    }
    if draft.likely(0.15):
        device["taints"] = [{"key": "worn", "effect": chance.choice(("NoSchedule", "NoExecute"))}]
    return device


def _allocate(draft: Draft, node: Object, device: str) -> None:
    """Allocate a device of a node to a running pod; the claim may outlive the pod."""
    pod = draft.run(node)
    claim = _claim(draft, pod, {"exactly": {"deviceClassName": CLASS, "count": 1}}, [])
    name = node["metadata"]["name"]
    result = {"request": "gpu", "driver": DRIVER, "pool": name, "device": device}
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    claim["status"] = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        },
        "reservedFor": [
            {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        ],
    }


def _claim(draft: Draft, pod: Object, request: Object, constraints: list[Object]) -> Object:
    """Add a claim that the pod uses and return it."""
    name = f"claim-{len(draft.others.get('resourceClaims', []))}"
    metadata = {
        "name": name,
        "namespace": pod["metadata"]["namespace"],
        "uid": f"uid-{name}",
        "creationTimestamp": MOMENT,
    }
    wanted: Object = {"requests": [{"name": "gpu", **request}]}
    if constraints:
        wanted["constraints"] = constraints
    made: Object = {"metadata": metadata, "spec": {"devices": wanted}, "status": {}}
    draft.add("resourceClaims", made)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return made
