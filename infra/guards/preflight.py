"""Checks for the most common reasons why the first node does not launch or join.

Each finding is a warning that says what to set. The program continues, because what is missing may
exist before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import labels
from infra.clusterapi import CLUSTER_ERRORS, ClusterApi, ClusterLocation, describe_cluster
from infra.lifecycle.awsanswers import ABSENT, unless_error
from infra.lifecycle.sharedobjects import POD_IDENTITY_AGENT

Wire = Mapping[str, Any]

SPOT_ROLE = "AWSServiceRoleForEC2Spot"
"""EC2's service-linked role for spot; an account has it after it first used spot."""

SYSTEM = "/apis/apps/v1/namespaces/kube-system"


def of_account(location: ClusterLocation, node_pools: Sequence[Wire]) -> Iterator[str]:
    """Yield a warning if the account lacks the spot role that the NodePools need."""
    spot = sorted(str(pool["metadata"]["name"]) for pool in node_pools if _takes_spot(pool))
    if spot and _is_absent(lambda: location.client("iam").get_role(RoleName=SPOT_ROLE)):
        yield (
            f"the account has no role {SPOT_ROLE}, so EC2 cannot launch spot instances for "
            f"NodePool {', '.join(spot)}: set joiner:spotRole to create"
        )


def of_agent(location: ClusterLocation) -> Iterator[str]:
    """Yield a warning if EKS Pod Identity cannot give the controller's pods credentials."""
    name = {"clusterName": location.cluster_name, "addonName": POD_IDENTITY_AGENT}
    if not _is_absent(lambda: location.client("eks").describe_addon(**name)):
        return
    has_auto_mode = bool((describe_cluster(location).get("computeConfig") or {}).get("enabled"))
    if not has_auto_mode and not _object(location, f"{SYSTEM}/daemonsets/{POD_IDENTITY_AGENT}"):
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
