"""Refuses changes that would delete what a stack created, unless the user confirms them.

If a setting changes from `create` to `existing`, the program no longer declares the resource, and
the Pulumi engine deletes it: a cluster, or the role of every node. So the stack records what it
created. The preview refuses a change that would delete any of it until the user confirms. A
resource that no longer has the installation's tag has another owner, and is never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import CheckResult, DiffResult, UpdateResult

from controller.apis import labels
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterGoneError, ClusterLocation, describe_cluster
from infra.config.forms import PROJECT
from infra.deployment import customresources
from infra.guards import clusterproof, neededbynodes
from infra.guards.neededbynodes import Needs
from infra.guards.ownership import described_tags, tags_of
from infra.inputs import is_unknown
from infra.lifecycle import sharedobjects
from infra.lifecycle.destroying import is_replacing, refuse_ahead
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import StatefulProvider
from infra.wording import wrap_lines

TITLES: Mapping[str, str] = {
    "cluster": "the cluster {0}, with its network and everything that runs there,",
    "network": "the network {0} of the cluster",
    "nodeRole": "the role {0} of the nodes",
    "controllerRole": "the role {0} of the controller",
    "queue": "the interruption queue {0}, with its rules,",
}
"""Title of each guarded resource in messages, by the key of its setting.

The network is deleted with its cluster."""

_ROLE = tuple(f"aws:iam/{kind}:" for kind in ("policy", "role", "rolePolicy"))
STAYING: Mapping[str, tuple[str, ...]] = {
    "cluster": ("aws:",),
    "nodeRole": (*_ROLE, "aws:iam/rolePolicyAttachment:"),
    "controllerRole": (*_ROLE, "aws:iam/rolePolicyAttachment:"),
    "queue": ("aws:sqs/", "aws:cloudwatch/"),
    "nodes": ("pulumi-python:dynamic/joiner:", "joiner:dynamic/joiner:"),
}
"""Prefixes of the resource types that are retained, by a value in `retainOnDelete`.

Instance profiles and Pod Identity associations are deleted all the same. Nodes are retained if no
resource that drains or terminates them is deleted."""


class WouldBeDeletedError(Exception):
    """A change would delete what the stack created; the message says how to keep or delete it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join([*map(wrap_lines, problems), "Nothing has been changed."]))


class DeletionGuard(RegisteredResource, module="joiner", name="DeletionGuard"):
    """Records what the stack created, and refuses changes that would delete it unconfirmed.

    A stack has several guards. The one that is created first checks each change before anything
    happens. The engine deletes resources in the reverse order. So a guard that is created later
    checks in a destroy whether the resources created before it may be deleted.
    """

    def __init__(
        self,
        name: str,
        location: ClusterLocation | EksCluster,
        made: Mapping[str, pulumi.Input[str]],
        *,
        installation: str,
        fixed: Mapping[str, str] | None = None,
        retained: Sequence[str] = (),
        confirmed: Sequence[str] = (),
        needed: Needs | None = None,
        settings: Mapping[str, pulumi.Input[str]] | None = None,
        shared: Mapping[str, Any] | None = None,
        outlives_cluster: bool = False,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Record what the stack created.

        Args:
            name: the name of the resource.
            location: the location of the cluster.
            made: names of the created resources, by keys of `TITLES`.
            installation: value of the tag on what the program created.
            fixed: settings whose change replaces the cluster, by key.
            retained: keys of what stays in AWS when it leaves the stack.
            confirmed: keys of what may be deleted or replaced.
            needed: what nodes depend on.
            settings: the settings that decide what nodes depend on, by name.
            shared: what the stack created that others may use, as `sharedobjects.delete_unused`
                reads it.
            outlives_cluster: whether the stack creates the cluster and this guard is deleted
                after it. The guard then proves that nothing of the cluster is left in AWS.
            opts: the options of the resource.

        """
        props = {
            **location.location,
            "installation": installation,
            "made": dict(made),
            "fixed": dict(fixed or {}),
            "retained": list(retained),
            "confirmed": list(confirmed),
            "needed": {key: dict(parts) for key, parts in (needed or {}).items()},
            "settings": dict(settings or {}),
            "shared": dict(shared or {}),
            "outlives_cluster": outlives_cluster,
        }
        keys = list(props)
        super().__init__(_DeletionGuardProvider(), name, props, opts)
        refuse_ahead(self, keys, _obstacles_to_end)


class _DeletionGuardProvider(StatefulProvider):
    """Compares the recorded resources with the new ones, and checks their owners."""

    kind = "deletion-guard"

    def check(self, olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        place = (news["cluster_name"], news["region"])
        is_known = news["shared"] and not any(map(is_unknown, place))
        # The engine gives no old properties of a resource that the user has replaced by name.
        if (
            is_known
            and (olds or not is_replacing())
            and (problems := list(customresources.foreign_crd_problems(olds, news)))
        ):
            raise WouldBeDeletedError(problems)
        return CheckResult(news, [])

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        found = super().diff(_id, olds, _with_provider(olds, news))
        going = dict(_removed_resources(olds, news))
        problems = [*_unconfirmed_deletions(olds, news, going), *_foreign(olds, going)]
        problems += neededbynodes.refusals(olds, news)
        if problems:
            raise WouldBeDeletedError(problems)
        return found

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        return super().update(_id, olds, _with_provider(olds, news))

    def end(self, props: dict[str, Any]) -> None:
        if problems := _obstacles_to_end(props):
            raise WouldBeDeletedError(problems)
        sharedobjects.delete_unused(props)
        if props["outlives_cluster"] and "cluster" not in props["retained"]:
            clusterproof.refuse_left(ClusterLocation.of(props), props["installation"])
            for delete in (clusterproof.delete_roles, clusterproof.delete_launch_templates):
                delete(ClusterLocation.of(props), props["installation"])


def _with_provider(olds: Mapping[str, Any], news: dict[str, Any]) -> dict[str, Any]:
    """Return the properties with the OIDC provider that the stack created earlier.

    It stays in IAM when the identity changes, because other roles may trust it. The destroy
    deletes it then.
    """
    earlier = olds["shared"].get("oidcProvider")
    return {**news, "shared": {"oidcProvider": earlier, **news["shared"]}} if earlier else news


def _obstacles_to_end(props: Mapping[str, Any]) -> list[str]:
    """Return why the stack may not end: what it deletes is another's, protected, or needed."""
    kept = props["retained"]
    held = {key: name for key, name in props["made"].items() if key not in kept}
    return [
        *_foreign(props, held),
        *_deletion_protection(props, held),
        *neededbynodes.refusals_of_end(props),
    ]


def retention_options(key: str, retaining: Sequence[str]) -> pulumi.ResourceOptions:
    """Return resource options that keep resources in AWS if `key` is in `retaining`.

    `key` is one of the values that `retainOnDelete` allows, and decides the types of the resources
    (`STAYING`). `retaining` is the value of that setting.
    """

    def retain(
        made: pulumi.ResourceTransformationArgs,
    ) -> pulumi.ResourceTransformationResult | None:
        if not made.type_.startswith(STAYING[key]):
            return None
        stays = pulumi.ResourceOptions(retain_on_delete=True)
        return pulumi.ResourceTransformationResult(
            made.props, pulumi.ResourceOptions.merge(made.opts, stays)
        )

    return pulumi.ResourceOptions(transformations=[retain] if key in retaining else [])


def _removed_resources(
    olds: Mapping[str, Any], news: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield key and name of each resource that the change deletes or renames."""
    for key, name in olds["made"].items():
        if key in olds["retained"]:
            continue
        after = news["made"].get(key)
        is_known = not (after is None or is_unknown(after)) or key not in news["made"]
        if is_known and after != name:
            yield key, name


def _unconfirmed_deletions(
    olds: Mapping[str, Any], news: Mapping[str, Any], going: Mapping[str, str]
) -> Iterator[str]:
    for key in going.keys() - news["made"].keys() - set(news["confirmed"]):
        yield (
            f"{PROJECT}:{key} changes from create to existing, which would delete "
            f"{TITLES[key].format(going[key]).removesuffix(',')}. To keep it, set {PROJECT}:{key} "
            f"back to create and {PROJECT}:retainOnDelete to {key}, run `pulumi up`, and then set "
            f"{PROJECT}:{key} to existing. To delete it, set {PROJECT}:confirmDelete to {key}"
        )
    if not (olds["fixed"] and news["fixed"]) or "cluster" in news["confirmed"]:
        return
    for key, before in olds["fixed"].items():
        after = news["fixed"].get(key, "left out")
        if after != before:
            yield (
                f"{PROJECT}:{key} changes from {before} to {after}, which would replace the "
                f"cluster and delete everything that runs there. Set {PROJECT}:{key} back, or set "
                f"{PROJECT}:confirmDelete to cluster to replace it"
            )


def _deletion_protection(props: Mapping[str, Any], going: Mapping[str, str]) -> Iterator[str]:
    """Yield why EKS would not delete the cluster: then its nodes and its network stay too.

    `going` are the names of what would be deleted, by key.
    """
    if "cluster" not in going:
        return
    try:
        cluster = describe_cluster(ClusterLocation.of(props))
    except ClusterGoneError:
        return
    if cluster.get("deletionProtection"):
        yield (
            f"the cluster {going['cluster']} has deletion protection, so EKS does not delete it. "
            f"To delete it, set {PROJECT}:deletionProtection to false, run `pulumi up`, and then "
            "`pulumi destroy` again"
        )


def _foreign(props: Mapping[str, Any], going: Mapping[str, str]) -> Iterator[str]:
    """Yield the resources that would be deleted but do not have the installation's tag."""
    location, installation = ClusterLocation.of(props), props["installation"]
    for key, name in going.items():
        tags = tags_of(key, name, location)
        if tags is not None and tags.get(labels.TAG_INSTALLATION) != installation:
            yield (
                f"{TITLES[key].format(name)} would be deleted, but it does not belong to this "
                f"installation: its tags are {described_tags(tags)}. To delete it, tag it "
                f"{labels.TAG_INSTALLATION}={installation}. To keep it, remove it from the stack "
                "(`pulumi state delete` with its URN, which `pulumi stack --show-urns` shows)"
            )
