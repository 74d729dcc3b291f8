"""The EKS cluster that Joiner works on: found by its name, or made by the same program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes

from infra.clusterapi import ClusterLocation, kubeconfig_file
from infra.policies import Place


@dataclass(frozen=True, kw_only=True)
class EksCluster:
    """What there is to know of a cluster; any of it may be known only once the cluster is made."""

    name: pulumi.Input[str]
    region: pulumi.Input[str]
    account: pulumi.Input[str]
    """Twelve digits."""

    partition: pulumi.Input[str] = "aws"
    endpoint: pulumi.Input[str]
    """URL of the API server."""

    certificate_authority: pulumi.Input[str]
    """Base64 of PEM."""

    issuer: pulumi.Input[str] = ""
    """Of service account tokens; empty where the cluster has no OIDC issuer."""

    subnet_ids: Sequence[pulumi.Input[str]] = ()
    """Subnets where nodes may start; as many as are known while the program runs."""

    security_group_id: pulumi.Input[str]
    """The cluster's own, which lets nodes and control plane speak with one another."""

    authentication_mode: str = ""
    """API, API_AND_CONFIG_MAP or CONFIG_MAP; empty where it is not known."""

    ip_family: pulumi.Input[str] = "ipv4"
    """Of its pods and services: ipv4 or ipv6."""

    aws_endpoint: str = ""
    """One endpoint for every AWS API; AWS itself when empty."""

    kubeconfig: str = ""
    """Path of a kubeconfig, from home (~) or from the project; EKS's own way when empty."""

    @classmethod
    def of(cls, cluster: aws.eks.Cluster, *, subnet_ids: Sequence[pulumi.Input[str]]) -> EksCluster:
        """Describe a cluster of this program.

        Args:
            cluster: the resource.
            subnet_ids: where nodes may start.

        """
        parts = cluster.arn.apply(lambda arn: arn.split(":"))
        return cls(
            name=cluster.name,
            partition=parts[1],
            region=parts[3],
            account=parts[4],
            endpoint=cluster.endpoint,
            certificate_authority=cluster.certificate_authority.data,
            issuer=cluster.identities[0].oidcs[0].issuer,
            subnet_ids=subnet_ids,
            security_group_id=cluster.vpc_config.cluster_security_group_id,
        )

    @classmethod
    def found(cls, location: ClusterLocation, provider: aws.Provider | None = None) -> EksCluster:
        """Look a cluster up by its name; the program ends here when there is none.

        Args:
            location: its name and region, and the way there.
            provider: of AWS; the program's default one when left out.

        """
        options = pulumi.InvokeOptions(provider=provider)
        cluster = aws.eks.get_cluster(name=location.cluster_name, opts=options)
        issuers = [oidc.issuer for identity in cluster.identities for oidc in identity.oidcs]
        modes = [config.authentication_mode for config in cluster.access_configs or []]
        return cls(
            name=location.cluster_name,
            region=location.region,
            account=aws.get_caller_identity(opts=options).account_id,
            partition=aws.get_partition(opts=options).partition,
            endpoint=cluster.endpoint,
            certificate_authority=cluster.certificate_authorities[0].data,
            issuer=next(iter(issuers), ""),
            subnet_ids=tuple(sorted(cluster.vpc_config.subnet_ids)),
            security_group_id=cluster.vpc_config.cluster_security_group_id,
            authentication_mode=next(iter(modes), ""),
            ip_family=next(
                (one.ip_family for one in cluster.kubernetes_network_configs or ()), "ipv4"
            ),
            aws_endpoint=location.aws_endpoint,
            kubeconfig=location.kubeconfig,
        )

    @property
    def place(self) -> pulumi.Output[Place]:
        """What ARNs are made of."""
        parts = pulumi.Output.all(self.partition, self.region, self.account, self.name)
        place: pulumi.Output[Place] = parts.apply(lambda known: Place(*known))
        return place

    @property
    def location(self) -> Mapping[str, pulumi.Input[str]]:
        """How to find the cluster, as `ClusterLocation` says it and a stack's state keeps it."""
        return {
            "cluster_name": self.name,
            "region": self.region,
            "aws_endpoint": self.aws_endpoint,
            "kubeconfig": self.kubeconfig,
        }

    @property
    def known_location(self) -> ClusterLocation | None:
        """The same, where the program knows it; None where it will only be known."""
        parts = {key: value for key, value in self.location.items() if isinstance(value, str)}
        return ClusterLocation(**parts) if len(parts) == len(self.location) else None


def kubernetes_provider(
    cluster: EksCluster, name: str = "kubernetes", opts: pulumi.ResourceOptions | None = None
) -> kubernetes.Provider:
    """Return the provider of the cluster: by the kubeconfig named, or as EKS gives access."""
    return kubernetes.Provider(
        name,
        kubeconfig=(
            _for_plugin(cluster.kubeconfig) if cluster.kubeconfig else eks_kubeconfig(cluster)
        ),
        # Another endpoint or CA is another way to the same cluster: nothing in it is replaced.
        cluster_identifier=pulumi.Output.concat(cluster.region, "/", cluster.name),
        # Nothing is said of unreachable clusters: what is silent is not gone, and the variable by
        # which a user gives a cluster up counts only where the program says nothing.
        opts=opts,
    )


def _for_plugin(kubeconfig: str) -> str:
    """Return a path as the plugin reads it: it knows ~, and runs where the program runs."""
    if kubeconfig.startswith(("~", "/")):
        return kubeconfig
    return f"./{os.path.relpath(kubeconfig_file(kubeconfig))}"


def eks_kubeconfig(cluster: EksCluster) -> pulumi.Output[str]:
    """Write a kubeconfig that asks `aws eks get-token` for a token when one is needed."""
    return pulumi.Output.json_dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": cluster.name,
            "contexts": [
                {"name": cluster.name, "context": {"cluster": cluster.name, "user": cluster.name}}
            ],
            "clusters": [
                {
                    "name": cluster.name,
                    "cluster": {
                        "server": cluster.endpoint,
                        "certificate-authority-data": cluster.certificate_authority,
                    },
                }
            ],
            "users": [{"name": cluster.name, "user": {"exec": _get_token(cluster)}}],
        },
        sort_keys=True,
    )


def _get_token(cluster: EksCluster) -> dict[str, Any]:
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": ["eks", "get-token", "--cluster-name", cluster.name, "--region", cluster.region],
        "interactiveMode": "Never",
    }
