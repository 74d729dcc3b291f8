"""Installs the kinds of `crds/`, but for those that somebody else keeps in the cluster.

Karpenter and EKS Auto Mode bring NodePool and NodeClaim too. A kind has one definition for all
who use it: taken over, it would go with this stack, and with it everybody's objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import yaml

from infra.clusterapi import (
    ApiError,
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterUnreachableError,
    Wire,
)
from infra.config import ConfigError

RENDERED = Path(__file__).resolve().parent.parent / "crds"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OUR_MANAGER = "pulumi-kubernetes"
"""How the field managers begin under which Pulumi applies."""


@dataclass(frozen=True, kw_only=True)
class CustomResourcesArgs:
    """One CustomResourceDefinition each, as in YAML."""

    definitions: Sequence[Wire]


class CustomResources(pulumi.ComponentResource):
    """The kinds that users write and the controller reads."""

    def __init__(
        self, name: str, args: CustomResourcesArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:CustomResources", name, None, opts)
        self.definitions = [
            kubernetes.apiextensions.v1.CustomResourceDefinition(
                f"{name}-{_name(wire)}",
                metadata=wire["metadata"],
                spec=wire["spec"],
                opts=pulumi.ResourceOptions(parent=self),
            )
            for wire in args.definitions
        ]
        self.register_outputs({})


def definitions() -> list[Wire]:
    """Return what stands in the files of `crds/`, in one order."""
    return [yaml.safe_load(path.read_text()) for path in sorted(RENDERED.glob("*.yaml"))]


def wanted(existing: Collection[str]) -> list[Wire]:
    """Return all definitions but those that are the cluster's already.

    Raises:
        ConfigError: one of them is none of ours.

    """
    every = {_name(wire): wire for wire in definitions()}
    if unknown := sorted(set(existing) - every.keys()):
        raise ConfigError(
            [
                f"joiner:existingKinds: {', '.join(unknown)}: there is no such kind; there are "
                f"{', '.join(every)}"
            ]
        )
    return [wire for name, wire in every.items() if name not in existing]


def refuse_other_kinds(location: ClusterLocation, existing: Collection[str]) -> None:
    """Look whether the cluster has the kinds that it is said to have, and no others of ours.

    A cluster that does not answer is left to whoever speaks to it next.

    Raises:
        ConfigError: it has not; says what to set.

    """
    try:
        cluster = ClusterApi.find(location)
        problems = [
            problem
            for wire in definitions()
            for problem in _problems(
                wire, cluster.get(f"{DEFINITIONS}/{_name(wire)}"), _name(wire) in existing
            )
        ]
    except (ApiError, ClusterGoneError, ClusterUnreachableError):
        return
    if problems:
        raise ConfigError(problems)


def _problems(ours: Wire, held: Wire | None, is_existing: bool) -> Iterator[str]:
    name = _name(ours)
    if held is None:
        if is_existing:
            yield f"joiner:existingKinds: the cluster has no {name}: take it out of the list"
    elif not is_existing and not _is_pulumis(held):
        yield (
            f"{name} already exists, and no stack made it ({_managers(held)} did). Where it is to "
            "stay with who made it, as EKS Auto Mode or Karpenter, add it to joiner:existingKinds: "
            "this stack then neither changes nor deletes it"
        )
    elif is_existing and not _served(ours) <= _served(held):
        yield (
            f"joiner:existingKinds: the cluster's {name} serves {', '.join(sorted(_served(held)))} "
            f"and not {', '.join(sorted(_served(ours)))}: have who made it update it"
        )


def _name(wire: Mapping[str, Any]) -> str:
    return str(wire["metadata"]["name"])


def _served(wire: Wire) -> set[str]:
    return {version["name"] for version in wire["spec"]["versions"] if version["served"]}


def _is_pulumis(wire: Wire) -> bool:
    return any(manager.startswith(OUR_MANAGER) for manager in _managed_by(wire))


def _managers(wire: Wire) -> str:
    # The API server writes the status of each under its own name.
    return ", ".join(sorted(_managed_by(wire) - {"kube-apiserver"})) or "somebody"


def _managed_by(wire: Wire) -> set[str]:
    return {entry["manager"] for entry in wire["metadata"].get("managedFields") or []}
