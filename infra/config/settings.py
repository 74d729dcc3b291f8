"""Every setting of a stack, with its type, its default and its description."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pulumi

from controller.apis import labels
from controller.options import Range
from infra import names
from infra.clusterapi import kubeconfig_file
from infra.config.forms import (
    AccessCidr,
    AccessEntries,
    Arn,
    Cidr,
    ClusterName,
    Confirmed,
    ControllerCompute,
    ControlPlaneLog,
    Cpu,
    Definition,
    DnsPolicy,
    IamPath,
    Identity,
    Image,
    ImageParameter,
    InstanceType,
    IpFamily,
    KeyArn,
    KubernetesVersion,
    Label,
    Memory,
    MetricsDiscovery,
    Nat,
    NodeAccess,
    PolicyArns,
    Prefix,
    Presence,
    Profiles,
    QueueName,
    Region,
    RoleName,
    SecretName,
    SecurityGroup,
    ServiceName,
    ServiceOfAws,
    StackName,
    Statements,
    Staying,
    Subnet,
    TagKey,
    TagValue,
    UpgradePolicy,
    Url,
    Wire,
)
from infra.release import CHECKOUT


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallationSettings:
    """The settings that a stack and the component `Joiner` have in common.

    Settings that decide which resources exist (identity, access …) are plain values, known while
    the program runs. The others may be outputs of other resources.
    """

    image: pulumi.Input[Image] | None = None
    """Container image of the controller. The default is the published image of a released version.
    Other versions are assembled by `pulumi up`, without Docker, and pushed to ECR."""

    namespace: pulumi.Input[Label] = "kube-system"
    """Namespace of the controller."""

    name: pulumi.Input[ServiceName] = "karpenter"
    """Name of the controller's Deployment, service account and Service. The default is the name
    that tools for Karpenter expect."""

    replicas: pulumi.Input[Annotated[int, Range(1, 10)]] = 2
    """Number of controller pods. One holds the Lease and acts; the others stand by."""

    cpu: pulumi.Input[Cpu] = "1"
    """CPU request of each controller pod."""

    memory: pulumi.Input[Memory] = "1Gi"
    """Memory request and limit of each controller pod."""

    create_namespace: bool = False
    """Whether the stack creates the namespace, and deletes it on destroy."""

    metrics_discovery: MetricsDiscovery = "none"
    """How Prometheus discovers the metrics: by pod annotations, or by a ServiceMonitor. The
    ServiceMonitor CRD must exist in the cluster."""

    extra_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels added to all Kubernetes objects of the controller and to its pods."""

    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations added to the controller's pods."""

    env: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Environment variables of the controller's container beside its settings, such as HTTPS_PROXY.
    If it is set with `pulumi config set --secret`, the values are encrypted in the state and stored
    in a Secret instead of the Deployment."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Node selector of the controller's pods."""

    tolerations: Sequence[Wire] = ()
    """Tolerations of the controller's pods, in addition to CriticalAddonsOnly."""

    affinity: Wire = field(default_factory=dict)
    """Affinity of the controller's pods. `nodeAffinity`, `podAffinity` and `podAntiAffinity` each
    replace the default one. The controller never runs on nodes that it launches."""

    dns_policy: DnsPolicy = "ClusterFirst"
    """DNS policy of the controller's pods: CoreDNS (`ClusterFirst`) or the VPC's resolver
    (`Default`). Use `Default` if CoreDNS runs only on nodes that the controller launches."""

    image_pull_secrets: Sequence[SecretName] = ()
    """Secrets in the controller's namespace for pulling its image."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the controller, by environment variable. Example: `pulumi config set --path
    joiner:settings.BATCH_IDLE_DURATION 2s`. The feature gate SpotToSpotConsolidation is on, unless
    FEATURE_GATES names it."""

    identity: Identity = "pod-identity"
    """How the controller's pods assume their IAM role: EKS Pod Identity, or IRSA (OIDC). Fargate
    requires IRSA."""

    pod_identity_agent: Presence = "existing"
    """With `identity: pod-identity`: whether the EKS Pod Identity Agent exists in the cluster or
    the stack installs it."""

    oidc_provider: Presence = "existing"
    """With `identity: irsa`: whether the cluster's OIDC provider exists in IAM or the stack creates
    it."""

    node_access: NodeAccess | None = None
    """How nodes get access to the cluster: an access entry of this type; the aws-auth ConfigMap of
    older clusters, with the group for Windows nodes (`aws-auth-windows`) or without; or `none` if
    you grant access yourself. The default is an access entry for Linux if the cluster supports
    access entries, and aws-auth otherwise."""

    windows_nodes: bool = False
    """Whether the stack also creates the role `KarpenterWindowsNodeRole-<cluster>` for Windows
    nodes, with its instance profile and cluster access. Use `${WINDOWS_INSTANCE_PROFILE}` and
    `${WINDOWS_NODE_ROLE}` in NodePools."""

    node_role: Presence = "create"
    """Whether the stack creates the node role, or uses an existing role of that name unchanged."""

    controller_role: Presence = "create"
    """Whether the stack creates the controller's role. An existing role needs the controller's
    policies and trust policy."""

    queue: Presence = "create"
    """Whether the stack creates the interruption queue. An existing queue needs the EventBridge
    rules and the queue policy."""

    retain_on_delete: Sequence[Staying] = ()
    """What stays in AWS when a setting changes to `existing` or the stack is destroyed. Set it and
    run `pulumi up` before that change. With `nodes`, `pulumi destroy` neither drains nor terminates
    nodes; use it after another Karpenter has taken them over."""

    confirm_delete: Sequence[Confirmed] = ()
    """What `pulumi up` may delete or replace. Without it, the preview refuses a change that would
    delete what the stack created. With `nodePools`, `pulumi destroy` also deletes the NodePools of
    other stacks; without it, the destroy is refused."""

    instance_profile_name: pulumi.Input[RoleName] | None = None
    """Name of an existing instance profile. By default the stack creates one with the node role."""

    instance_profiles: Profiles = "given"
    """Who creates instance profiles. `given`: EC2NodeClasses name a profile
    (`${INSTANCE_PROFILE}`), and the controller's only IAM permission is to pass the node role.
    `managed`: the controller may also create instance profiles for EC2NodeClasses with
    `spec.role`, as Karpenter does."""

    image_parameters: Sequence[ImageParameter] = ()
    """Your SSM parameters that the controller may read, for EC2NodeClasses whose
    `amiSelectorTerms` name an `ssmParameter`. The controller may always read the parameters that
    AWS publishes."""

    iam_path: IamPath = "/"
    """IAM path of the roles, policies and instance profiles."""

    name_prefix: Prefix = names.PREFIX
    """Prefix of the names of roles, policies and instance profiles."""

    controller_statements: Statements = ()
    """IAM statements added to the controller's role."""

    node_statements: Statements = ()
    """IAM statements added to the node role."""

    node_policies: Sequence[pulumi.Input[PolicyArns]] = ()
    """At most six policies attached to the node role, in addition to the four that every node
    needs."""

    queue_key: pulumi.Input[KeyArn] | None = None
    """ARN of the KMS key that encrypts the interruption queue. The default is SQS's own key. The
    key policy must allow events.amazonaws.com to use the key."""

    node_role_name: pulumi.Input[RoleName] | None = None
    """Name of the node role. The default is `KarpenterNodeRole-<cluster>`. Role names are unique
    across all regions of an account."""

    controller_role_name: pulumi.Input[RoleName] | None = None
    """Name of the controller's role. The default is `KarpenterControllerRole-<cluster>`. Role names
    are unique across all regions of an account."""

    permissions_boundary: pulumi.Input[Arn] | None = None
    """ARN of the permissions boundary of all roles that the stack creates."""

    spot_role: Presence = "existing"
    """Whether EC2's service-linked role for spot instances exists in the account or the stack
    creates it. It exists if the account has ever used spot instances."""

    queue_name: pulumi.Input[QueueName] | None = None
    """Name of the interruption queue. The default is the name of the cluster."""

    existing_crds: Sequence[Definition] = ()
    """CustomResourceDefinitions that Karpenter, EKS Auto Mode or another stack manages. This stack
    neither creates nor deletes them. A CRD that this stack created stays in the cluster when it is
    listed here."""

    discovery_tags: bool = True
    """Whether the stack tags subnets and security groups `karpenter.sh/discovery: <cluster>`."""

    discovery_tag_key: TagKey = labels.TAG_DISCOVERY
    """Key of the discovery tag. Clusters that share subnets need different keys."""

    cluster_tags: bool = False
    """Whether the stack also tags subnets and security groups `kubernetes.io/cluster/<cluster>:
    shared`. It skips those that EKS or another tool has tagged."""

    subnet_ids: Sequence[pulumi.Input[Subnet]] = ()
    """Subnets for nodes. The default is the subnets of managed node groups, or else those of the
    cluster with a route to the internet. With `cluster: create`, the cluster is created in these
    subnets (in at least two zones) instead of a new VPC."""

    security_group_ids: Sequence[pulumi.Input[SecurityGroup]] = ()
    """Security groups of nodes. The default is those in the launch templates of managed node
    groups, or else the cluster security group."""

    tags: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Tags of all AWS resources that the stack creates, and of the nodes of the default NodePool.
    Other EC2NodeClasses have their own `spec.tags`."""

    delete_foreign_node_pools: bool = False
    """Whether `pulumi destroy` also deletes NodePools that no stack owns. If `false`, the destroy
    is refused while there are any."""

    drain_timeout: Annotated[timedelta, Range(timedelta(seconds=1), timedelta(days=7))] = timedelta(
        minutes=20
    )
    """How long `pulumi destroy` waits for the controller to drain all nodes. After that it
    terminates the remaining instances by their tags."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig(InstallationSettings):
    """All settings of one stack. A field `cluster_name` is the key `joiner:clusterName`."""

    cluster_name: ClusterName
    """Name of the EKS cluster. It must exist unless `cluster` is `create`."""

    region: Region
    """AWS region of the cluster. If it is not set, `aws:region` applies, or else `AWS_REGION`. One
    of the three is required."""

    cluster: Presence = "existing"
    """Whether the stack uses an existing EKS cluster or creates one with its VPC and add-ons."""

    kubernetes_version: KubernetesVersion | None = None
    """Kubernetes version of a created cluster. The default is EKS's default version. Each
    `pulumi up` updates the add-ons and the controller's nodes to the versions that EKS recommends
    for it."""

    public_access_cidrs: Sequence[AccessCidr] = ()
    """Networks that may reach the public API endpoint of a created cluster. Required with `cluster:
    create`. Nodes always use the private endpoint."""

    control_plane_logs: Sequence[ControlPlaneLog] = ()
    """Control plane logs that a created cluster sends to CloudWatch. EKS creates the log group
    `/aws/eks/<cluster>/cluster` and keeps it after the cluster is deleted."""

    secrets_key: KeyArn | None = None
    """ARN of the KMS key that encrypts the Secrets of a created cluster. The default is a key that
    AWS owns. EKS cannot disable encryption with a key once it is enabled."""

    deletion_protection: bool = False
    """Whether EKS refuses to delete a created cluster. Before `pulumi destroy`, set it to `false`
    and run `pulumi up`."""

    upgrade_policy: UpgradePolicy | None = None
    """What EKS does when standard support of the Kubernetes version ends. `STANDARD` upgrades the
    cluster. `EXTENDED` keeps the version at a higher price and is EKS's default."""

    ip_family: IpFamily = "ipv4"
    """IP family of pods and Services in a created cluster. It cannot be changed later."""

    controller_compute: ControllerCompute = "node-group"
    """Where the controller runs in a created cluster: on a managed node group or on Fargate. The
    nodes of the node group have the taint `CriticalAddonsOnly`, so workloads run on nodes of
    NodePools."""

    controller_instance_types: Sequence[InstanceType] = ("t4g.medium",)
    """Instance types of the controller's node group, all of one architecture. EC2 launches the
    first one that has capacity."""

    controller_size: Annotated[int, Range(1, 100)] = 2
    """Number of nodes in the controller's node group. An update adds one node temporarily."""

    vpc_cidr: Cidr = "10.128.0.0/16"
    """CIDR of the VPC that is created for a created cluster. With `subnetIds` no VPC is created."""

    nat_gateways: Nat = "single"
    """NAT gateways of a created VPC: one for all zones, or one in each zone."""

    interface_endpoints: Sequence[ServiceOfAws] = ()
    """AWS services that a created VPC reaches through an interface endpoint in each zone instead of
    NAT. Each costs about $22 a month in three zones. The S3 gateway endpoint, which carries image
    layers, is free and always created."""

    access_entries: AccessEntries = ()
    """IAM principals with access to a created cluster. The principal that creates the cluster is
    its administrator; do not list it."""

    platform_stack: StackName | None = None
    """The stack that installed the controller. If it is set, this stack manages only NodePools, and
    refuses settings that apply only to the controller's stack. A name without organization and
    project means this organization and project."""

    aws_endpoint: Url | None = None
    """URL of one endpoint for all AWS APIs, such as a mock of AWS. The default is AWS."""

    kubeconfig: str | None = None
    """Path of a kubeconfig. If it is below the home directory (`~`) or relative to the project, the
    stack can also be destroyed from another machine that has the file there. By default the program
    uses the EKS endpoint and `aws eks get-token`."""

    installation: TagValue | None = None
    """Value of the tag `joiner.dev/installation` on all AWS resources of the installation. The
    default is organization/project/stack. It cannot change during the life of a stack; set it to
    the old value after `pulumi stack rename`."""

    node_pools: str | None = None
    """Folder with YAML files of NodePools and EC2NodeClasses, relative to the project."""

    default_node_pool: bool = True
    """Whether the stack creates a NodePool and an EC2NodeClass named `default` if `nodePools` is
    not set."""

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that the component `Joiner` has too, by field."""
        fields = dataclasses.fields(InstallationSettings)
        return {member.name: getattr(self, member.name) for member in fields}

    @property
    def kubeconfig_path(self) -> Path | None:
        """Path of the kubeconfig, None if the setting is unset."""
        return kubeconfig_file(self.kubeconfig) if self.kubeconfig else None

    @property
    def portable_kubeconfig(self) -> str:
        """The kubeconfig's path relative to `~` if possible; empty if the setting is unset."""
        path = Path(self.kubeconfig or "")
        if not self.kubeconfig or not path.is_relative_to(Path.home()):
            return self.kubeconfig or ""
        return f"~/{path.relative_to(Path.home())}"

    @property
    def node_pools_folder(self) -> Path | None:
        """Path of the folder of NodePools, None if the setting is unset."""
        return CHECKOUT / self.node_pools if self.node_pools else None


def camel(name: str) -> str:
    """Return the key of a setting in camelCase for its name in Python."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _of_text(kind: Any) -> Any:
    """Return the type of a value that is set as text: neither None nor an output of a resource."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _of_text(members[0])
    if origin in (Mapping, Sequence):
        return origin[tuple(map(_of_text, members))]
    return kind


# `pulumi.Input` refers to `Output` by name.
_HINTS = typing.get_type_hints(StackConfig, localns=vars(pulumi.output), include_extras=True)
TYPES: Mapping[str, Any] = {name: _of_text(kind) for name, kind in _HINTS.items()}
"""The type of the value of each setting of a stack, by field."""

KEYS: Mapping[str, dataclasses.Field[Any]] = {
    camel(member.name): member for member in dataclasses.fields(StackConfig)
}
"""All settings of a stack, by key."""
