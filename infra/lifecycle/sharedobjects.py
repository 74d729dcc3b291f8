"""CRDs, the OIDC provider and the Pod Identity agent: created by a stack, usable by others.

EKS Auto Mode and Karpenter use the same CRDs, and any workload may get its role through the agent
or the provider. So the engine deletes none of them (`RETAINED`): if a setting removes them from the
stack, they stay. When the stack is destroyed, `delete_unused` deletes those that nothing else uses
and reports what it keeps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pulumi
from botocore.exceptions import ClientError

from controller.apis import labels
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL
from infra.clusterapi import (
    ClusterApi,
    ClusterLocation,
    Objects,
    Wire,
    unless_abandoned,
)
from infra.lifecycle.awsanswers import ABSENT, tags_in, unless_error
from infra.lifecycle.teardown import STACK_ANNOTATION, is_ours
from infra.lifecycle.waiting import Clock, say

RETAINED = pulumi.ResourceOptions(retain_on_delete=True)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POD_IDENTITY_AGENT = "eks-pod-identity-agent"
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
"""How long a CRD may take to be deleted; the API server deletes its objects first."""

OWN_GROUPS = (EC2_NODE_CLASS.group, "joiner.dev")
"""API groups whose objects all belong to this controller."""


def delete_unused(
    props: Mapping[str, Any], *, clock: Clock = time, say: Callable[[str], None] = say
) -> None:
    """Delete the shared objects that nothing else uses, as the last step of a destroy.

    Args:
        props: as `DeletionGuard` records them: the fields of the location; `installation`;
            `retained`; and `shared`, with the names of CRDs in `definitions`, the ARN of an
            `oidcProvider`, and `agent`, if the stack created them.
        clock: measures the wait for the deletion.
        say: receives what is kept, and why.

    Raises:
        ClusterNotAbandonedError: the cluster does not exist or does not answer, and the user did
            not allow a destroy without it.

    """
    shared, location = props["shared"], ClusterLocation.of(props)
    if definitions := shared.get("definitions"):
        with unless_abandoned(location):
            _delete_definitions(ClusterApi.find(location), definitions, props, clock=clock, say=say)
    if arn := shared.get("oidcProvider"):
        _delete_provider(location.client("iam"), arn, props["installation"], say)
    if shared.get("agent"):
        _delete_agent(location, props["installation"], say)


def others_in(definition: Wire, objects: Sequence[Wire], *, nodes_stay: bool) -> list[str]:
    """Return the names of a CRD's objects that do not belong to the stack.

    They would be deleted with the CRD.

    Args:
        definition: the CRD.
        objects: all objects of its kind.
        nodes_stay: whether another controller takes over the nodes, and so all objects.

    """
    group, kind = definition["spec"]["group"], definition["spec"]["names"]["kind"]

    def is_others(wire: Wire) -> bool:
        if nodes_stay:
            return True
        if (group, kind) == (NODE_POOL.group, NODE_POOL.name):
            return not is_ours(wire["spec"]["template"]["spec"])
        if (group, kind) == (NODE_CLAIM.group, NODE_CLAIM.name):
            return not is_ours(wire["spec"])
        marks = wire["metadata"].get("annotations") or {}
        return group not in OWN_GROUPS and STACK_ANNOTATION not in marks

    return sorted(wire["metadata"]["name"] for wire in objects if is_others(wire))


def installation_of(definition: Wire) -> str | None:
    """Return the installation that created a CRD, None if it has no annotation."""
    marks: Mapping[str, str] = definition["metadata"].get("annotations") or {}
    return marks.get(labels.TAG_INSTALLATION)


def _delete_definitions(
    cluster: Objects,
    names: Sequence[str],
    props: Mapping[str, Any],
    *,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Delete the CRDs that have no objects of others, and wait until all of them are deleted."""
    leaving = []
    for name in names:
        if _is_unused(cluster, name, props, clock=clock, say=say):
            cluster.delete(f"{DEFINITIONS}/{name}")
            leaving.append(name)
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while leaving := [name for name in leaving if cluster.get(f"{DEFINITIONS}/{name}")]:
        if clock.monotonic() >= deadline:
            break
        clock.sleep(POLL_SECONDS)
    for name in leaving:
        say(f"CustomResourceDefinition {name} is deleted once its objects have no finalizers")


def _is_unused(
    cluster: Objects,
    name: str,
    props: Mapping[str, Any],
    *,
    clock: Clock,
    say: Callable[[str], None],
) -> bool:
    """Return whether a CRD of the installation exists and has no objects of others."""
    held = cluster.get(f"{DEFINITIONS}/{name}")
    if held is None:
        return False
    if installation_of(held) != props["installation"]:
        say(f"keeping CustomResourceDefinition {name}: it belongs to another installation")
        return False
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while True:
        objects = cluster.list(_collection(held))
        others = others_in(held, objects, nodes_stay="nodes" in props["retained"])
        # The garbage collector may be late: objects that the stack has just deleted are no reason.
        if not any("deletionTimestamp" in wire["metadata"] for wire in objects):
            break
        if not others or clock.monotonic() >= deadline:
            break
        clock.sleep(POLL_SECONDS)
    if others:
        say(
            f"keeping CustomResourceDefinition {name}: this would also delete objects that do not "
            f"belong to this stack ({len(others)}): {', '.join(others[:10])}"
        )
    return not others


def _collection(definition: Wire) -> str:
    spec = definition["spec"]
    version = next(each["name"] for each in spec["versions"] if each["served"])
    return f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"


def _delete_provider(iam: Any, arn: str, installation: str, say: Callable[[str], None]) -> None:
    look = partial(iam.get_open_id_connect_provider, OpenIDConnectProviderArn=arn)
    found = unless_error(ABSENT, look)
    if found is None or tags_in(found).get(labels.TAG_INSTALLATION) != installation:
        return
    if roles := sorted(_trusting_roles(iam, arn)):
        say(f"keeping OIDC provider {arn}: these roles trust it: {', '.join(roles[:10])}")
    else:
        iam.delete_open_id_connect_provider(OpenIDConnectProviderArn=arn)


def _trusting_roles(iam: Any, arn: str) -> Iterator[str]:
    """Yield the names of roles whose trust policy names the provider."""
    for page in iam.get_paginator("list_roles").paginate():
        for role in page["Roles"]:
            if arn in json.dumps(role.get("AssumeRolePolicyDocument")):
                yield role["RoleName"]


def _delete_agent(location: ClusterLocation, installation: str, say: Callable[[str], None]) -> None:
    eks, cluster = location.client("eks"), {"clusterName": location.cluster_name}
    addon = {**cluster, "addonName": POD_IDENTITY_AGENT}
    try:
        tags = eks.describe_addon(**addon)["addon"].get("tags", {})
        if tags.get(labels.TAG_INSTALLATION) != installation:
            return
        associations = eks.list_pod_identity_associations(**cluster)["associations"]
        if associations:
            accounts = sorted(f"{a['namespace']}/{a['serviceAccount']}" for a in associations)
            say(
                f"keeping add-on {POD_IDENTITY_AGENT}: these service accounts have a Pod Identity "
                f"association: {', '.join(accounts[:10])}"
            )
        else:
            eks.delete_addon(**addon)
    except ClientError as exc:
        if exc.response["Error"]["Code"] != "ResourceNotFoundException":
            raise
