"""The IAM roles of nodes and of the controller, with their policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi.dynamic import CreateResult

from infra import names, policies
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.config.forms import PROJECT, ConfigError, Identity, Presence, Wire
from infra.identity.controlleridentity import (
    NoAssociation,
    NoAssociationArgs,
    delete_earlier_provider,
    provider_arn,
)
from infra.inputs import then
from infra.lifecycle.awsanswers import unless_error
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.sharedobjects import POD_IDENTITY_AGENT, RETAINED
from infra.lifecycle.statefulprovider import StatefulProvider
from infra.lifecycle.teardown import STACK_ANNOTATION
from infra.policies import Document

SPOT_SERVICE = "spot.amazonaws.com"


@dataclass(frozen=True, kw_only=True)
class NodeRoleArgs:
    """The node role, its instance profile, and its additional permissions."""

    cluster: EksCluster
    name: pulumi.Input[str]
    presence: Presence = "create"
    """Whether the stack creates the role, or it exists and is not changed."""

    profile_name: pulumi.Input[str] | None = None
    """Name of an existing instance profile. If omitted, one is created with the role's name."""

    path: str | None = None
    statements: Sequence[Wire] = ()
    """IAM statements in addition to the policies that every node needs."""

    policies: Sequence[pulumi.Input[str]] = ()
    """ARNs of policies in addition to those that every node needs."""

    spot_role: Presence = "existing"
    permissions_boundary: pulumi.Input[str] | None = None


class NodeRole(pulumi.ComponentResource):
    """The IAM role of nodes, and an instance profile for EC2NodeClasses that name one."""

    def __init__(
        self, name: str, args: NodeRoleArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:NodeRole", name, None, opts)
        self._mine = pulumi.ResourceOptions(parent=self)
        after: list[pulumi.Resource] = []
        if args.presence == "create":
            role = self._role(name, args)
            self.role_name, self.role_arn, self.role_id = role.name, role.arn, role.unique_id
            after = [role]
        else:
            found = _existing_role(args.name, self)
            self.role_name, self.role_arn, self.role_id = found.name, found.arn, found.unique_id
        self.profile_name = pulumi.Output.from_input(
            args.profile_name
            or aws.iam.InstanceProfile(
                name, name=args.name, path=args.path, role=self.role_name, opts=self._mine
            ).name
        )
        if args.spot_role == "create":
            SpotRole(
                f"{name}-spot",
                args.cluster,
                opts=pulumi.ResourceOptions(parent=self, depends_on=after),
            )
        self.register_outputs({"role": self.role_name, "instanceProfile": self.profile_name})

    def _role(self, name: str, args: NodeRoleArgs) -> aws.iam.Role:
        """Create the role and its policies; on IPv6, our CNI policy replaces AWS's managed one."""
        cluster = args.cluster
        role = aws.iam.Role(
            name,
            name=args.name,
            path=args.path,
            description=then(cluster.name, lambda it: f"Nodes of the EKS cluster {it}"),
            assume_role_policy=_policy_text(cluster, policies.ec2_trust),
            permissions_boundary=args.permissions_boundary,
            opts=self._mine,
        )
        documents: dict[str, pulumi.Input[str]] = {}
        if args.statements:
            documents["Extra"] = policies.text_of(policies.document(*map(dict, args.statements)))
        on_ipv6 = cluster.ip_family == "ipv6"
        if on_ipv6:
            documents["IPv6"] = _policy_text(cluster, policies.ipv6_cni)
        for policy in policies.NODE_ROLE_POLICIES:
            if on_ipv6 and policy == policies.CNI_POLICY:
                continue
            of_aws = pulumi.Output.format("arn:{0}:iam::aws:policy/{1}", cluster.partition, policy)
            aws.iam.RolePolicyAttachment(
                f"{name}-{policy}", role=role.name, policy_arn=of_aws, opts=self._mine
            )
        for index, arn in enumerate(args.policies):
            named = arn.rpartition("/")[2] if isinstance(arn, str) else str(index)
            aws.iam.RolePolicyAttachment(
                f"{name}-{named}", role=role.name, policy_arn=arn, opts=self._mine
            )
        for title, text in documents.items():
            aws.iam.RolePolicy(
                f"{name}-{title}", name=title, role=role.name, policy=text, opts=self._mine
            )
        return role


class _SpotRoleProvider(StatefulProvider):
    """Creates the spot role on creation. It belongs to the account, and is never deleted."""

    kind = "spot-role"

    def create(self, props: dict[str, Any]) -> CreateResult:
        iam = ClusterLocation.of(props).client("iam")
        make = partial(iam.create_service_linked_role, AWSServiceName=SPOT_SERVICE)
        # IAM answers InvalidInput if the role exists, for example since the first spot launch.
        unless_error(["InvalidInput"], make)
        return super().create(props)


class SpotRole(RegisteredResource, module="joiner", name="SpotRole"):
    """EC2's service-linked role for spot, which every spot launch in the account requires."""

    def __init__(
        self, name: str, cluster: EksCluster, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(_SpotRoleProvider(), name, dict(cluster.location), opts)


@dataclass(frozen=True, kw_only=True)
class ControllerRoleArgs:
    """The controller's role, its permissions, and how its pods assume it."""

    cluster: EksCluster
    stack: str
    """organization/project/stack: a tag on resources that only the creating stack may delete."""

    installation: str
    name: pulumi.Input[str]
    presence: Presence = "create"
    """Whether the stack creates the role, or it exists with its policies and trust policy."""

    path: str | None = None
    prefix: str = names.PREFIX
    """Prefix of the names of the role's policies."""

    statements: Sequence[Wire] = ()
    """IAM statements in addition to those that Joiner needs."""

    queue_key: pulumi.Input[str] | None = None
    """ARN of the KMS key of the queue; SQS's own key if omitted."""

    identity: Identity
    namespace: pulumi.Input[str]
    service_account: pulumi.Input[str]
    node_role_arns: Sequence[pulumi.Input[str]]
    queue_arn: pulumi.Input[str]
    pod_identity_agent: Presence = "existing"
    oidc_provider: Presence = "existing"
    permissions_boundary: pulumi.Input[str] | None = None
    zonal_shift: bool = False
    makes_profiles: bool = False
    """Whether the controller may create instance profiles for EC2NodeClasses with a role."""

    image_parameters: Sequence[str] = ()
    """SSM parameters that the controller may read in addition to AWS's: names, paths or ARNs."""


class ControllerRole(pulumi.ComponentResource):
    """The controller's IAM role and policies, and the association or trust of its pods."""

    def __init__(
        self, name: str, args: ControllerRoleArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:ControllerRole", name, None, opts)
        self._mine = pulumi.ResourceOptions(parent=self)
        self._after: list[pulumi.Resource] = []
        if args.presence == "create":
            role = self._role(name, args)
            self._after, self.role_arn = [role], role.arn
        else:
            self.role_arn = _existing_role(args.name, self).arn
        if args.identity == "pod-identity":
            self._associate(name, args)
        else:
            self._dissociate(name, args)
        self.register_outputs({"role": self.role_arn})

    def _role(self, name: str, args: ControllerRoleArgs) -> aws.iam.Role:
        role = aws.iam.Role(
            name,
            name=args.name,
            path=args.path,
            description=then(
                args.cluster.name, lambda it: f"Joiner's controller in the EKS cluster {it}"
            ),
            assume_role_policy=self._trust(name, args),
            permissions_boundary=args.permissions_boundary,
            opts=self._mine,
        )
        for title, document in _documents(args).items():
            self._attach(name, title, document, role, args)
        return role

    def _trust(self, name: str, args: ControllerRoleArgs) -> pulumi.Input[str]:
        if args.identity == "pod-identity":
            return policies.text_of(policies.pod_identity_trust())
        cluster = args.cluster
        arn = pulumi.Output.all(cluster.place, cluster.issuer).apply(lambda it: provider_arn(*it))
        if args.oidc_provider == "create":
            arn = self._oidc_provider(name, args).arn
        document: pulumi.Output[str] = pulumi.Output.all(
            arn, cluster.issuer, args.namespace, args.service_account
        ).apply(
            lambda known: policies.text_of(
                policies.irsa_trust(
                    known[0], known[1], namespace=known[2], service_account=known[3]
                )
            )
        )
        return document

    def _oidc_provider(self, name: str, args: ControllerRoleArgs) -> aws.iam.OpenIdConnectProvider:
        cluster = args.cluster

        async def delete_earlier(_: pulumi.ResourceHookArgs) -> None:
            parts = pulumi.Output.all(cluster.place, cluster.issuer, cluster.location)
            if (known := await parts.future()) is not None:
                place, issuer, location = known
                iam = ClusterLocation.of(location).client("iam")
                delete_earlier_provider(iam, provider_arn(place, issuer), args.stack)

        hook = pulumi.ResourceHook(f"{name}-oidc-provider", delete_earlier)
        binding = pulumi.ResourceHookBinding(before_create=[hook])
        return aws.iam.OpenIdConnectProvider(
            name,
            url=cluster.issuer,
            client_id_lists=["sts.amazonaws.com"],
            tags={STACK_ANNOTATION: args.stack},
            opts=pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions.merge(self._mine, RETAINED),
                pulumi.ResourceOptions(hooks=binding),
            ),
        )

    def _attach(
        self,
        name: str,
        title: str,
        document: pulumi.Input[str],
        role: aws.iam.Role,
        args: ControllerRoleArgs,
    ) -> None:
        policy = aws.iam.Policy(
            f"{name}-{title}",
            name=args.cluster.place.apply(
                lambda place: names.controller_policy(
                    title, place.cluster_name, place.region, args.prefix
                )
            ),
            path=args.path,
            policy=then(document, partial(_within_quota, title)),
            # IAM does not delete an attached policy. If a policy is replaced together with the
            # role, it is deleted after its attachment, which is deleted with the role.
            opts=pulumi.ResourceOptions.merge(
                self._mine, pulumi.ResourceOptions(depends_on=[role])
            ),
        )
        aws.iam.RolePolicyAttachment(
            f"{name}-{title}", role=role.name, policy_arn=policy.arn, opts=self._mine
        )

    def _associate(self, name: str, args: ControllerRoleArgs) -> None:
        if args.pod_identity_agent == "create":
            aws.eks.Addon(
                f"{name}-agent",
                cluster_name=args.cluster.name,
                addon_name=POD_IDENTITY_AGENT,
                opts=pulumi.ResourceOptions.merge(self._mine, RETAINED),
            )
        aws.eks.PodIdentityAssociation(
            name,
            cluster_name=args.cluster.name,
            namespace=args.namespace,
            service_account=args.service_account,
            role_arn=self.role_arn,
            tags={STACK_ANNOTATION: args.stack},
            opts=self._mine,
        )

    def _dissociate(self, name: str, args: ControllerRoleArgs) -> None:
        NoAssociation(
            f"{name}-no-association",
            NoAssociationArgs(
                cluster=args.cluster,
                namespace=args.namespace,
                service_account=args.service_account,
                stack=args.stack,
            ),
            # The association is deleted only after the role trusts the OIDC token: until then it
            # is the pods' only credentials.
            pulumi.ResourceOptions(parent=self, depends_on=self._after),
        )


def controller_policies(
    *,
    zonal_shift: bool,
    makes_profiles: bool = False,
    image_parameters: bool = False,
    extra: bool = False,
) -> list[str]:
    """Return the titles of the controller's policies, which are part of their names.

    Each argument is whether the controller has the optional policy for that purpose. `extra` is the
    policy with the statements that the user adds.
    """
    titles = ["NodeLifecycle", "LaunchTemplates", "IAMIntegration", "EKSIntegration"]
    asked = {
        "ZonalShift": zonal_shift,
        "InstanceProfiles": makes_profiles,
        "ImageParameters": image_parameters,
        "Extra": extra,
    }
    always = (*titles, "Interruption", "ResourceDiscovery")
    return [*always, *(title for title, yes in asked.items() if yes)]


def _existing_role(name: pulumi.Input[str], parent: pulumi.Resource) -> Any:
    """Return an existing role. If there is none, the program fails."""
    return aws.iam.get_role_output(name=name, opts=pulumi.InvokeOutputOptions(parent=parent))


def _documents(args: ControllerRoleArgs) -> dict[str, pulumi.Input[str]]:
    """Return the controller's policy documents as JSON text, by title."""
    cluster, installation = args.cluster, args.installation
    documents: dict[str, pulumi.Input[str]] = {
        "NodeLifecycle": _policy_text(
            cluster, partial(policies.node_lifecycle, installation=installation)
        ),
        "LaunchTemplates": _policy_text(
            cluster, partial(policies.launch_templates, installation=installation)
        ),
        "IAMIntegration": _policy_text(
            cluster,
            lambda place, *arns: policies.iam_integration(place, node_role_arns=arns),
            *args.node_role_arns,
        ),
        "EKSIntegration": _policy_text(cluster, policies.eks_integration),
        "Interruption": _policy_text(
            cluster,
            lambda _, *arns: policies.interruption(*arns),
            args.queue_arn,
            *([args.queue_key] if args.queue_key else []),
        ),
        "ResourceDiscovery": _policy_text(cluster, policies.resource_discovery),
    }
    if args.zonal_shift:
        documents["ZonalShift"] = _policy_text(cluster, policies.zonal_shift)
    if args.makes_profiles:
        documents["InstanceProfiles"] = _policy_text(
            cluster, partial(policies.instance_profiles, installation=installation)
        )
    if args.image_parameters:
        documents["ImageParameters"] = _policy_text(
            cluster, partial(policies.image_parameters, parameters=args.image_parameters)
        )
    if args.statements:
        documents["Extra"] = policies.text_of(policies.document(*map(dict, args.statements)))
    return documents


def _within_quota(title: str, text: str) -> str:
    """Return a policy's document unchanged; raise ConfigError if it exceeds IAM's size quota."""
    if (size := policies.size_of(text)) > policies.MANAGED_SIZE:
        raise ConfigError(
            f"the controller's policy {title} has {size:,} characters, but IAM allows "
            f"{policies.MANAGED_SIZE:,}: shorten the setting that it is made from, such as "
            f"{PROJECT}:imageParameters, or use shorter names"
        )
    return text


def _policy_text(
    cluster: EksCluster, document: Callable[..., Document], *more: pulumi.Input[str]
) -> pulumi.Output[str]:
    """Return the JSON text of a policy document, computed from the cluster's place and `more`."""
    parts = pulumi.Output.all(cluster.place, *more)
    text: pulumi.Output[str] = parts.apply(lambda known: policies.text_of(document(*known)))
    return text
