"""A new EKS cluster: its control plane, its add-ons, and the controller's own compute.

The controller launches nodes for all other workloads. It runs itself where it does not depend on
its own nodes: on a small managed node group, or on Fargate.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import labels
from infra import names, policies
from infra.cluster.ekscluster import EksCluster
from infra.cluster.network import Network
from infra.clusterapi import ClusterGoneError, ClusterLocation, describe_cluster
from infra.config.forms import GRAVITON, ConfigError, ControllerCompute, IpFamily, UpgradePolicy
from infra.policies import Place

CLUSTER_POLICIES = ("AmazonEKSClusterPolicy",)
WINDOWS_POLICIES = ("AmazonEKSVPCResourceController",)
"""Policies of the cluster's role with which EKS assigns addresses to pods on Windows nodes.

Source: EKS user guide, "Windows support".
"""

NODE_POLICIES = policies.NODE_ROLE_POLICIES
FARGATE_POLICIES = ("AmazonEKSFargatePodExecutionRolePolicy",)

BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
"""Add-ons created before nodes: without them no node is ready, or its pods get no IAM role."""

CNI = "vpc-cni"
WITH_WINDOWS = json.dumps({"enableWindowsIpam": "true"})

DNS = "coredns"
"""The add-on that runs on nodes, and is healthy only once there are some."""

CRITICAL = "CriticalAddonsOnly"
"""Taint of the controller's nodes. The controller and the EKS add-ons tolerate it. Workloads do
not: they would fill the nodes, or need another architecture."""

ROOT_DEVICE = "/dev/xvda"
"""Root device of AWS's AMIs of Amazon Linux 2023."""

ROOT_GIB = 20
"""Size of the root volume of the controller's nodes in GiB: EKS's default for node groups."""

ON_FARGATE = json.dumps({"computeType": "Fargate"})


@dataclass(frozen=True, kw_only=True)
class Access:
    """An access entry of the cluster: a principal and what it may do."""

    principal: pulumi.Input[str]
    """ARN of an IAM role or user."""

    policy: str
    """Name of an EKS access policy, such as AmazonEKSClusterAdminPolicy."""

    namespaces: Sequence[str] = ()
    """Namespaces in which the policy applies; the whole cluster if omitted."""


@dataclass(frozen=True, kw_only=True)
class ClusterArgs:
    """The settings of the cluster, its network, and the controller's compute."""

    place: Place
    """Partition, region and account, and the cluster's name."""

    public_access_cidrs: Sequence[str]
    """CIDRs that may reach the API server's public endpoint. If empty, only the private endpoint is
    enabled. Nodes use the private endpoint in either case."""

    network: Network | None = None
    """The network that the stack creates for the cluster; None with `subnet_ids`."""

    subnet_ids: Sequence[pulumi.Input[str]] = ()
    """Private subnets of an existing VPC, in at least two zones; those of `network` if omitted."""

    version: str | None = None
    """Kubernetes version; EKS's default version if omitted."""

    ip_family: IpFamily = "ipv4"
    log_types: Sequence[str] = ()
    """Types of control plane logs that EKS sends to CloudWatch."""

    secrets_key: pulumi.Input[str] | None = None
    """ARN of the KMS key that encrypts the cluster's Secrets; an AWS-owned key if omitted."""

    deletion_protection: bool = False
    upgrade_policy: UpgradePolicy | None = None
    zonal_shift: bool = False
    """Whether to enable ARC zonal shift. Once enabled, it stays enabled."""

    windows: bool = False
    """Whether Windows nodes join."""

    controller_compute: ControllerCompute = "node-group"
    controller_size: int = 2
    controller_instance_types: Sequence[str] = ("t4g.medium",)
    """Instance types of the controller's node group, all of one architecture. One controller, which
    requests 1 CPU, fits on each beside the DaemonSets."""

    namespace: pulumi.Input[str] = "kube-system"
    deployment: pulumi.Input[str] = "karpenter"
    """Name of the controller's Deployment. If the controller's compute is Fargate, its pods in
    `namespace` run on Fargate."""

    node_tags: Mapping[str, pulumi.Input[str]] = dataclasses.field(default_factory=dict)
    """Tags of the instances of the controller's node group, their volumes and network interfaces.
    EKS does not pass the tags of a node group on to them."""

    access: Sequence[Access] = ()
    """Access entries in addition to that of the cluster's creator, who is its administrator."""

    name_prefix: str = names.PREFIX
    iam_path: str | None = None
    permissions_boundary: pulumi.Input[str] | None = None
    """Permissions boundary of the roles of the control plane and the controller's compute. A change
    of `name_prefix` or `iam_path` has no effect on these roles, because another role would replace
    the cluster."""


class Cluster(pulumi.ComponentResource):
    """An EKS cluster with access entries, add-ons, and compute for the controller."""

    def __init__(
        self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:Cluster", name, None, opts)
        self._name, self._args = name, args
        self._mine = pulumi.ResourceOptions(parent=self)
        self.ip_family = args.ip_family
        self.network_id = args.network.vpc.id if args.network else None
        attached = (*CLUSTER_POLICIES, *(WINDOWS_POLICIES if args.windows else ()))
        role, attachments = self._role("cluster", policies.eks_trust(), attached)
        network = [args.network] if args.network else []
        made = [subnet.id for each in network for subnet in each.private_subnets]
        private = list(args.subnet_ids) or made
        self.eks = aws.eks.Cluster(
            name,
            name=args.place.cluster_name,
            version=args.version,
            role_arn=role.arn,
            vpc_config={"subnet_ids": private, **self._endpoint()},
            access_config={
                "authentication_mode": "API",
                "bootstrap_cluster_creator_admin_permissions": True,
            },
            # Nothing updates the self-managed add-ons that EKS installs; EKS add-ons replace them.
            bootstrap_self_managed_addons=False,
            **self._optional(),
            # On destroy, EKS deletes its network interfaces while network and policies exist.
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[*network, *attachments],
                # EKS refuses the empty update that the provider sends when the block is removed.
                ignore_changes=[] if args.zonal_shift else ["zonalShiftConfig"],
            ),
        )
        windows = WITH_WINDOWS if args.windows else None
        before = [self._addon(one, windows if one == CNI else None) for one in BEFORE_NODES]
        on_fargate = args.controller_compute == "fargate"
        compute: pulumi.Resource = (
            self._fargate(private, before) if on_fargate else self._nodes(private, before)
        )
        self._addon(DNS, ON_FARGATE if on_fargate else None, after=[compute])
        for number, access in enumerate(args.access):
            self._let_in(access, number)
        self.register_outputs({"name": self.eks.name})

    def _endpoint(self) -> dict[str, Any]:
        """Return the API server's endpoint settings; the private endpoint is always enabled."""
        cidrs = list(self._args.public_access_cidrs)
        public: dict[str, Any] = {"public_access_cidrs": cidrs} if cidrs else {}
        return {"endpoint_private_access": True, "endpoint_public_access": bool(cidrs), **public}

    def _optional(self) -> dict[str, Any]:
        """Return the settings that are sent to EKS only if set, so that EKS's defaults apply."""
        args = self._args
        optional = {
            "enabled_cluster_log_types": sorted(args.log_types),
            "kubernetes_network_config": args.ip_family == "ipv6" and {"ip_family": "ipv6"},
            "encryption_config": args.secrets_key
            and {"provider": {"key_arn": args.secrets_key}, "resources": ["secrets"]},
            "zonal_shift_config": args.zonal_shift and {"enabled": True},
            "upgrade_policy": args.upgrade_policy and {"support_type": args.upgrade_policy},
        }
        return {
            "deletion_protection": args.deletion_protection,
            **{key: value for key, value in optional.items() if value},
        }

    def _let_in(self, access: Access, number: int) -> None:
        """Create a principal's access entry, and associate its access policy."""
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
        """Create a service's role; return it with its policy attachments.

        What uses the role must depend on the attachments: they are then created before it and
        deleted after it.
        """
        role = aws.iam.Role(
            f"{self._name}-{title}",
            description=names.role_description(title, self._args.place.cluster_name),
            assume_role_policy=json.dumps(trust),
            name_prefix=f"{self._args.name_prefix}{title.title()}-",
            path=self._args.iam_path,
            permissions_boundary=self._args.permissions_boundary,
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["name", "namePrefix", "path"]),
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
        """Create the managed node group of the controller, with `controller_size` nodes."""
        args = self._args
        on_ipv6 = args.ip_family == "ipv6"
        of_aws = [one for one in NODE_POLICIES if not (on_ipv6 and one == policies.CNI_POLICY)]
        role, attached = self._role("controller", policies.ec2_trust(args.place), of_aws)
        if on_ipv6:
            attached.append(self._ipv6(role))
        template = self._launch_template()
        architecture = "arm64" if _is_graviton(args.controller_instance_types[0]) else "x86_64"
        return aws.eks.NodeGroup(
            f"{self._name}-controller",
            cluster_name=self.eks.name,
            node_role_arn=role.arn,
            subnet_ids=list(subnets),
            version=self.eks.version,
            release_version=self._release(architecture),
            ami_type=AMI_TYPES[architecture],
            instance_types=list(args.controller_instance_types),
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            taints=[{"key": CRITICAL, "value": "true", "effect": "NO_SCHEDULE"}],
            scaling_config={
                "min_size": args.controller_size,
                "max_size": args.controller_size + 1,
                "desired_size": args.controller_size,
            },
            update_config={"max_unavailable": 1},
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*after, *attached]),
        )

    def _launch_template(self) -> aws.ec2.LaunchTemplate:
        """Create the launch template of the controller's nodes.

        Organizations may refuse instances and volumes without tags, volumes that are not encrypted,
        and instances that serve their metadata without a token.
        """
        root = {
            "volume_type": "gp3",
            "volume_size": ROOT_GIB,
            "encrypted": "true",
            "delete_on_termination": "true",
        }
        tags = dict(self._args.node_tags)
        return aws.ec2.LaunchTemplate(
            f"{self._name}-controller",
            block_device_mappings=[{"device_name": ROOT_DEVICE, "ebs": root}],
            # Pods do not reach the instance's credentials: their packets take a second hop.
            metadata_options={
                "http_endpoint": "enabled",
                "http_tokens": "required",
                "http_put_response_hop_limit": 1,
            },
            tag_specifications=[
                {"resource_type": kind, "tags": tags}
                for kind in ("instance", "volume", "network-interface")
                if tags
            ],
            opts=self._mine,
        )

    def _ipv6(self, role: aws.iam.Role) -> aws.iam.RolePolicy:
        return aws.iam.RolePolicy(
            f"{self._name}-controller-IPv6",
            name="IPv6",
            role=role.name,
            policy=policies.text_of(policies.ipv6_cni(self._args.place)),
            opts=self._mine,
        )

    def _release(self, architecture: str) -> pulumi.Output[str]:
        """Return the latest AMI release of the cluster's version, so that `up` patches nodes."""
        parameter = pulumi.Output.format(
            "/aws/service/eks/optimized-ami/{0}/amazon-linux-2023/{1}/standard/recommended/"
            "release_version",
            self.eks.version,
            architecture,
        )
        found = aws.ssm.get_parameter_output(
            name=parameter, opts=pulumi.InvokeOutputOptions(parent=self)
        )
        # The parameter is public, so its value need not be a secret in previews.
        release: pulumi.Output[str] = found.insecure_value
        return release

    def _fargate(
        self, subnets: Sequence[pulumi.Input[str]], after: Sequence[pulumi.Resource]
    ) -> aws.eks.FargateProfile:
        """Create a Fargate profile for the pods of the controller and of the cluster's DNS."""
        role, attached = self._role("controller", policies.fargate_trust(), FARGATE_POLICIES)
        return aws.eks.FargateProfile(
            f"{self._name}-controller",
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
        default = aws.eks.get_addon_version_output(
            addon_name=addon,
            kubernetes_version=self.eks.version,
            opts=pulumi.InvokeOutputOptions(parent=self),
        )
        return aws.eks.Addon(
            f"{self._name}-{addon}",
            cluster_name=self.eks.name,
            addon_name=addon,
            addon_version=default.version,
            configuration_values=settings,
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="PRESERVE",
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )


AMI_TYPES: Mapping[str, str] = {
    "arm64": "AL2023_ARM_64_STANDARD",
    "x86_64": "AL2023_x86_64_STANDARD",
}


def _is_graviton(instance_type: str) -> bool:
    return re.match(GRAVITON, instance_type) is not None


def facts(cluster: Cluster, place: Place, location: ClusterLocation) -> EksCluster:
    """Return the facts of a created cluster; name, region and account are known before it exists.

    The subnets are omitted, because they got their discovery tags when they were created.
    """
    return dataclasses.replace(
        EksCluster.of(cluster.eks, subnet_ids=(), ip_family=cluster.ip_family),
        name=place.cluster_name,
        region=place.region,
        account=place.account,
        partition=place.partition,
        aws_endpoint=location.aws_endpoint,
        kubeconfig=location.kubeconfig,
    )


def refuse_foreign_cluster(
    location: ClusterLocation, installation: str, *, is_recorded: Callable[[], bool]
) -> None:
    """Check that the stack can create or update the cluster, before anything is created.

    Args:
        location: the location of the cluster.
        installation: value of the tag on what the stack created.
        is_recorded: returns whether the stack's state has a cluster.

    Raises:
        ConfigError: a cluster of this name exists that the installation did not create, or that
            is not in the stack's state; or the request to EKS failed.

    """
    setting = f"joiner:clusterName={location.cluster_name!r}"
    try:
        tags = describe_cluster(location).get("tags") or {}
    except ClusterGoneError:
        return
    except (BotoCoreError, ClientError) as exc:
        raise ConfigError(
            f"{setting}: EKS does not describe the cluster: {exc}. Check the credentials "
            "(aws sts get-caller-identity shows whose they are) and joiner:region"
        ) from exc
    if tags.get(labels.TAG_INSTALLATION) != installation:
        raise ConfigError(
            f"{setting}: a cluster of this name exists in {location.region}, and this stack "
            "did not create it: set another name, or joiner:cluster to existing"
        )
    if not is_recorded():
        raise ConfigError(
            f"{setting}: this stack created the cluster, but the stack's state does not have "
            "it, for example because that `pulumi up` was killed. Restore a state that has it "
            "(pulumi stack import), or delete the cluster: aws eks delete-cluster --name "
            f"{location.cluster_name} --region {location.region}"
        )
