"""Prerequisites for the controller's pods to assume its role by IRSA.

EKS injects credentials into a pod only when the pod is created. It uses a Pod Identity association
of the service account first, and the role in the service account's annotation (IRSA) only if there
is no association.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult

from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.config.forms import ConfigError, Presence
from infra.identity.podidentity import identities_of
from infra.lifecycle.awsanswers import ABSENT, tags_in, unless_error
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import StatefulProvider
from infra.lifecycle.teardown import STACK_ANNOTATION
from infra.policies import Place


class ForeignAssociationError(Exception):
    """The service account has a Pod Identity association that the stack did not create."""

    def __init__(self, cluster: str, association: dict[str, Any]) -> None:
        account = f"{association['namespace']}/{association['serviceAccount']}"
        super().__init__(
            f"service account {account} has the Pod Identity association "
            f"{association['associationId']} with {association['roleArn']}, which this stack "
            "did not create and which takes precedence over IRSA. Delete it (aws eks "
            f"delete-pod-identity-association --cluster-name {cluster} --association-id "
            f"{association['associationId']}), or set joiner:name to another name."
        )


def provider_arn(place: Place, issuer: str) -> str:
    """Return the ARN of an issuer's OIDC provider in IAM."""
    host = issuer.removeprefix("https://")
    return f"arn:{place.partition}:iam::{place.account}:oidc-provider/{host}"


def refuse_unusable_provider(
    wanted: Presence, *, place: Place, issuer: str, stack: str, iam: Any
) -> None:
    """Check that the cluster's OIDC provider exists in IAM, or does not, as the setting says.

    Args:
        wanted: the value of `joiner:oidcProvider`.
        place: partition, region, account and name of the cluster.
        issuer: URL of the cluster's OIDC issuer; empty if it has none.
        stack: organization/project/stack, the value of a tag on a provider that the stack created.
        iam: boto3's IAM client.

    Raises:
        ConfigError: the cluster has no issuer, the provider to use does not exist, or the provider
            to create exists and is not of this stack; says what to set.

    """
    if not issuer:
        raise ConfigError(
            f"joiner:identity='irsa' cannot be used: the cluster {place.cluster_name} has no "
            "OIDC issuer; set joiner:identity to pod-identity"
        )
    arn = provider_arn(place, issuer)
    tags = _tags_of_provider(iam, arn)
    is_ours = tags is not None and tags.get(STACK_ANNOTATION) == stack
    if wanted == "create" and tags is not None and not is_ours:
        raise ConfigError(
            f"joiner:oidcProvider='create' cannot be used: {arn} exists, and "
            "this stack did not create it; set joiner:oidcProvider to existing"
        )
    if wanted == "existing" and tags is None:
        raise ConfigError(
            f"joiner:oidcProvider='existing' cannot be used: IAM has no OIDC provider for "
            f"{issuer}; set joiner:oidcProvider to create"
        )


def delete_earlier_provider(iam: Any, arn: str, stack: str) -> None:
    """Delete an OIDC provider that the stack created, but that its state does not have.

    It stays in IAM when the setting `identity` changes, or when an `up` is killed while it is
    created. The stack is about to create it again with the same ARN, and IAM would refuse that.
    Roles that trust the earlier provider trust the new one, because its ARN is the same.

    Args:
        iam: boto3's IAM client.
        arn: the ARN of the provider.
        stack: organization/project/stack, the value of a tag on what the stack created.

    """
    tags = _tags_of_provider(iam, arn)
    if tags is not None and tags.get(STACK_ANNOTATION) == stack:
        iam.delete_open_id_connect_provider(OpenIDConnectProviderArn=arn)


def _tags_of_provider(iam: Any, arn: str) -> dict[str, str] | None:
    look = partial(iam.get_open_id_connect_provider, OpenIDConnectProviderArn=arn)
    provider = unless_error(ABSENT, look)
    return None if provider is None else tags_in(provider)


@dataclass(frozen=True, kw_only=True)
class NoAssociationArgs:
    """The service account that must have no association, and the stack that may have created it."""

    cluster: EksCluster
    namespace: pulumi.Input[str]
    service_account: pulumi.Input[str]
    stack: str
    """The full name of the stack, organization/project/stack."""


class NoAssociation(RegisteredResource, module="joiner", name="NoAssociation"):
    """A service account without a Pod Identity association, so that its pods use IRSA.

    Creating this resource deletes the association. The engine would delete an association that the
    program no longer declares only at the end of `up`, after new pods have started. EKS also
    notices the deletion some seconds late, so the resource waits for it.
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
    """Deletes the association on creation; its own deletion does not restore the association."""

    kind = "no-association"

    identity = ("cluster_name", "namespace", "service_account")

    def create(self, props: dict[str, Any]) -> CreateResult:
        was_there = remove_association(
            ClusterLocation.of(props).client("eks"),
            cluster=props["cluster_name"],
            namespace=props["namespace"],
            service_account=props["service_account"],
            stack=props["stack"],
        )
        if was_there:
            identities_of(props).end()
        return super().create(props)


def remove_association(
    eks: Any, *, cluster: str, namespace: str, service_account: str, stack: str
) -> bool:
    """Delete the Pod Identity association that the stack created for the service account.

    Returns:
        Whether there was one.

    Raises:
        ForeignAssociationError: the association is not of this stack; it is kept.

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
