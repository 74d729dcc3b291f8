"""The EKS cluster that Joiner runs on: found by its name, or created by the same program."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes
import yaml

from infra.cluster.answering import endpoint_that_answers
from infra.clusterapi import FORCE, FORGET, UPSERT, ClusterLocation, kubeconfig_file
from infra.config.forms import ConfigError, IpFamily
from infra.policies import Place


@dataclass(frozen=True, kw_only=True)
class EksCluster:
    """The facts of an EKS cluster that other components need, such as name and endpoint.

    Each may be an output, known once the cluster is created.
    """

    name: pulumi.Input[str]
    """Name of the EKS cluster."""

    region: pulumi.Input[str]
    """AWS region such as us-west-2."""

    account: pulumi.Input[str]
    """AWS account ID, 12 digits."""

    partition: pulumi.Input[str] = "aws"
    """Partition of the region, such as aws or aws-cn."""

    endpoint: pulumi.Input[str]
    """URL of the API server."""

    certificate_authority: pulumi.Input[str]
    """The API server's CA certificate: PEM, base64-encoded."""

    issuer: pulumi.Input[str] = ""
    """URL of the issuer of service account tokens; empty if the cluster has no OIDC issuer."""

    subnet_ids: Sequence[pulumi.Input[str]] = ()
    """Subnets where nodes may launch; their number is known while the program runs."""

    security_group_id: pulumi.Input[str]
    """The cluster security group, which allows traffic between nodes and control plane."""

    authentication_mode: str = ""
    """API, API_AND_CONFIG_MAP or CONFIG_MAP; empty if it is unknown."""

    ip_family: pulumi.Input[str] = "ipv4"
    """IP family of pods and services: ipv4 or ipv6."""

    aws_endpoint: str = ""
    """URL used for every AWS API; AWS's own endpoints if empty."""

    kubeconfig: str = ""
    """Path of a kubeconfig, absolute, from home (~) or from the project's folder. If empty,
    `aws eks get-token` is used."""

    @classmethod
    def of(
        cls,
        cluster: aws.eks.Cluster,
        *,
        subnet_ids: Sequence[pulumi.Input[str]],
        ip_family: IpFamily = "ipv4",
    ) -> EksCluster:
        """Return the facts of a cluster that this program creates.

        Args:
            cluster: the Pulumi resource.
            subnet_ids: subnets where nodes may launch.
            ip_family: IP family of pods and services. It decides which policies the node role has,
                so the program must know it before the cluster exists. The program fails with
                `ConfigError` if the cluster has another.

        """
        family = cluster.kubernetes_network_config.apply(lambda it: it and it.ip_family)
        checked = pulumi.Output.all(cluster.endpoint, family)
        parts = cluster.arn.apply(lambda arn: arn.split(":"))
        return cls(
            name=cluster.name,
            partition=parts[1],
            region=parts[3],
            account=parts[4],
            endpoint=checked.apply(lambda found: _of_family(*found, stated=ip_family)),
            certificate_authority=cluster.certificate_authority.data,
            issuer=cluster.identities[0].oidcs[0].issuer,
            subnet_ids=subnet_ids,
            security_group_id=cluster.vpc_config.cluster_security_group_id,
            ip_family=ip_family,
        )

    @classmethod
    def found(cls, location: ClusterLocation, provider: aws.Provider | None = None) -> EksCluster:
        """Return the facts of an existing cluster. If there is none, the program fails.

        Args:
            location: name and region of the cluster, and how to connect to it.
            provider: the AWS provider; the program's default provider if omitted.

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
        """The partition, region, account and name, from which ARNs are built."""
        parts = pulumi.Output.all(self.partition, self.region, self.account, self.name)
        place: pulumi.Output[Place] = parts.apply(lambda known: Place(*known))
        return place

    @property
    def location(self) -> Mapping[str, pulumi.Input[str]]:
        """The fields of `ClusterLocation`, as a stack's state stores them."""
        return {
            "cluster_name": self.name,
            "region": self.region,
            "aws_endpoint": self.aws_endpoint,
            "kubeconfig": self.kubeconfig,
        }

    @property
    def known_location(self) -> ClusterLocation | None:
        """The location, or None if part of it is an output that is not known yet."""
        parts = {key: value for key, value in self.location.items() if isinstance(value, str)}
        return ClusterLocation(**parts) if len(parts) == len(self.location) else None


def _of_family(endpoint: str, found: str | None, *, stated: IpFamily) -> str:
    """Return the endpoint; raise ConfigError if the cluster has another IP family than stated."""
    actual = found or "ipv4"
    if actual != stated:
        raise ConfigError(
            f"EksCluster.of: the IP family of the cluster is {actual}: set ip_family={actual!r}"
        )
    return endpoint


def kubernetes_provider(
    cluster: EksCluster,
    name: str = "kubernetes",
    opts: pulumi.ResourceOptions | None = None,
    *,
    adopts: bool = False,
) -> kubernetes.Provider:
    """Return the Kubernetes provider for the cluster.

    It connects by the cluster's kubeconfig, or by `aws eks get-token` if there is none. If
    `adopts`, objects that the stack creates may exist: they are changed, and belong to the stack.
    """
    # The SDK would store these variables in the state, and later operations would use them. The
    # plugin itself reads them, too.
    for variable in (FORGET, FORCE, UPSERT):
        os.environ.pop(variable, None)
    return kubernetes.Provider(
        name,
        kubeconfig=(
            _for_plugin(cluster.kubeconfig) if cluster.kubeconfig else eks_kubeconfig(cluster)
        ),
        # The same identifier with another endpoint or CA means the same cluster: without it, the
        # engine would replace all objects.
        cluster_identifier=pulumi.Output.concat(cluster.region, "/", cluster.name),
        # As False, it would disable the environment variable.
        upsert_existing_objects=adopts or None,
        # deleteUnreachable is not set: an unreachable cluster may still exist, and the environment
        # variable by which a user gives a cluster up works only if the program does not set it.
        opts=opts,
    )


FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""The entries of a kubeconfig that name files."""


def _for_plugin(kubeconfig: str) -> str:
    """Return the path as the plugin resolves it: from ~, or from the program's folder.

    Raises ConfigError if the kubeconfig names a file by a relative path. The plugin looks it up
    from the program's folder, other tools from the kubeconfig's.
    """
    path = kubeconfig_file(kubeconfig)
    relative = [] if path.parent == Path.cwd() else [*_relative_files(path)]
    if relative:
        raise ConfigError(
            f"joiner:kubeconfig={kubeconfig!r} names files by relative paths, which Pulumi's "
            f"plugin does not find: {', '.join(relative)}. Write absolute paths, or the files "
            "themselves: kubectl config view --raw --flatten"
        )
    if kubeconfig.startswith(("~", "/")):
        return kubeconfig
    return f"./{os.path.relpath(kubeconfig_file(kubeconfig))}"


def _relative_files(path: Path) -> Iterator[str]:
    """Yield the relative paths in a kubeconfig; none if it cannot be read."""
    try:
        document = yaml.safe_load(path.read_text())
        entries = [each["cluster"] for each in document["clusters"]]
        entries += [each["user"] for each in document["users"]]
    except (OSError, LookupError, TypeError, ValueError, yaml.YAMLError):
        return  # the check of the connection reports it
    for entry in entries:
        for key in FILES:
            if isinstance(entry, dict) and entry.get(key) and not Path(entry[key]).is_absolute():
                yield f"{key}: {entry[key]}"


def eks_kubeconfig(cluster: EksCluster) -> pulumi.Output[str]:
    """Return a kubeconfig (JSON) that runs `aws eks get-token` when a token is needed."""
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
                        "server": endpoint_that_answers(
                            cluster.endpoint, cluster.certificate_authority
                        ),
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
