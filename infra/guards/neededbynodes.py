"""Refuses changes that delete what running nodes depend on.

A node keeps its instance profile, its role and its access to the cluster for life. If a change
deletes one of them, the node loses its credentials or its connection to the API server at once. So
a stack records what its nodes depend on, and a change that would delete or replace any of it is
refused while nodes run that use it. A replacement counts, because the old object is deleted too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from botocore.exceptions import BotoCoreError, ClientError

from controller.apis.kinds import NODE_CLAIM
from infra.clusterapi import CLUSTER_ERRORS, ClusterApi, ClusterLocation
from infra.config.forms import PROJECT
from infra.inputs import is_unknown
from infra.lifecycle.leftovers import Leftovers
from infra.lifecycle.teardown import is_ours

Needs = Mapping[str, Mapping[str, pulumi.Input[str]]]
"""Key of `NEEDED` → what the object is: its `arn`, and whatever else replaces it on change. A part
that was empty may be set without a replacement."""

_ROLE = ("nodeRole", "nodeRoleName", "namePrefix", "iamPath")
_WINDOWS = ("windowsNodes", "nodeRole", "namePrefix", "iamPath")


@dataclass(frozen=True, kw_only=True)
class Needed:
    """A type of object that nodes depend on, and the settings that delete or retain it."""

    title: str
    """Title in messages; {arn} is replaced by the identifier of the object."""

    settings: Sequence[str]
    """The settings whose change deletes or replaces the object."""

    retained_by: str = ""
    """The value in `retainOnDelete` that keeps the object in AWS when it leaves the stack."""


NEEDED: Mapping[str, Needed] = {
    "nodeRole": Needed(title="the node role {arn}", settings=_ROLE, retained_by="nodeRole"),
    "instanceProfile": Needed(
        title="the instance profile {arn}", settings=("instanceProfileName", *_ROLE)
    ),
    "nodeAccess": Needed(title="the cluster access of {arn}", settings=("nodeAccess", *_ROLE)),
    "windowsNodeRole": Needed(
        title="the Windows node role {arn}", settings=_WINDOWS, retained_by="nodeRole"
    ),
    "windowsInstanceProfile": Needed(title="the Windows instance profile {arn}", settings=_WINDOWS),
    "windowsNodeAccess": Needed(
        title="the cluster access of {arn}", settings=("nodeAccess", *_WINDOWS)
    ),
    "network": Needed(
        title="the cluster {arn} with its VPC and subnets",
        settings=("cluster", "vpcCidr", "ipFamily", "subnetIds", "secretsKey"),
        retained_by="cluster",
    ),
}
"""What nodes depend on. CRDs, the OIDC provider and the Pod Identity agent are not included: no
change of a setting deletes them (see `sharedobjects`)."""


@dataclass(frozen=True, slots=True)
class RunningNode:
    """An instance of the installation, or a NodeClaim whose instance is being launched."""

    identity: str
    """The node's name, or else that of its NodeClaim or the instance's ID."""

    profile: str = ""
    """ARN of the node's instance profile; empty if it is not known."""

    roles: frozenset[str] = frozenset()
    """ARNs of the roles in the node's instance profile; empty if they are not known."""

    def uses(self, arn: str) -> bool:
        """Whether the node depends on a role or profile; True if that is not known.

        True for every other ARN, such as the cluster's.
        """
        if ":instance-profile/" in arn:
            return self.profile in ("", arn)
        return not self.roles or arn in self.roles or ":role/" not in arn


def running_nodes(location: ClusterLocation, installation: str) -> list[RunningNode]:
    """Return the nodes of an installation: its instances, and NodeClaims without an instance.

    If the API server does not answer, only instances are found, and they are named by their IDs.
    """
    claims = _claims(location)
    launching = [
        RunningNode(_claim_title(claim)) for claim in claims if not _status(claim, "providerID")
    ]
    return [*_instances(location, installation, claims), *launching]


def _instances(
    location: ClusterLocation, installation: str, claims: Sequence[Mapping[str, Any]]
) -> list[RunningNode]:
    cloud = Leftovers(location, installation)
    names = {
        _status(claim, "providerID").rpartition("/")[2]: _status(claim, "nodeName")
        or _claim_title(claim)
        for claim in claims
    }
    roles: dict[str, frozenset[str]] = {"": frozenset()}
    nodes = []
    for instance, profile in cloud.instance_profiles().items():
        if profile not in roles:
            roles[profile] = cloud.roles_in(profile)
        nodes.append(RunningNode(names.get(instance, instance), profile, roles[profile]))
    return nodes


def _claims(location: ClusterLocation) -> list[Mapping[str, Any]]:
    """Return the NodeClaims of EC2NodeClasses; none if the API server does not answer."""
    try:
        claims = ClusterApi.find(location).list(NODE_CLAIM.collection)
    except CLUSTER_ERRORS:
        return []
    return [claim for claim in claims if is_ours(claim["spec"])]


def _status(claim: Mapping[str, Any], field: str) -> str:
    return str((claim.get("status") or {}).get(field) or "")


def _claim_title(claim: Mapping[str, Any]) -> str:
    return f"NodeClaim {claim['metadata']['name']}"


def refusals_of_end(props: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a destroy that leaves nodes running is refused: it would delete what they need.

    Args:
        props: the properties of the `DeletionGuard` in the state, as `olds` of `refusals`.

    """
    retained, needed = props["retained"], props["needed"]
    keys = [key for key in NEEDED if key in needed and NEEDED[key].retained_by not in retained]
    if "nodes" not in retained or not keys:
        return
    location = ClusterLocation.of(props)
    nodes = _instances(location, props["installation"], _claims(location))
    for using, lost in _groups(keys, props, nodes):
        yield (
            f"{PROJECT}:retainOnDelete names nodes, but this would delete {_objects(lost, props)}, "
            f"and {_depend(using)} on {'it' if len(lost) == 1 else 'them'}: {_shorten(using)}. Let "
            "the controller that took them over replace these nodes first. Or have them drained "
            f"and terminated: remove nodes from {PROJECT}:retainOnDelete, run `pulumi up`, and "
            "then `pulumi destroy` again"
        )


def refusals(olds: Mapping[str, Any], news: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a change is refused: what nodes depend on would be deleted or replaced.

    Args:
        olds: the properties of the `DeletionGuard` in the state, with `needed` and `settings`.
        news: the same properties as the program declares them now.

    """
    lost = list(_lost_keys(olds, news))
    if not lost:
        return
    location, installation = ClusterLocation.of(olds), olds["installation"]
    try:
        nodes = running_nodes(location, installation)
        profiles = Leftovers(location, installation).made_profiles()
    except (BotoCoreError, ClientError) as exc:
        yield (
            f"{_objects(lost, olds)} would be deleted, and AWS did not list the nodes that use "
            f"it: {exc}. Correct the credentials or the network, and run Pulumi again"
        )
        return
    yield from _node_refusals(lost, olds, news, nodes)
    yield from _roles_in_profiles(lost, olds, profiles)


def _lost_keys(olds: Mapping[str, Any], news: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of what a change deletes or replaces."""
    needed = olds["needed"]
    for key in NEEDED:  # in this order, as the engine's state has none
        if (before := needed.get(key)) is None:
            continue
        after = news["needed"].get(key)
        if after is None:
            if NEEDED[key].retained_by not in olds["retained"]:
                yield key
        elif any(
            was and _is_known(after.get(part)) and after[part] != was
            for part, was in before.items()
        ):
            yield key


def _is_known(value: Any) -> bool:
    return not (value is None or is_unknown(value))


def _node_refusals(
    lost: Sequence[str],
    olds: Mapping[str, Any],
    news: Mapping[str, Any],
    nodes: Sequence[RunningNode],
) -> Iterator[str]:
    """Yield one refusal for each set of nodes that depend on the same objects."""
    for using, keys in _groups(lost, olds, nodes):
        changes = list(_changes(keys, olds, news))
        yield (
            f"{'; '.join(each for _, each in changes)}. This would delete {_objects(keys, olds)}, "
            f"and {_depend(using)} on {'it' if len(keys) == 1 else 'them'}: {_shorten(using)}. "
            "Make this change in stages:\n"
            f"1. Set {' and '.join(setting for setting, _ in changes)} back.\n"
            f"2. Remove the NodePools (set {PROJECT}:defaultNodePool to false, or empty the folder "
            f"of {PROJECT}:nodePools; destroy stacks that have {PROJECT}:platformStack), run "
            "`pulumi up`, and wait until no NodeClaim is left (`kubectl get nodeclaims`).\n"
            "3. Make this change, add the NodePools again and run `pulumi up`."
        )


def _groups(
    lost: Sequence[str], props: Mapping[str, Any], nodes: Sequence[RunningNode]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield each set of nodes that depend on the same lost objects, with the keys of these."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for key in lost:
        using = tuple(node.identity for node in nodes if node.uses(props["needed"][key]["arn"]))
        if using:
            groups.setdefault(using, []).append(key)
    yield from groups.items()


def _depend(using: Sequence[str]) -> str:
    return "1 node depends" if len(using) == 1 else f"{len(using)} nodes depend"


def _roles_in_profiles(
    lost: Sequence[str], olds: Mapping[str, Any], profiles: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield roles that IAM would not delete because an instance profile contains them."""
    for key in lost:
        arn = olds["needed"][key]["arn"]
        name = arn.rpartition("/")[2]
        holding = [profile for profile, roles in profiles.items() if name in roles]
        if NEEDED[key].retained_by == "nodeRole" and holding:
            yield (
                f"{NEEDED[key].title.format(arn=arn)} would be deleted, but the controller added "
                f"it to the instance profiles {_shorten(holding)} of EC2NodeClasses with "
                "spec.role, so IAM does not delete it. First remove these EC2NodeClasses and their "
                "NodePools and run `pulumi up`; then make this change and add them again"
            )


def _changes(
    keys: Sequence[str], olds: Mapping[str, Any], news: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield each changed setting, with a sentence that has its old and new value."""
    names = dict.fromkeys(name for key in keys for name in NEEDED[key].settings)
    changed = [
        (f"{PROJECT}:{name}", before, after)
        for name in names
        if (before := olds["settings"].get(name)) != (after := news["settings"].get(name))
        and _is_known(before)
        and _is_known(after)
    ]
    for setting, before, after in changed:
        yield setting, f"{setting} changes from {before or 'unset'} to {after or 'unset'}"
    if not changed:
        setting = f"{PROJECT}:{NEEDED[keys[0]].settings[0]}"
        yield setting, f"{setting} has a new effect because the cluster or the role changed"


def _objects(keys: Sequence[str], olds: Mapping[str, Any]) -> str:
    *first, last = [NEEDED[key].title.format(arn=olds["needed"][key]["arn"]) for key in keys]
    return f"{', '.join(first)} and {last}" if first else last


def _shorten(names: Sequence[str], limit: int = 10) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
