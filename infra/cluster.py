"""A cluster made from nothing: its control plane, its add-ons, and a home for the controller.

The controller makes nodes for everything else; itself it runs where it does not depend on
itself: on a small managed node group, or on Fargate.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws
from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import labels
from infra import policies
from infra.clusterapi import ClusterGoneError, ClusterLocation, described
from infra.config import ConfigError, Home
from infra.ekscluster import EksCluster
from infra.network import Network
from infra.policies import Place

CLUSTER_POLICIES = ("AmazonEKSClusterPolicy",)
NODE_POLICIES = policies.NODE_ROLE_POLICIES
FARGATE_POLICIES = ("AmazonEKSFargatePodExecutionRolePolicy",)

BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
"""Add-ons without which no node is ready, or no pod on it gets a role: they come before nodes."""

DNS = "coredns"
"""The add-on that runs on nodes, and is whole only once there are some."""

ON_FARGATE = json.dumps({"computeType": "Fargate"})


@dataclass(frozen=True, kw_only=True)
class Access:
    """What somebody may do in the cluster."""

    principal: pulumi.Input[str]
    """ARN of a role or user of IAM."""

    policy: str
    """The name of one of EKS's access policies, such as AmazonEKSClusterAdminPolicy."""

    namespaces: Sequence[str] = ()
    """Where it may; everywhere when left out."""


@dataclass(frozen=True, kw_only=True)
class ClusterArgs:
    """What cluster it is to be, and where the controller is at home."""

    place: Place
    """Partition, region and account, and what the cluster is to be called."""

    network: Network
    version: str | None = None
    """Of Kubernetes; the one that EKS has as its default when left out."""

    home: Home = "node-group"
    home_nodes: int = 2
    home_instance_types: Sequence[str] = ("t4g.medium",)
    """Graviton; one controller with its 1 CPU fits on each, beside what every node runs."""

    namespace: str = "kube-system"
    deployment: str = "karpenter"
    """Where the controller runs, and as what: with a home on Fargate, these pods live there."""

    access: Sequence[Access] = ()
    """Who may do what there, beside whoever makes the cluster, who is its administrator."""


class Cluster(pulumi.ComponentResource):
    """An EKS cluster that lets principals in by access entries, with add-ons and a home."""

    def __init__(
        self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:Cluster", name, None, opts)
        self._name, self._args = name, args
        self._mine = pulumi.ResourceOptions(parent=self)
        self.network_id = args.network.vpc.id
        role, attached = self._role("cluster", policies.eks_trust(), CLUSTER_POLICIES)
        private = [subnet.id for subnet in args.network.private_subnets]
        self.eks = aws.eks.Cluster(
            name,
            name=args.place.cluster_name,
            version=args.version,
            role_arn=role.arn,
            vpc_config={
                "subnet_ids": private,
                "endpoint_private_access": True,
                "endpoint_public_access": True,
            },
            access_config={
                "authentication_mode": "API",
                "bootstrap_cluster_creator_admin_permissions": True,
            },
            # Those that come with a cluster are nobody's to update; ours follow as add-ons.
            bootstrap_self_managed_addons=False,
            # The control plane takes its network down only while it may and can.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[args.network, *attached]),
        )
        before = [self._addon(addon) for addon in BEFORE_NODES]
        on_fargate = args.home == "fargate"
        home: pulumi.Resource = (
            self._fargate(private, before) if on_fargate else self._nodes(private, before)
        )
        self._addon(DNS, ON_FARGATE if on_fargate else None, after=[home])
        for number, access in enumerate(args.access):
            self._let_in(access, number)
        self.register_outputs({"name": self.eks.name})

    def _let_in(self, access: Access, number: int) -> None:
        """Let somebody do something in the cluster, by an access entry of his own."""
        given = access.principal
        who = given.rpartition(":")[2] if isinstance(given, str) else number
        name = f"{self._name}-access-{who}"
        entry = aws.eks.AccessEntry(
            name, cluster_name=self.eks.name, principal_arn=given, opts=self._mine
        )
        scope = {"type": "namespace", "namespaces": list(access.namespaces)}
        aws.eks.AccessPolicyAssociation(
            name,
            cluster_name=self.eks.name,
            principal_arn=entry.principal_arn,
            policy_arn=(
                f"arn:{self._args.place.partition}:eks::aws:cluster-access-policy/{access.policy}"
            ),
            access_scope=scope if access.namespaces else {"type": "cluster"},
            opts=self._mine,
        )

    def _role(
        self, title: str, trust: policies.Document, attached: Sequence[str]
    ) -> tuple[aws.iam.Role, list[pulumi.Resource]]:
        """Make a role for a service; what is given it comes after its policies, and goes before."""
        role = aws.iam.Role(
            f"{self._name}-{title}",
            description=f"{title} of the EKS cluster {self._args.place.cluster_name}",
            assume_role_policy=json.dumps(trust),
            opts=self._mine,
        )
        return role, [
            aws.iam.RolePolicyAttachment(
                f"{self._name}-{title}-{policy}",
                role=role.name,
                policy_arn=f"arn:{self._args.place.partition}:iam::aws:policy/{policy}",
                opts=self._mine,
            )
            for policy in attached
        ]

    def _nodes(
        self, subnets: Sequence[pulumi.Input[str]], after: Sequence[pulumi.Resource]
    ) -> aws.eks.NodeGroup:
        """Make a small managed node group."""
        args = self._args
        role, attached = self._role("home", policies.ec2_trust(args.place), NODE_POLICIES)
        return aws.eks.NodeGroup(
            f"{self._name}-home",
            cluster_name=self.eks.name,
            node_role_arn=role.arn,
            subnet_ids=list(subnets),
            ami_type="AL2023_ARM_64_STANDARD",
            instance_types=list(args.home_instance_types),
            scaling_config={
                "min_size": args.home_nodes,
                "max_size": args.home_nodes + 1,
                "desired_size": args.home_nodes,
            },
            update_config={"max_unavailable": 1},
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*after, *attached]),
        )

    def _fargate(
        self, subnets: Sequence[pulumi.Input[str]], after: Sequence[pulumi.Resource]
    ) -> aws.eks.FargateProfile:
        """Make a Fargate profile for the controller and the cluster's DNS."""
        role, attached = self._role("home", policies.fargate_trust(), FARGATE_POLICIES)
        return aws.eks.FargateProfile(
            f"{self._name}-home",
            cluster_name=self.eks.name,
            pod_execution_role_arn=role.arn,
            subnet_ids=list(subnets),
            selectors=[
                {"namespace": namespace, "labels": dict(matching)}
                for namespace, matching in (
                    ("kube-system", {"k8s-app": "kube-dns"}),
                    (
                        self._args.namespace,
                        {"app.kubernetes.io/instance": self._args.deployment},
                    ),
                )
            ],
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*after, *attached]),
        )

    def _addon(
        self,
        addon: str,
        settings: str | None = None,
        *,
        after: Sequence[pulumi.Resource] = (),
    ) -> aws.eks.Addon:
        return aws.eks.Addon(
            f"{self._name}-{addon}",
            cluster_name=self.eks.name,
            addon_name=addon,
            configuration_values=settings,
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="PRESERVE",
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )


def facts(cluster: Cluster, place: Place, location: ClusterLocation) -> EksCluster:
    """Describe the cluster, with what is known before it is made said as it is known.

    Its subnets are not among it: they were tagged as they were made.
    """
    return dataclasses.replace(
        EksCluster.of(cluster.eks, subnet_ids=()),
        name=place.cluster_name,
        region=place.region,
        account=place.account,
        partition=place.partition,
        aws_endpoint=location.aws_endpoint,
        kubeconfig=location.kubeconfig,
    )


def refuse_foreign_cluster(location: ClusterLocation, installation: str) -> None:
    """Look whether the name of the cluster is free, or ours, before anything is made.

    Raises:
        ConfigError: there is a cluster of this name that the installation did not make, or AWS
            does not tell.

    """
    setting = f"joiner:clusterName={location.cluster_name!r}"
    try:
        tags = described(location).get("tags") or {}
    except ClusterGoneError:
        return
    except (BotoCoreError, ClientError) as exc:
        raise ConfigError([f"{setting}: AWS does not tell of it: {exc}"]) from exc
    if tags.get(labels.TAG_INSTALLATION) != installation:
        raise ConfigError(
            [
                f"{setting}: there is a cluster of this name in {location.region}, and this stack "
                "did not make it: set another name, or joiner:cluster to existing"
            ]
        )
