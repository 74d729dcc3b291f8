"""Worlds with one fault: one field has a wrong value or is absent."""

from __future__ import annotations

import copy
import json
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.parity import generated, worlds
from controller.offline.instancetypes import InstanceTypeRow
from controller.offline.world import KINDS

World = dict[str, Any]
Path = tuple[str | int, ...]

GONE = object()
"""Stands for an absent field."""

DEEP: Any = "x"
for _ in range(400):
    DEEP = {"matchExpressions": [DEEP]}

WRONG: tuple[Any, ...] = (
    GONE,
    None,
    "",
    "1x",
    "NaN",
    "1e999",
    "9" * 400,
    "-1",
    "[/x] In [..]",
    "Near",
    "0001-01-01T00:00:00Z",
    -1,
    0,
    0.5,
    2**31,
    2**63,
    -(2**63),
    1e308,
    True,
    [],
    {},
    ["x", "x"],
    [None],
    {"cpu": "-1"},
    {"memory": "1e-99"},
    DEEP,
)
"""Wrong values that users and programs write."""


def places(world: World) -> dict[str, list[Path]]:
    """Return every path that a reader of the world looks at.

    The keys are the paths without indices and names. An absent field is included as well.
    """
    by_place: dict[str, list[Path]] = {}
    for key, kind in {**KINDS, "instanceTypes": InstanceTypeRow}.items():
        for path, shown in _places(list[kind], world.get(key, []), (key,), key):  # type: ignore[valid-type]
            by_place.setdefault(shown, []).append(path)
    for path, shown in _places(
        dict[str, Any], world.get("settings", {}), ("settings",), "settings"
    ):
        by_place.setdefault(shown, []).append(path)
    return by_place


def _places(kind: Any, value: Any, path: Path, shown: str) -> Iterator[tuple[Path, str]]:
    yield path, shown
    kind = _without_none(kind)
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is list and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inside[0], inner, (*path, index), f"{shown}[]")
    elif origin is dict and isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inside[1], inner, (*path, key), f"{shown}.*")
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            yield from _places(field.type, value.get(name), (*path, name), f"{shown}.{name}")


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        left = [
            alternative for alternative in typing.get_args(kind) if alternative is not type(None)
        ]
        return left[0] if len(left) == 1 else kind
    return kind


def broken(world: World, path: Path, value: Any) -> World:
    """Return a copy of the world with another value at one path."""
    copied = copy.deepcopy(world)
    *way, last_step = path
    last: Any = last_step
    inner: Any = copied
    for step in way:
        inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]
    if value is not GONE:
        inner[last] = value
    elif isinstance(inner, list):
        inner.remove(inner[last])
    else:
        inner.pop(last, None)
    return copied


def base_worlds() -> Sequence[World]:
    """Return valid worlds that together contain every kind of object."""
    seeds = (*range(34), *range(generated.RARE_FROM, generated.RARE_FROM + 7))
    worlds = [*(_small(generated.world(seed)) for seed in seeds), everything()]
    # The world is serialized and parsed again, so that no two paths share an object.
    return [json.loads(json.dumps(world)) for world in worlds]


def _small(world: World) -> World:
    """Shorten long lists: a fault shows as well in a small world."""
    kept = world["instanceTypes"][::4]
    return {**world, "instanceTypes": kept, "pods": world["pods"][:24]}


def everything() -> World:
    """Return a world with devices, buffers, overlays, default spreads and budgets."""
    gpu = {
        "name": "gpu-0",
        "attributes": {"model": {"string": "a100"}, "cores": {"int": 8}},
        "capacity": {
            "memory": {
                "value": "40Gi",
                "requestPolicy": {
                    "default": "5Gi",
                    "validRange": {"min": "5Gi", "max": "20Gi", "step": "5Gi"},
                },
            }
        },
        "allowMultipleAllocations": True,
        "consumesCounters": [{"counterSet": "slices", "counters": {"seven": {"value": "1"}}}],
        "taints": [{"key": "old", "effect": "NoSchedule"}],
    }
    counters = [{"name": "slices", "counters": {"seven": {"value": "7"}}}]
    templates = [
        {"driver": "gpu.example.com", "pool": {"name": "own"}, "devices": [gpu]},
        {"driver": "gpu.example.com", "pool": {"name": "own"}, "sharedCounters": counters},
    ]
    bindings = [
        {
            "attribute": "example.com/root",
            "devices": [{"driver": "gpu.example.com", "pool": "own", "device": "gpu-0"}],
        }
    ]
    offerings = [worlds.offering(zone, "on-demand", 0.1) for zone in worlds.ZONES]
    large = worlds.instance_type("m5.large", cpu=4, memory_gib=16, pods=29, offerings=offerings)
    large["dynamicResources"] = {
        "resourceSliceTemplates": templates,
        "attributeBindings": bindings,
    }
    node = {
        "metadata": {
            "name": "node",
            "labels": {worlds.ZONE: worlds.ZONES[0], worlds.HOSTNAME: "node"},
        },
        "spec": {"taints": [{"key": "soft", "effect": "PreferNoSchedule"}]},
        "status": {
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "29"},
            "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "29"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    selector = {"matchLabels": {"app": "web"}}
    blueprint = {
        "metadata": {"labels": {"app": "web"}},
        "spec": worlds.pod("blueprint", cpu=250, memory=256)["spec"],
    }
    request = {
        "deviceClassName": "gpu",
        "count": 1,
        "capacity": {"requests": {"memory": "5Gi"}},
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
        "tolerations": [{"key": "old", "operator": "Exists"}],
    }
    given = {
        "request": "one",
        "driver": "gpu.example.com",
        "pool": "node",
        "device": "gpu-0",
        "consumedCapacity": {"memory": "5Gi"},
    }
    claiming = worlds.pod(
        "trainer",
        cpu=500,
        memory=512,
        resourceClaims=[{"name": "gpus", "resourceClaimName": "gpus"}],
        tolerations=[{"key": "soft", "operator": "Exists", "effect": "PreferNoSchedule"}],
    )
    mine = worlds.pod("runner", cpu=500, memory=512, node="node", labels={"app": "web"})
    mine["status"] |= {
        "containerStatuses": [
            {
                "name": "app",
                "allocatedResources": {"cpu": "1"},
                "resources": {"requests": {"cpu": "750m"}},
            }
        ]
    }
    named = [worlds.pod(f"web-{n}", cpu=500, memory=512, labels={"app": "web"}) for n in range(6)]
    named[0]["spec"]["priorityClassName"] = "high"
    named[1]["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}}
    ]
    named[1]["spec"]["overhead"] = {"cpu": "50m"}
    named[2]["spec"]["containers"][0]["ports"] = [{"hostPort": 80, "protocol": "TCP"}]
    metadata = {"name": "web", "namespace": "default"}
    slices = {
        "driver": "gpu.example.com",
        "pool": {"name": "node", "generation": 1, "resourceSliceCount": 2},
        "nodeName": "node",
    }
    return {
        "pods": [*named, claiming, mine],
        "nodes": [node],
        "nodePools": [
            worlds.node_pool(limits={"cpu": "100", "memory": "1000Gi"}, weight=10),
            worlds.node_pool(
                "few",
                limits={"nodes": "3"},
                requirements=[worlds.requirement(worlds.ZONE, *worlds.ZONES) | {"minValues": 2}],
                taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}],
            ),
        ],
        "nodeOverlays": [
            {
                "metadata": {"name": "dear"},
                "spec": {
                    "requirements": [worlds.requirement(worlds.ZONE, worlds.ZONES[0])],
                    "priceAdjustment": "+10%",
                    "capacity": {"example.com/disk": "4"},
                    "weight": 3,
                },
            },
            {
                "metadata": {"name": "fixed"},
                "spec": {
                    "requirements": [worlds.requirement(worlds.ZONE, worlds.ZONES[1])],
                    "price": "0.08",
                },
            },
        ],
        "capacityBuffers": [
            {
                "metadata": {"name": "spare", "namespace": "default"},
                "spec": {
                    "scalableRef": {"kind": "Deployment", "name": "web"},
                    "percentage": 50,
                    "limits": {"cpu": "1"},
                },
            },
            {
                "metadata": {"name": "headroom", "namespace": "default"},
                "spec": {"podTemplateRef": {"name": "web"}, "replicas": 2},
            },
        ],
        "deployments": [{"metadata": metadata, "spec": {"replicas": 4, "template": blueprint}}],
        "podTemplates": [{"metadata": metadata, "template": blueprint}],
        "replicaSets": [{"metadata": metadata, "spec": {"selector": selector, "replicas": 1}}],
        "statefulSets": [{"metadata": metadata, "spec": {"selector": selector}}],
        "replicationControllers": [{"metadata": metadata, "spec": {"selector": {"app": "web"}}}],
        "services": [{"metadata": metadata, "spec": {"selector": {"app": "web"}}}],
        "daemonSets": [
            {
                "metadata": {"name": "agent", "namespace": "kube-system", "uid": "agent"},
                "spec": {"template": {"spec": worlds.pod("a", cpu=100, memory=64)["spec"]}},
            }
        ],
        "limitRanges": [
            {
                "metadata": {"name": "limits", "namespace": "kube-system"},
                "spec": {
                    "limits": [
                        {
                            "type": "Container",
                            "default": {"cpu": "1"},
                            "defaultRequest": {"cpu": "500m"},
                        }
                    ]
                },
            }
        ],
        "namespaces": [{"metadata": {"name": "default", "labels": {"team": "a"}}}],
        "priorityClasses": [
            {"metadata": {"name": "high"}, "value": 1000},
            {"metadata": {"name": "low"}, "value": 1, "globalDefault": True},
        ],
        "podDisruptionBudgets": [
            {
                "metadata": metadata,
                "spec": {"selector": selector},
                "status": {"disruptionsAllowed": 1},
            }
        ],
        "csiNodes": [
            {
                "metadata": {"name": "node"},
                "spec": {"drivers": [{"name": "ebs.csi.aws.com", "allocatable": {"count": 3}}]},
            }
        ],
        "resourceSlices": [
            {"metadata": {"name": "one"}, "spec": {**slices, "devices": [gpu]}},
            {"metadata": {"name": "two"}, "spec": {**slices, "sharedCounters": counters}},
        ],
        "resourceClaims": [
            {
                "metadata": {"name": "gpus", "namespace": "default"},
                "spec": {
                    "devices": {
                        "requests": [{"name": "one", "exactly": request}],
                        "constraints": [{"requests": ["one"], "matchAttribute": "example.com/m"}],
                    }
                },
            },
            {
                "metadata": {"name": "taken", "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "one", "exactly": request}]}},
                "status": {
                    "allocation": {"devices": {"results": [given]}},
                    "reservedFor": [{"resource": "pods", "name": "runner", "uid": "uid-runner"}],
                },
            },
        ],
        "deviceClasses": [
            {
                "metadata": {"name": "gpu"},
                "spec": {"selectors": [{"cel": {"expression": "device.attributes.size() >= 0"}}]},
            }
        ],
        "deviceTaintRules": [
            {
                "metadata": {"name": "worn"},
                "spec": {
                    "deviceSelector": {"driver": "gpu.example.com", "device": "gpu-1"},
                    "taint": {"key": "worn", "effect": "NoSchedule"},
                },
            }
        ],
        "settings": {
            "PREFERENCE_POLICY": "Respect",
            "MIN_VALUES_POLICY": "BestEffort",
            "IGNORE_DRA_REQUESTS": "false",
            "SCHEDULER_CONFIG": {
                "podTopologySpread": {
                    "defaultConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": worlds.ZONE,
                            "whenUnsatisfiable": "ScheduleAnyway",
                        }
                    ]
                }
            },
        },
        "instanceTypes": [large],
    }
