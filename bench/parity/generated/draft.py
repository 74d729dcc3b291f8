"""A world under construction, and the helpers with which features add to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.parity.worlds import Object, pod

CPU = "karpenter.k8s.aws/instance-cpu"
SIZE = "karpenter.k8s.aws/instance-size"
TYPE = "node.kubernetes.io/instance-type"
TEAM = "example.com/team"
RACK = "example.com/rack"
DRIVER = "ebs.csi.aws.com"
FAMILIES = (
    ("c6i", 2, 0.0425, "amd64"),
    ("m6i", 4, 0.048, "amd64"),
    ("r6i", 8, 0.063, "amd64"),
    ("c7g", 2, 0.0363, "arm64"),
    ("m7g", 4, 0.0408, "arm64"),
)
SIZES = (("large", 2), ("xlarge", 4), ("2xlarge", 8), ("4xlarge", 16), ("8xlarge", 32))


@dataclass(slots=True)
class Draft:
    """A world under construction.

    `world` maps each key of the format to its objects. `groups` counts the groups that have been
    named. `on_every_pod` has the fields of the spec that every pod without them gets at the end.
    """

    chance: random.Random
    scale: int
    world: dict[str, list[Object]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    groups: int = 0
    on_every_pod: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, *objects: Object) -> None:
        """Add objects of a kind to the world."""
        self.world.setdefault(kind, []).extend(objects)

    def pools(self, *pools: Object) -> None:
        """Add NodePools, except those whose name exists."""
        self._unless_taken("nodePools", pools)

    def storage_classes(self, *names: str, **more: Any) -> None:
        """Add StorageClasses with `WaitForFirstConsumer`, except those that exist."""
        made = [
            {
                "metadata": {"name": name},
                "provisioner": DRIVER,
                "volumeBindingMode": "WaitForFirstConsumer",
                **more,
            }
            for name in names
        ]
        self._unless_taken("storageClasses", made)

    def _unless_taken(self, kind: str, objects: Sequence[Object]) -> None:
        taken = {wire["metadata"]["name"] for wire in self.world.get(kind, [])}
        self.add(kind, *(wire for wire in objects if wire["metadata"]["name"] not in taken))

    def name(self) -> str:
        """Return a name for a new group."""
        self.groups += 1
        return f"g{self.groups}"

    def number(self, least: int = 1, most: int = 8) -> int:
        """Return a random number of pods for a group: `least` to `most`, times `scale`."""
        return self.chance.randint(least, most) * self.scale

    def group(
        self,
        spec: Mapping[str, Any] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        number: int | None = None,
        name: str | None = None,
        cpu: int | None = None,
        memory: int | None = None,
    ) -> list[Object]:
        """Add pods of one shape and return them, so that features can modify them further.

        `cpu` is in millicores, `memory` in MiB. These and `number` are chosen at random if None.
        """
        name = name or self.name()
        cpu = cpu or self.chance.choice((100, 250, 500, 1000, 1500, 3000))
        memory = memory or cpu * self.chance.choice((1, 2, 2, 4, 7))
        labels = {"app": name} if labels is None else labels
        made = []
        for index in range(self.number() if number is None else number):
            member = pod(f"{name}-{index}", cpu=cpu, memory=memory, labels=labels, **(spec or {}))
            member["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{name}-{index}"}
            member["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            made.append(member)
        self.add("pods", *made)
        return made


Feature = Callable[[Draft], None]


def pool(name: str, **spec: Any) -> Object:
    """Return a NodePool; `requirements`, `taints`, `startupTaints`, `labels` go to its template."""
    template = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
        "requirements": spec.pop("requirements", []),
        "taints": spec.pop("taints", []),
        "startupTaints": spec.pop("startupTaints", []),
    }
    metadata = {"labels": spec.pop("labels", {})}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": {"metadata": metadata, "spec": template}, **spec},
    }


def make_namespace(name: str, **labels: str) -> Object:
    labels["kubernetes.io/metadata.name"] = name
    return {"metadata": {"name": name, "labels": labels}}


def required_affinity(*terms: Sequence[Object]) -> Object:
    chosen = [{"matchExpressions": list(term)} for term in terms]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": chosen}
        }
    }


def preferring_nodes(*weighted: tuple[int, Object]) -> Object:
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": weight, "preference": {"matchExpressions": [term]}}
                for weight, term in weighted
            ]
        }
    }


def term(labels: Mapping[str, str], key: str, **more: Any) -> Object:
    return {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": key, **more}


def required_pods(kind: str, *terms: Object) -> Object:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def preferred_pods(kind: str, *weighted: tuple[int, Object]) -> Object:
    return {
        kind: {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": weight, "podAffinityTerm": term} for weight, term in weighted
            ]
        }
    }


def spread(labels: Mapping[str, str], key: str, **more: Any) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": dict(labels)},
        **more,
    }
