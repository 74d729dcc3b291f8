"""A world of existing nodes under construction, and the objects that features add to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.parity.worlds import HOSTNAME, ZONE, ZONES, Object

RACK = "example.com/rack"
NUMBER = "example.com/generation"
DEVICE = "example.com/device"
APPS = ("web", "db", "cache")
NAMESPACES = ("default", "blue", "red")
MOMENT = "2026-01-01T00:00:00Z"


@dataclass(slots=True)
class Draft:
    """A world under construction. `pod` is the one pending pod, as its author writes it."""

    chance: random.Random
    pod: Object
    nodes: list[Object] = field(default_factory=list)
    running: list[Object] = field(default_factory=list)
    others: dict[str, list[Object]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> Object:
        """The spec of the pending pod."""
        spec: Object = self.pod["spec"]
        return spec

    @property
    def containers(self) -> list[Object]:
        """The containers of the pending pod."""
        containers: list[Object] = self.spec["containers"]
        return containers

    def add(self, kind: str, *objects: Object) -> None:
        """Add objects of a kind, except pods and nodes."""
        self.others.setdefault(kind, []).extend(objects)

    def likely(self, probability: float) -> bool:
        """Draw whether something happens."""
        return self.chance.random() < probability

    def node(self) -> Object:
        """Return a node at random."""
        return self.chance.choice(self.nodes)

    def run(self, node: Object | None = None, **spec: Any) -> Object:
        """Add a running pod with random labels and return it."""
        name = f"runs-{len(self.running)}"
        made = make_pod(name, self.chance, cpu=self.chance.choice((100, 500, 1000)), **spec)
        made["spec"]["nodeName"] = (node or self.node())["metadata"]["name"]
        made["status"] = {"phase": "Running"}
        self.running.append(made)
        return made

    def world(self) -> Object:
        """Return the world; its pods are not stored yet."""
        namespaces = [
            {"metadata": {"name": name, "labels": labels_of_namespace(name)}} for name in NAMESPACES
        ]
        return {
            "pods": [self.pod, *self.running],
            "nodes": self.nodes,
            "namespaces": namespaces,
            "instanceTypes": [],
            "settings": self.settings,
            **self.others,
        }


Feature = Callable[[Draft], None]


def labels_of_namespace(name: str) -> dict[str, str]:
    return {"kubernetes.io/metadata.name": name, "color": name}


def make_pod(
    name: str, chance: random.Random, *, cpu: int, memory: int = 128, **spec: Any
) -> Object:
    """Return a pod with random labels, mostly in the namespace `default`."""
    labels = {"app": chance.choice(APPS)}
    if chance.random() < 0.5:
        labels["version"] = chance.choice("12")
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    container = {"name": "app", "image": "app", "resources": {"requests": requests}}
    return {
        "metadata": {
            "name": name,
            "namespace": chance.choice((*NAMESPACES, *["default"] * 4)),
            "uid": f"uid-{name}",
            "labels": labels,
            "creationTimestamp": MOMENT,
        },
        "spec": {"containers": [container], **spec},
        "status": {},
    }


def make_node(name: str, chance: random.Random) -> Object:
    """Return a ready node without a NodePool, with labels of which some are missing or odd."""
    labels = {HOSTNAME: name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    if chance.random() < 0.9:
        labels[ZONE] = chance.choice(ZONES)
    if chance.random() < 0.6:
        labels[RACK] = chance.choice(("1", "2", ""))
    if chance.random() < 0.6:
        labels[NUMBER] = chance.choice(("1", "5", "10", "-3", "07", "x"))
    size = {"cpu": chance.choice(("2", "4")), "memory": "8Gi", "pods": "20"}
    size["ephemeral-storage"] = "20Gi"
    zone = labels.get(ZONE, ZONES[0])
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": {"providerID": f"aws:///{zone}/i-{name}"},
        "status": {"allocatable": dict(size), "capacity": dict(size), "conditions": [ready()]},
    }


def ready(status: str = "True") -> Object:
    return {"type": "Ready", "status": status, "reason": "Kubelet", "lastTransitionTime": MOMENT}


def expressions(chance: random.Random, keys: Mapping[str, tuple[str, ...]]) -> list[Object]:
    """Return one or two label expressions, over every operator of a label selector."""
    made = []
    for key in chance.sample(list(keys), chance.randint(1, min(2, len(keys)))):
        operator = chance.choice(("In", "In", "NotIn", "Exists", "DoesNotExist"))
        expression: Object = {"key": key, "operator": operator}
        if operator in ("In", "NotIn"):
            values = keys[key]
            expression["values"] = sorted(chance.sample(values, chance.randint(1, len(values))))
        made.append(expression)
    return made


def pod_selector(chance: random.Random) -> Object:
    """Return a label selector of pods, of any form."""
    keys = {"app": APPS, "version": ("1", "2", "3")}
    forms: tuple[Object, ...] = (
        {"matchLabels": {"app": chance.choice(APPS)}},
        {"matchExpressions": expressions(chance, keys)},
        {},
    )
    return chance.choices(forms, (6, 4, 1))[0]
