"""Builders of devices and ResourceClaims, and a solve that allocates devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.devices import (
    DeviceClass,
    DeviceTaintRule,
    DynamicResources,
    ResourceClaim,
    ResourceSlice,
)
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.scheduling.results import Results
from controller.scheduling.settings import Settings
from tests.builders import make_nodepool, make_pod, make_snapshot, make_type
from tests.expectations import schedule_on

DRIVER = "gpu.example.com"


def attribute(value: object) -> dict[str, Any]:
    """Return a device attribute by the type of its value; text such as `v1.2.3` is a version."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    text = str(value)
    return {"version": text[1:]} if text[:1] == "v" and text[1:2].isdigit() else {"string": text}


def device(name: str, capacity: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """Return a device; `attributes` are its attributes, `takes` what it consumes of counters."""
    attributes = {key: attribute(value) for key, value in more.pop("attributes", {}).items()}
    taken = more.pop("takes", {})
    return {
        "name": name,
        "attributes": attributes,
        "capacity": {key: {"value": amount} for key, amount in (capacity or {}).items()},
        "consumesCounters": [
            {
                "counterSet": counter_set,
                "counters": {key: {"value": v} for key, v in amounts.items()},
            }
            for counter_set, amounts in taken.items()
        ],
        **more,
    }


def gpus(count: int, model: str = "a100", memory: str = "40Gi") -> list[dict[str, Any]]:
    """Return equal GPUs."""
    return [
        device(f"gpu-{n}", {"memory": memory}, attributes={"model": model}) for n in range(count)
    ]


def counters(**sets: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return counter sets, by name."""
    return [
        {"name": name, "counters": {key: {"value": amount} for key, amount in amounts.items()}}
        for name, amounts in sets.items()
    ]


def make_slice(
    devices: Sequence[Mapping[str, Any]],
    *,
    node: str = "",
    driver: str = DRIVER,
    pool: str = "",
    name: str = "",
    generation: int = 1,
    slices: int = 1,
    shared: Sequence[Mapping[str, Any]] = (),
    selector: Mapping[str, str] | None = None,
) -> ResourceSlice:
    """Return a ResourceSlice: of one node, of all nodes with some labels, or of all nodes."""
    terms = [{"key": key, "operator": "In", "values": [v]} for key, v in (selector or {}).items()]
    reach: dict[str, Any] = {"allNodes": True}
    if node:
        reach = {"nodeName": node}
    elif selector:
        reach = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}
    pool = pool or node or "network"
    spec = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": slices},
        "devices": list(devices),
        "sharedCounters": list(shared),
        **reach,
    }
    metadata = {"name": name or f"{driver}-{pool}-{generation}"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceSlice)


def with_devices(
    instance_type: InstanceType,
    devices: Sequence[Mapping[str, Any]],
    *,
    driver: str = DRIVER,
    shared: Sequence[Mapping[str, Any]] = (),
    bindings: Sequence[Mapping[str, Any]] = (),
) -> InstanceType:
    """Return an instance type whose nodes have these devices."""
    templates = [{"driver": driver, "pool": {"name": "own"}, "devices": list(devices)}]
    if shared:
        counting = {"driver": driver, "pool": {"name": "own"}, "sharedCounters": list(shared)}
        templates.append(counting)
    promised = {"resourceSliceTemplates": templates, "attributeBindings": list(bindings)}
    return replace(instance_type, dynamic_resources=msgspec.convert(promised, DynamicResources))


def gpu_type(count: int, *, price: float, name: str = "", cpu: str = "64") -> InstanceType:
    """Return an instance type with `count` GPUs."""
    bare = make_type(name or f"g-{count}", cpu=cpu, memory="256Gi", price=price)
    return with_devices(bare, gpus(count))


def make_class(name: str, *expressions: str) -> DeviceClass:
    """Return a DeviceClass."""
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"selectors": selectors}}, DeviceClass
    )


GPU = make_class("gpu", f"device.driver == '{DRIVER}'")
"""Selects every device of the driver."""


def taint_rule(effect: str = "NoSchedule", **selector: str) -> DeviceTaintRule:
    """Return a DeviceTaintRule with a taint `broken` for the selected devices."""
    spec = {"deviceSelector": selector, "taint": {"key": "broken", "effect": effect}}
    return msgspec.convert({"metadata": {"name": "broken"}, "spec": spec}, DeviceTaintRule)


def request(
    count: int = 1, *, name: str = "gpu", of: str = "gpu", where: str = "", **more: Any
) -> dict[str, Any]:
    """Return a request for an exact number of devices."""
    selectors = [{"cel": {"expression": where}}] if where else []
    exactly = {"deviceClassName": of, "selectors": selectors, "count": count, **more}
    return {"name": name, "exactly": exactly}


def first_available(*alternatives: Mapping[str, Any], name: str = "gpu") -> dict[str, Any]:
    """Return a request for the first available of several alternatives."""
    subs = [{"name": alternative["name"], **alternative["exactly"]} for alternative in alternatives]
    return {"name": name, "firstAvailable": subs}


def make_resource_claim(
    name: str,
    *requests: Mapping[str, Any],
    constraints: Sequence[Mapping[str, Any]] = (),
    given: Sequence[tuple[str, str]] = (),
    node: str = "",
    reach: Mapping[str, str] | None = None,
    users: Sequence[str] = (),
    **result: Any,
) -> ResourceClaim:
    """Return a ResourceClaim.

    It is allocated if devices are `given` as (pool, name), on `node` if they are that node's own.
    `reach` are the labels of the nodes that can use them.
    """
    status: dict[str, Any] = {}
    if given:
        results = [
            {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device_name, **result}
            for pool, device_name in given
        ]
        status["allocation"] = {"devices": {"results": results}}
        if reach:
            terms = [{"key": k, "operator": "In", "values": [v]} for k, v in reach.items()]
            selector = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
            status["allocation"]["nodeSelector"] = selector
        if node:
            fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
            selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
            status["allocation"]["nodeSelector"] = selector
    status["reservedFor"] = [{"resource": "pods", "name": user} for user in users]
    asked = {"requests": list(requests or [request()]), "constraints": list(constraints)}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": asked},
            "status": status,
        },
        ResourceClaim,
    )


def claiming(*names: str, **options: Any) -> Pod:
    """Return a pod that uses these ResourceClaims."""
    claims = [{"name": f"c{n}", "resourceClaimName": name} for n, name in enumerate(names)]
    return make_pod(spec={"resourceClaims": claims}, **options)


def replicas(
    count: int,
    *requests: Mapping[str, Any],
    name: str = "web",
    constraints: Any = (),
    **options: Any,
) -> tuple[list[Pod], list[ResourceClaim]]:
    """Return pods with one ResourceClaim each, from one template, and those claims."""
    pods, claims = [], []
    for number in range(count):
        made = f"{name}-{number}-gpu"
        spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
        pod = make_pod(f"{name}-{number}", spec=spec, **options)
        statuses = [{"name": "gpu", "resourceClaimName": made}]
        status = msgspec.to_builtins(pod.status) | {"resourceClaimStatuses": statuses}
        pods.append(msgspec.structs.replace(pod, status=msgspec.convert(status, type(pod.status))))
        claims.append(make_resource_claim(made, *requests, constraints=constraints))
    return pods, claims


ON = Settings(ignore_dra_requests=False)
PLAIN = make_type("plain", cpu="8", memory="32Gi", price=0.2)


def solve(
    waiting: Sequence[Pod],
    claims: Sequence[ResourceClaim],
    *,
    types: Sequence[InstanceType] = (),
    classes: Sequence[DeviceClass] = (GPU,),
    pools: Sequence[NodePool] = (),
    **world: Any,
) -> Results:
    """Return the results of a solve with ResourceClaims."""
    snapshot = make_snapshot(
        *(pools or [make_nodepool()]),
        types=types or [PLAIN],
        resource_claims=tuple(claims),
        device_classes=tuple(classes),
        **world,
    )
    return schedule_on(snapshot, waiting, settings=ON)


def shares(results: Results) -> list[int]:
    """Return the number of pods of each new node, the largest first."""
    return sorted((len(node.pods) for node in results.new_nodes), reverse=True)
