"""The providers of AWS and of the cluster, always named, never implied."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes

from controller.apis import labels
from infra.config import StackConfig
from infra.policies import Place

SERVICES = ("ec2", "ecr", "eks", "events", "iam", "sqs", "ssm", "sts")
"""The AWS APIs the program speaks to, as the provider calls their endpoints."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The EKS cluster as it was found."""

    place: Place
    endpoint: str
    certificate_authority: str
    """Base64 of PEM."""

    issuer: str
    """Of service account tokens; empty where the cluster has no OIDC issuer."""

    subnet_ids: tuple[str, ...]
    security_group_id: str

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.place.cluster_name


def aws_provider(
    config: StackConfig, *, installation: str, after: Sequence[pulumi.Resource] = ()
) -> aws.Provider:
    """Return the provider of AWS in the stack's region.

    Everything made with it is made after `after`, gone before `after` goes, and bears the tag
    of the installation.
    """
    endpoint: dict[str, Any] = {}
    if config.aws_endpoint:
        every = dict.fromkeys(SERVICES, config.aws_endpoint)
        endpoint = {
            "endpoints": [aws.ProviderEndpointArgs(**every)],
            "skip_credentials_validation": True,
            "skip_metadata_api_check": True,
            "skip_region_validation": True,
            "skip_requesting_account_id": True,
        }
    return aws.Provider(
        "aws",
        region=config.region,
        default_tags=aws.ProviderDefaultTagsArgs(
            tags={**config.tags, labels.TAG_INSTALLATION: installation}
        ),
        **endpoint,
        opts=pulumi.ResourceOptions(depends_on=list(after)),
    )


def find_cluster(config: StackConfig, provider: aws.Provider) -> Cluster:
    """Look the cluster up; the stack ends here when there is none."""
    options = pulumi.InvokeOptions(provider=provider)
    account = aws.get_caller_identity(opts=options).account_id
    partition = aws.get_partition(opts=options).partition
    cluster = aws.eks.get_cluster(name=config.cluster_name, opts=options)
    issuers = [oidc.issuer for identity in cluster.identities for oidc in identity.oidcs]
    return Cluster(
        place=Place(partition, config.region, account, config.cluster_name),
        endpoint=cluster.endpoint,
        certificate_authority=cluster.certificate_authorities[0].data,
        issuer=next(iter(issuers), ""),
        subnet_ids=tuple(sorted(cluster.vpc_config.subnet_ids)),
        security_group_id=cluster.vpc_config.cluster_security_group_id,
    )


def kubernetes_provider(
    config: StackConfig, cluster: Cluster, *, after: Sequence[pulumi.Resource] = ()
) -> kubernetes.Provider:
    """Return the provider of the cluster: by the kubeconfig named, or as EKS gives access."""
    path = config.kubeconfig_path
    return kubernetes.Provider(
        "kubernetes",
        kubeconfig=str(path) if path else eks_kubeconfig(cluster),
        # Another endpoint or CA is another way to the same cluster: nothing in it is replaced.
        cluster_identifier=f"{cluster.place.region}/{cluster.name}",
        # Nothing is said of unreachable clusters: what is silent is not gone, and the variable by
        # which a user gives a cluster up counts only where the program says nothing.
        opts=pulumi.ResourceOptions(depends_on=list(after)),
    )


def eks_kubeconfig(cluster: Cluster) -> str:
    """Write a kubeconfig that asks `aws eks get-token` for a token when one is needed."""
    name = cluster.name
    arguments = ["eks", "get-token", "--cluster-name", name, "--region", cluster.place.region]
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": cluster.endpoint,
                        "certificate-authority-data": cluster.certificate_authority,
                    },
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "exec": {
                            "apiVersion": "client.authentication.k8s.io/v1beta1",
                            "command": "aws",
                            "args": arguments,
                            "interactiveMode": "Never",
                        }
                    },
                }
            ],
        },
        sort_keys=True,
    )
