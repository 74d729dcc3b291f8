"""Checks for the most common reasons why the first node does not launch or join.

Each finding is a warning that says what to set. The program continues, because what is missing may
exist before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import labels
from infra.clusterapi import (
    CLUSTER_ERRORS,
    ApiError,
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    NotAuthenticatedError,
    describe_cluster,
)
from infra.config.forms import ConfigError, Identity
from infra.deployment.controller import CRITICAL
from infra.lifecycle.awsanswers import ABSENT, unless_error
from infra.lifecycle.sharedobjects import POD_IDENTITY_AGENT

Wire = Mapping[str, Any]

SPOT_ROLE = "AWSServiceRoleForEC2Spot"
"""EC2's service-linked role for spot; an account has it after it first used spot."""

ENDPOINTS = ("ec2", "ecr.api", "ecr.dkr", "eks", "s3", "sqs", "ssm", "sts")
"""AWS services that the controller and its nodes call."""

CREDENTIALS = "eks-auth"
"""AWS service of which the Pod Identity agent gets the credentials of pods."""

FORBIDDEN = 403
CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
"""Objects that every stack with a controller creates."""

SYSTEM = "/apis/apps/v1/namespaces/kube-system"


def require_access(location: ClusterLocation, path: str = CLUSTER_ROLES) -> bool:
    """Check that the API server lets the principal that runs Pulumi read objects.

    Args:
        location: the location of the cluster.
        path: the objects that the stack creates.

    Returns:
        Whether the API server answers. If it does not, the check passes.

    Raises:
        ConfigError: the principal has no access to the cluster, or too little.

    """
    try:
        ClusterApi.find(location).get(f"{path}?limit=1")
    except NotAuthenticatedError as exc:
        problem: Exception = exc
    except ApiError as exc:
        if exc.status != FORBIDDEN:
            return True
        problem = exc
    except CLUSTER_ERRORS:
        return False
    else:
        return True
    cluster = f"--cluster-name {location.cluster_name} --region {location.region}"
    principal = "--principal-arn <ARN of your IAM role or user>"
    raise ConfigError(
        f"joiner:clusterName={location.cluster_name!r}: the principal that runs Pulumi has no "
        f"access to the cluster: {problem}. Create an access entry with "
        f"AmazonEKSClusterAdminPolicy: aws eks create-access-entry {cluster} {principal}; "
        f"aws eks associate-access-policy {cluster} {principal} --access-scope type=cluster "
        "--policy-arn arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy. Or "
        "set joiner:kubeconfig to a kubeconfig of a principal that has access"
    )


def of_account(location: ClusterLocation, node_pools: Sequence[Wire]) -> Iterator[str]:
    """Yield a warning if the account lacks the spot role that the NodePools need."""
    spot = sorted(str(pool["metadata"]["name"]) for pool in node_pools if _takes_spot(pool))
    if spot and _is_absent(lambda: location.client("iam").get_role(RoleName=SPOT_ROLE)):
        yield (
            f"the account has no role {SPOT_ROLE}, so EC2 cannot launch spot instances for "
            f"NodePool {', '.join(spot)}: set joiner:spotRole to create"
        )


def of_entry(location: ClusterLocation, role: str) -> Iterator[str]:
    """Yield a warning if the access entry of the node role belongs to a deleted role of its name.

    EKS binds an entry to the unique ID of its role. A role that was created again has another ID.
    """
    eks, iam = location.client("eks"), location.client("iam")
    try:
        found = iam.get_role(RoleName=role)["Role"]
        entry = eks.describe_access_entry(
            clusterName=location.cluster_name, principalArn=found["Arn"]
        )["accessEntry"]
    except (BotoCoreError, ClientError):
        return
    if entry["createdAt"] < found["CreateDate"]:
        command = (
            f"aws eks delete-access-entry --cluster-name {location.cluster_name} --region "
            f"{location.region} --principal-arn {found['Arn']}"
        )
        yield (
            f"the role {role} was created after its access entry, which belongs to a deleted role "
            "of the same name: EKS refuses nodes with the new role. Run `pulumi up --refresh`, "
            "which creates the entry again. If this warning remains, delete the entry first: "
            f"{command}"
        )


def of_agent(location: ClusterLocation) -> Iterator[str]:
    """Yield a warning if EKS Pod Identity cannot give the controller's pods credentials."""
    name = {"clusterName": location.cluster_name, "addonName": POD_IDENTITY_AGENT}
    if not _is_absent(lambda: location.client("eks").describe_addon(**name)):
        return
    if not _has_auto_mode(location) and not _object(
        location, f"{SYSTEM}/daemonsets/{POD_IDENTITY_AGENT}"
    ):
        yield (
            f"EKS cluster {location.cluster_name} has no add-on {POD_IDENTITY_AGENT}, so the "
            "controller's pods get no AWS credentials: set joiner:podIdentityAgent to create, or "
            "joiner:identity to irsa"
        )


def of_dns(location: ClusterLocation) -> Iterator[str]:
    """Yield a warning if the controller's pods cannot resolve names through CoreDNS."""
    dns = _object(location, f"{SYSTEM}/deployments/coredns")
    if dns is not None and not (dns.get("status") or {}).get("readyReplicas"):
        yield (
            "CoreDNS has no ready pod. If CoreDNS waits for nodes that the controller launches, "
            "neither starts: set joiner:dnsPolicy to Default, so the controller's pods resolve "
            "names through the VPC"
        )


def of_endpoints(location: ClusterLocation, identity: Identity) -> Iterator[str]:
    """Yield a warning if an isolated VPC lacks endpoints of AWS services that Joiner calls."""
    needed = [*ENDPOINTS, *([CREDENTIALS] if identity == "pod-identity" else ())]
    try:
        vpc = describe_cluster(location)["resourcesVpcConfig"]["vpcId"]
        pages = (
            location.client("ec2")
            .get_paginator("describe_vpc_endpoints")
            .paginate(Filters=[{"Name": "vpc-id", "Values": [vpc]}])
        )
        found = [one["ServiceName"] for page in pages for one in page["VpcEndpoints"]]
    except (BotoCoreError, ClientError, ClusterGoneError, KeyError):
        return
    lacking = [one for one in needed if not any(name.endswith(f".{one}") for name in found)]
    if lacking:
        yield (
            f"ISOLATED_VPC is true, but VPC {vpc} has no endpoint for {', '.join(lacking)}: create "
            "these interface endpoints, unless the VPC reaches them in another network"
        )


def of_nodes(
    location: ClusterLocation, selector: Mapping[str, str], tolerations: Sequence[Wire]
) -> Iterator[str]:
    """Yield a warning if the controller's pods fit no node of the cluster, and none will be added.

    EKS Auto Mode and Fargate add a node for each pending pod. `joiner:affinity` is not considered.
    """
    try:
        nodes = ClusterApi.find(location).list("/api/v1/nodes")
    except CLUSTER_ERRORS:
        return
    selector = {"kubernetes.io/os": "linux", **selector}
    reasons = {_misfit(node, selector, [CRITICAL, *tolerations]) for node in nodes}
    if "" in reasons or _has_auto_mode(location) or _has_fargate(location):
        return
    yield (
        f"the controller's pods fit no node of EKS cluster {location.cluster_name}: "
        f"{'; '.join(sorted(reasons)) or 'it has no nodes'}. They do not run on nodes that the "
        "controller launches: create a managed node group with two nodes, or set "
        "joiner:tolerations and joiner:nodeSelector to what the cluster's nodes have"
    )


def _misfit(node: Wire, selector: Mapping[str, str], tolerations: Sequence[Wire]) -> str:
    """Return why a node does not take the controller's pods, as text about all such nodes."""
    held = node["metadata"].get("labels") or {}
    if labels.EC2NODECLASS in held:
        return "nodes of an EC2NodeClass"
    lacking = [f"{key}={value}" for key, value in selector.items() if held.get(key) != value]
    if lacking:
        return f"nodes without the label {', '.join(lacking)}"
    spec = node.get("spec") or {}
    for taint in spec.get("taints") or ():
        hard = taint["effect"] != "PreferNoSchedule"
        if hard and not any(_tolerates(one, taint) for one in tolerations):
            return f"nodes with the taint {taint['key']}:{taint['effect']}"
    return ""


def _tolerates(toleration: Wire, taint: Wire) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    same = toleration["key"] == taint["key"]
    anything = toleration.get("operator") == "Exists"
    return same and (anything or (toleration.get("value") or "") == (taint.get("value") or ""))


def _has_auto_mode(location: ClusterLocation) -> bool:
    return bool((describe_cluster(location).get("computeConfig") or {}).get("enabled"))


def _has_fargate(location: ClusterLocation) -> bool:
    """Return whether the cluster has Fargate profiles; True if EKS does not say."""
    try:
        eks = location.client("eks")
        return bool(
            eks.list_fargate_profiles(clusterName=location.cluster_name)["fargateProfileNames"]
        )
    except (BotoCoreError, ClientError):
        return True


def _takes_spot(manifest: Wire) -> bool:
    """Whether a NodePool allows spot instances; without a capacity type requirement it does not."""
    if manifest.get("kind") != "NodePool":
        return False
    requirements = manifest["spec"]["template"]["spec"].get("requirements") or []
    of_capacity = [one for one in requirements if one.get("key") == labels.CAPACITY_TYPE]
    return bool(of_capacity) and all(map(_admits_spot, of_capacity))


def _admits_spot(requirement: Wire) -> bool:
    is_named = labels.SPOT in (requirement.get("values") or [])
    match requirement["operator"]:
        case "In":
            return is_named
        case "NotIn":
            return not is_named
        case operator:
            return bool(operator == "Exists")


def _is_absent(look: Any) -> bool:
    """Whether AWS answers that the resource does not exist; False if the request fails."""
    try:
        return unless_error(ABSENT, look) is None
    except (BotoCoreError, ClientError):
        return False


def _object(location: ClusterLocation, path: str) -> Wire | None:
    """Return an object of the cluster; None if there is none, or the cluster does not answer."""
    try:
        return ClusterApi.find(location).get(path)
    except CLUSTER_ERRORS:
        return None
