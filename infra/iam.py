"""The two roles: what nodes are, and what the controller may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulumi
import pulumi_aws as aws
from botocore.exceptions import ClientError
from pulumi.dynamic import CreateResult, Resource

from infra import names, policies
from infra.clusterapi import ClusterLocation
from infra.config import Identity, Presence, Wire
from infra.ekscluster import EksCluster
from infra.identity import NoAssociation, NoAssociationArgs, provider_arn
from infra.inputs import then
from infra.policies import Document
from infra.statefulprovider import StatefulProvider
from infra.teardown import STACK_ANNOTATION

SPOT_SERVICE = "spot.amazonaws.com"
POD_IDENTITY_AGENT = "eks-pod-identity-agent"


@dataclass(frozen=True, kw_only=True)
class NodeRoleArgs:
    """Names of the role and of the instance profile made of it."""

    cluster: EksCluster
    name: pulumi.Input[str]
    presence: Presence = "create"
    """Whether the role is made, or is there already and left as it is."""

    profile_name: pulumi.Input[str] | None = None
    """An instance profile that is there already; one is made when left out."""

    path: str | None = None
    statements: Sequence[Wire] = ()
    """What the role may do beside what every node does."""

    policies: Sequence[pulumi.Input[str]] = ()
    """ARNs of policies, the same."""

    spot_role: Presence = "existing"
    permissions_boundary: pulumi.Input[str] | None = None


class NodeRole(pulumi.ComponentResource):
    """What every node is: a role, and an instance profile for those who name one themselves."""

    def __init__(
        self, name: str, args: NodeRoleArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:NodeRole", name, None, opts)
        self._mine = pulumi.ResourceOptions(parent=self)
        after: list[pulumi.Resource] = []
        if args.presence == "create":
            role = self._role(name, args)
            self.role_name, self.role_arn = role.name, role.arn
            after = [role]
        else:
            found = _existing(args.name, self)
            self.role_name, self.role_arn = found.name, found.arn
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
        """Make the role, and attach what nodes need; on IPv6 that is not AWS's own CNI policy."""
        cluster = args.cluster
        role = aws.iam.Role(
            name,
            name=args.name,
            path=args.path,
            description=then(cluster.name, lambda it: f"Nodes of the EKS cluster {it}"),
            assume_role_policy=_written(cluster, policies.ec2_trust),
            permissions_boundary=args.permissions_boundary,
            opts=self._mine,
        )
        documents: dict[str, pulumi.Input[str]] = {}
        if args.statements:
            documents["Extra"] = policies.text_of(policies.document(*map(dict, args.statements)))
        on_ipv6 = cluster.ip_family == "ipv6"
        if on_ipv6:
            documents["IPv6"] = _written(cluster, policies.ipv6_cni)
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
    """Makes the role when it is created; it is the account's, and stays with it."""

    kind = "spot-role"

    def create(self, props: dict[str, Any]) -> CreateResult:
        try:
            ClusterLocation.of(props).client("iam").create_service_linked_role(
                AWSServiceName=SPOT_SERVICE
            )
        except ClientError as exc:
            # It has been there all along, or since somebody first used spot.
            if exc.response["Error"]["Code"] != "InvalidInput":
                raise
        return super().create(props)


class SpotRole(Resource):
    """EC2's service-linked role for spot; everybody in the account needs it who uses spot."""

    def __init__(
        self, name: str, cluster: EksCluster, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(_SpotRoleProvider(), name, dict(cluster.location), opts)


@dataclass(frozen=True, kw_only=True)
class ControllerRoleArgs:
    """Who the controller is, and how it becomes the role."""

    cluster: EksCluster
    stack: str
    """organization/project/stack; on what only the stack that made it may remove."""

    installation: str
    name: pulumi.Input[str]
    presence: Presence = "create"
    """Whether the role is made, or is there already, with what it may do and who becomes it."""

    path: str | None = None
    prefix: str = names.PREFIX
    """Of its policies' names."""

    statements: Sequence[Wire] = ()
    """What it may do beside what Joiner does."""

    queue_key: pulumi.Input[str] | None = None
    """ARN of the KMS key of the queue; SQS's own when left out."""

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
    """Whether it may make instance profiles, for classes that name a role."""

    image_parameters: Sequence[str] = ()
    """SSM parameters that it may read beside AWS's: names, paths, ARNs."""


class ControllerRole(pulumi.ComponentResource):
    """What the controller may do, and the way its pods come to be allowed it."""

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
            self.role_arn = _existing(args.name, self).arn
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
        return aws.iam.OpenIdConnectProvider(
            name,
            url=args.cluster.issuer,
            client_id_lists=["sts.amazonaws.com"],
            tags={STACK_ANNOTATION: args.stack},
            opts=self._mine,
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
            policy=document,
            opts=self._mine,
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
                opts=self._mine,
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
            # Until the role trusts the token, the association is all there is.
            pulumi.ResourceOptions(parent=self, depends_on=self._after),
        )


def controller_policies(
    *,
    zonal_shift: bool,
    makes_profiles: bool = False,
    image_parameters: bool = False,
    decryption: bool = False,
    extra: bool = False,
) -> list[str]:
    """Return what the controller's policies are for, as their names say it."""
    titles = ["NodeLifecycle", "IAMIntegration", "EKSIntegration", "Interruption"]
    asked = {
        "ZonalShift": zonal_shift,
        "InstanceProfiles": makes_profiles,
        "ImageParameters": image_parameters,
        "Decryption": decryption,
        "Extra": extra,
    }
    return [*titles, "ResourceDiscovery", *(title for title, yes in asked.items() if yes)]


def _existing(name: pulumi.Input[str], parent: pulumi.Resource) -> Any:
    """Look up a role that is there already; the program ends here when there is none."""
    return aws.iam.get_role_output(name=name, opts=pulumi.InvokeOutputOptions(parent=parent))


def _documents(args: ControllerRoleArgs) -> dict[str, pulumi.Input[str]]:
    """Each policy by what its name says it is for."""
    cluster, installation = args.cluster, args.installation
    documents: dict[str, pulumi.Input[str]] = {
        "NodeLifecycle": _written(
            cluster, partial(policies.node_lifecycle, installation=installation)
        ),
        "IAMIntegration": _written(
            cluster,
            lambda place, *arns: policies.iam_integration(place, node_role_arns=arns),
            *args.node_role_arns,
        ),
        "EKSIntegration": _written(cluster, policies.eks_integration),
        "Interruption": _written(
            cluster, lambda _, arn: policies.interruption(arn), args.queue_arn
        ),
        "ResourceDiscovery": _written(cluster, policies.resource_discovery),
    }
    if args.zonal_shift:
        documents["ZonalShift"] = _written(cluster, policies.zonal_shift)
    if args.makes_profiles:
        documents["InstanceProfiles"] = _written(
            cluster, partial(policies.instance_profiles, installation=installation)
        )
    if args.image_parameters:
        documents["ImageParameters"] = _written(
            cluster, partial(policies.image_parameters, parameters=args.image_parameters)
        )
    if args.queue_key:
        documents["Decryption"] = then(
            args.queue_key, lambda arn: policies.text_of(policies.decryption(arn))
        )
    if args.statements:
        documents["Extra"] = policies.text_of(policies.document(*map(dict, args.statements)))
    return documents


def _written(
    cluster: EksCluster, document: Callable[..., Document], *more: pulumi.Input[str]
) -> pulumi.Output[str]:
    """Write a document of a place, and of what else it speaks of."""
    parts = pulumi.Output.all(cluster.place, *more)
    text: pulumi.Output[str] = parts.apply(lambda known: policies.text_of(document(*known)))
    return text
