"""How the controller's pods become its role: what must be so before, and what must not.

A pod gets the means of its identity when it is created and keeps them for life: EKS
looks for a Pod Identity association of its service account first, for the account's
role annotation (IRSA) only when there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
from botocore.exceptions import ClientError
from pulumi.dynamic import CreateResult, Resource

from infra.clusterapi import ClusterApi, ClusterLocation
from infra.config import ConfigError, Presence
from infra.ekscluster import EksCluster
from infra.podidentity import Identities
from infra.policies import Place
from infra.statefulprovider import StatefulProvider
from infra.teardown import STACK_ANNOTATION


class ForeignAssociationError(Exception):
    """Somebody else gives the controller's service account another role."""

    def __init__(self, cluster: str, association: dict[str, Any]) -> None:
        account = f"{association['namespace']}/{association['serviceAccount']}"
        super().__init__(
            f"service account {account} has the Pod Identity association "
            f"{association['associationId']} with {association['roleArn']}, which this stack "
            "did not make and which comes before IRSA. Delete it (aws eks "
            f"delete-pod-identity-association --cluster-name {cluster} --association-id "
            f"{association['associationId']}), or choose another joiner:name."
        )


def provider_arn(place: Place, issuer: str) -> str:
    """Return the ARN that IAM gives the OIDC provider of an issuer."""
    host = issuer.removeprefix("https://")
    return f"arn:{place.partition}:iam::{place.account}:oidc-provider/{host}"


def refuse_unusable_provider(
    wanted: Presence, *, place: Place, issuer: str, stack: str, iam: Any
) -> None:
    """Look whether the cluster's OIDC provider is in IAM as the setting says.

    Args:
        wanted: the value of `joiner:oidcProvider`.
        place: the cluster's.
        issuer: URL of the cluster's OIDC issuer; empty where it has none.
        stack: organization/project/stack, which is on a provider that the stack has made.
        iam: boto3's client.

    Raises:
        ConfigError: it is not; says what to set.

    """
    if not issuer:
        raise ConfigError(
            [
                f"joiner:identity='irsa' cannot be used: the cluster {place.cluster_name} has no "
                "OIDC issuer; use pod-identity"
            ]
        )
    arn = provider_arn(place, issuer)
    tags = _tags_of_provider(iam, arn)
    is_ours = tags is not None and tags.get(STACK_ANNOTATION) == stack
    if wanted == "create" and tags is not None and not is_ours:
        raise ConfigError(
            [
                f"joiner:oidcProvider='create' cannot be used: {arn} exists already, made by "
                "somebody else; set it to existing"
            ]
        )
    if wanted == "existing" and tags is None:
        raise ConfigError(
            [
                f"joiner:oidcProvider='existing' cannot be used: IAM has no OIDC provider for "
                f"{issuer}; set it to create"
            ]
        )
    if wanted == "existing" and is_ours:
        raise ConfigError(
            [
                f"joiner:oidcProvider='existing' cannot be used: this stack made {arn} and would "
                f"delete it; leave it at create, or hand the provider over first: remove its tag "
                f"{STACK_ANNOTATION}, and it from the stack's state (pulumi state delete)"
            ]
        )


def _tags_of_provider(iam: Any, arn: str) -> dict[str, str] | None:
    try:
        provider = iam.get_open_id_connect_provider(OpenIDConnectProviderArn=arn)
    except ClientError as exc:
        if exc.response["Error"]["Code"] == "NoSuchEntity":
            return None
        raise
    return {tag["Key"]: tag["Value"] for tag in provider.get("Tags", [])}


@dataclass(frozen=True, kw_only=True)
class NoAssociationArgs:
    """Whose association must not be there, and the stack that may have made it."""

    cluster: EksCluster
    namespace: pulumi.Input[str]
    service_account: pulumi.Input[str]
    stack: str
    """organization/project/stack."""


class NoAssociation(Resource):
    """A service account without a Pod Identity association, so that IRSA can be its identity.

    The engine deletes what a program no longer asks for when everything else is done: too
    late for the pods that have started by then. EKS sees the end of an association seconds
    late, too, and so it is waited for.
    """

    def __init__(
        self, name: str, args: NoAssociationArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(
            _NoAssociationProvider(),
            name,
            {
                **args.cluster.location,
                "namespace": args.namespace,
                "service_account": args.service_account,
                "stack": args.stack,
            },
            opts,
        )


class _NoAssociationProvider(StatefulProvider):
    """Takes the association away when it is created; its own end gives nothing back."""

    kind = "no-association"

    identity = ("cluster_name", "namespace", "service_account")

    def create(self, props: dict[str, Any]) -> CreateResult:
        location = ClusterLocation.of(props)
        namespace, service_account = props["namespace"], props["service_account"]
        was_there = remove_association(
            location.client("eks"),
            cluster=location.cluster_name,
            namespace=namespace,
            service_account=service_account,
            stack=props["stack"],
        )
        if was_there:
            Identities(
                cluster=ClusterApi.find(location),
                namespace=namespace,
                service_account=service_account,
            ).end()
        return super().create(props)


def remove_association(
    eks: Any, *, cluster: str, namespace: str, service_account: str, stack: str
) -> bool:
    """Remove the association that the stack has given the service account.

    Returns whether there was one.

    Raises:
        ForeignAssociationError: somebody else has given it one.

    """
    associations = eks.list_pod_identity_associations(
        clusterName=cluster, namespace=namespace, serviceAccount=service_account
    )["associations"]
    for listed in associations:
        named = {"clusterName": cluster, "associationId": listed["associationId"]}
        association = eks.describe_pod_identity_association(**named)["association"]
        if association.get("tags", {}).get(STACK_ANNOTATION) != stack:
            raise ForeignAssociationError(cluster, association)
        eks.delete_pod_identity_association(**named)
    return bool(associations)
