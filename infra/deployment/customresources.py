"""Installs the CRDs of `crds/`, except those that another tool manages in the cluster.

Karpenter and EKS Auto Mode also install NodePool and NodeClaim. A cluster has one definition of
each kind. If this stack adopted it, a destroy would delete it with the objects of all its users.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import yaml

from controller.apis import labels
from infra.clusterapi import CLUSTER_ERRORS, UPSERT, ClusterApi, ClusterLocation, Wire
from infra.config.forms import ConfigError
from infra.deployment.controllerobjects import is_made_by_pulumi, managers_of
from infra.lifecycle.fieldmanager import applied_by_us
from infra.lifecycle.sharedobjects import DEFINITIONS, RETAINED, installation_of
from infra.release import CHECKOUT

RESOURCE_TYPE = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"
RENDERED = CHECKOUT / "crds"


@dataclass(frozen=True, kw_only=True)
class CustomResourcesArgs:
    """The CRDs to install, each as in YAML, and the installation that owns them."""

    definitions: Sequence[Wire]
    installation: str
    """Value of an annotation on each CRD, which distinguishes it from CRDs of other stacks."""


class CustomResources(pulumi.ComponentResource):
    """The CRDs of the kinds that users write and the controller reads."""

    def __init__(
        self, name: str, args: CustomResourcesArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:CustomResources", name, None, opts)
        self.definitions = [
            kubernetes.apiextensions.v1.CustomResourceDefinition(
                f"{name}-{_name(wire)}",
                metadata=_mark(wire["metadata"], args.installation),
                spec=wire["spec"],
                opts=pulumi.ResourceOptions.merge(pulumi.ResourceOptions(parent=self), RETAINED),
            )
            for wire in args.definitions
        ]
        self.register_outputs({})


@cache
def definitions() -> Sequence[Wire]:
    """Return the CRDs in the files of `crds/`, in the order of file names; do not change them."""
    return tuple(yaml.safe_load(path.read_text()) for path in sorted(RENDERED.glob("*.yaml")))


def definitions_to_install(existing: Collection[str]) -> list[Wire]:
    """Return the CRDs to install: all except those named as existing in the cluster.

    Raises:
        ConfigError: `existing` has a name that is not a CRD of Joiner.

    """
    every = {_name(wire): wire for wire in definitions()}
    if unknown := sorted(set(existing) - every.keys()):
        raise ConfigError(
            f"joiner:existingCrds: unknown CustomResourceDefinition {', '.join(unknown)}; "
            f"allowed are {', '.join(every)}"
        )
    return [wire for name, wire in every.items() if name not in existing]


def refuse_other_kinds(
    location: ClusterLocation, existing: Collection[str], installation: str
) -> None:
    """Check the cluster's CRDs against `joiner:existingCrds`.

    CRDs in the list must exist and serve the versions that Joiner uses. Any other CRD that exists
    must have been created by Pulumi, and must not have the annotation of another installation. If
    the cluster does not answer or refuses a request, nothing is checked: the provider that connects
    next reports the failure.

    Raises:
        ConfigError: a CRD is missing, does not serve these versions, or belongs to another tool;
            says what to set.

    """
    try:
        cluster = ClusterApi.find(location)
        problems = [
            problem
            for wire in definitions()
            for problem in _problems(
                wire,
                cluster.get(f"{DEFINITIONS}/{_name(wire)}"),
                _name(wire) in existing,
                installation,
            )
        ]
    except CLUSTER_ERRORS:
        return
    if problems:
        raise ConfigError(*problems)


def are_kept(
    location: ClusterLocation | None,
    existing: Collection[str],
    installation: str,
    recorded: Collection[tuple[str, str]],
) -> bool:
    """Whether the cluster has CRDs of this installation that the state has not.

    The engine keeps CRDs in the cluster. It removes them from the state before a destroy fails
    late, if the destroy keeps them because of objects of others, and if the user names one with
    `--target`.

    Args:
        location: the location of the cluster; None if it is unknown.
        existing: the names in `joiner:existingCrds`.
        installation: value of the annotation on the installation's CRDs.
        recorded: type and name of each resource in the state.

    """
    if location is None:
        return False
    names = [name for type_, name in recorded if type_ == RESOURCE_TYPE]
    wanted = [_name(wire) for wire in definitions_to_install(existing)]
    missing = [one for one in wanted if not any(name.endswith(f"-{one}") for name in names)]
    try:
        cluster = ClusterApi.find(location)
        held = (cluster.get(f"{DEFINITIONS}/{name}") for name in missing)
        return any(wire is not None and installation_of(wire) == installation for wire in held)
    except CLUSTER_ERRORS:
        return False  # The provider that connects next reports the failure.


def foreign_crd_problems(olds: Mapping[str, Any], news: Mapping[str, Any]) -> Iterator[str]:
    """Yield why this stack may not create CRDs that are in the cluster.

    `refuse_other_kinds` does not know which CRDs the state has. It takes a CRD that Pulumi applied
    for its own, unless the annotation names another installation. This function knows the state,
    and so detects the other CRDs of other stacks too.

    Args:
        olds: the properties of the stack's DeletionGuard in the state, empty for a new stack. The
            names of the CRDs that the stack created are in `shared`, under `definitions`.
        news: the same properties as the program declares them now.

    """
    if os.environ.get(UPSERT) == "true":
        return  # The user chose to adopt existing CRDs.
    before = olds["shared"]["definitions"] if olds else ()
    after = news["shared"]["definitions"]
    names = set(after) - set(before)
    try:
        cluster = ClusterApi.find(ClusterLocation.of(news))
        held = {name: cluster.get(f"{DEFINITIONS}/{name}") for name in sorted(names)}
    except CLUSTER_ERRORS:
        return
    for name, wire in held.items():
        if (
            wire is not None
            and is_made_by_pulumi(wire)
            and installation_of(wire) != news["installation"]
        ):
            yield (
                f"{name} already exists, and is not in the state of this stack: another Pulumi "
                "stack created it, or this one before it was added to joiner:existingCrds. Add it "
                "to joiner:existingCrds, so that this stack neither changes nor deletes it. Or let "
                f"this stack take it over: run `{UPSERT}=true pulumi up`"
            )


def _mark(metadata: Wire, installation: str) -> Wire:
    marks = {**(metadata.get("annotations") or {}), labels.TAG_INSTALLATION: installation}
    return applied_by_us({**metadata, "annotations": marks})


def _problems(ours: Wire, held: Wire | None, is_existing: bool, installation: str) -> Iterator[str]:
    name = _name(ours)
    if held is None:
        if is_existing:
            yield f"joiner:existingCrds: the cluster has no {name}: remove it from the list"
    elif not is_existing and installation_of(held) not in (None, installation):
        yield (
            f"{name} already exists, and belongs to the installation {installation_of(held)}: add "
            "it to joiner:existingCrds, so that this stack neither changes nor deletes it"
        )
    elif not is_existing and not is_made_by_pulumi(held):
        yield (
            f"{name} already exists, and {_managers(held)} created it, not a Pulumi stack. If EKS "
            "Auto Mode, Karpenter or another tool manages it, add it to joiner:existingCrds, so "
            "that this stack neither changes nor deletes it"
        )
    elif is_existing and not _served_versions(ours) <= _served_versions(held):
        yield (
            f"joiner:existingCrds: the cluster's {name} serves "
            f"{', '.join(sorted(_served_versions(held)))} and not "
            f"{', '.join(sorted(_served_versions(ours)))}: update it with the tool that manages it"
        )


def _name(wire: Mapping[str, Any]) -> str:
    return str(wire["metadata"]["name"])


def _served_versions(wire: Wire) -> set[str]:
    return {version["name"] for version in wire["spec"]["versions"] if version["served"]}


def _managers(wire: Wire) -> str:
    # The API server itself writes the status of each CRD, under its own manager name.
    return ", ".join(sorted(managers_of(wire) - {"kube-apiserver"})) or "an unknown field manager"
