"""The two roles: what nodes are, and what the controller may do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
from botocore.exceptions import ClientError
from pulumi.dynamic import CreateResult, Resource

from infra import names, policies
from infra.clusterapi import ClusterLocation
from infra.config import Identity, Presence
from infra.identity import NoAssociation, NoAssociationArgs, provider_arn
from infra.policies import Document, Place
from infra.statefulprovider import StatefulProvider
from infra.teardown import STACK_ANNOTATION

SPOT_SERVICE = "spot.amazonaws.com"
POD_IDENTITY_AGENT = "eks-pod-identity-agent"


@dataclass(frozen=True, kw_only=True)
class NodeRoleArgs:
    """Names of the role and of the instance profile made of it."""

    place: Place
    location: ClusterLocation
    name: str
    spot_role: Presence = "existing"
    permissions_boundary: str | None = None


class NodeRole(pulumi.ComponentResource):
    """What every node is: a role, and an instance profile for those who name one themselves."""

    def __init__(
        self, name: str, args: NodeRoleArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:NodeRole", name, None, opts)
        mine = pulumi.ResourceOptions(parent=self)
        self.role = aws.iam.Role(
            name,
            name=args.name,
            description=f"Nodes of the EKS cluster {args.place.cluster_name}",
            assume_role_policy=_json(policies.ec2_trust(args.place)),
            permissions_boundary=args.permissions_boundary,
            opts=mine,
        )
        self.attachments = [
            aws.iam.RolePolicyAttachment(
                f"{name}-{policy}",
                role=self.role.name,
                policy_arn=f"arn:{args.place.partition}:iam::aws:policy/{policy}",
                opts=mine,
            )
            for policy in policies.NODE_ROLE_POLICIES
        ]
        self.profile = aws.iam.InstanceProfile(name, name=args.name, role=self.role.name, opts=mine)
        if args.spot_role == "create":
            SpotRole(
                f"{name}-spot",
                args.location,
                opts=pulumi.ResourceOptions(parent=self, depends_on=[self.role]),
            )
        self.register_outputs({"role": self.role.name, "instanceProfile": self.profile.name})


class _SpotRoleProvider(StatefulProvider):
    """Makes the role when it is created; it is the account's, and stays with it."""

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
        self, name: str, location: ClusterLocation, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(_SpotRoleProvider(), name, asdict(location), opts)


@dataclass(frozen=True, kw_only=True)
class ControllerRoleArgs:
    """Who the controller is, and how it becomes the role."""

    place: Place
    location: ClusterLocation
    stack: str
    """organization/project/stack; on what only the stack that made it may remove."""

    installation: str
    name: str
    identity: Identity
    namespace: str
    service_account: str
    node_role_arn: pulumi.Input[str]
    queue_arn: pulumi.Input[str]
    issuer: str = ""
    pod_identity_agent: Presence = "existing"
    oidc_provider: Presence = "existing"
    permissions_boundary: str | None = None
    zonal_shift: bool = False


class ControllerRole(pulumi.ComponentResource):
    """What the controller may do, and the way its pods come to be allowed it."""

    def __init__(
        self, name: str, args: ControllerRoleArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:ControllerRole", name, None, opts)
        self._mine = pulumi.ResourceOptions(parent=self)
        self.role = aws.iam.Role(
            name,
            name=args.name,
            description=f"Joiner's controller in the EKS cluster {args.place.cluster_name}",
            assume_role_policy=self._trust(name, args),
            permissions_boundary=args.permissions_boundary,
            opts=self._mine,
        )
        for title, document in _documents(args).items():
            self._attach(name, title, document, args)
        if args.identity == "pod-identity":
            self._associate(name, args)
        else:
            self._dissociate(name, args)
        self.register_outputs({"role": self.role.arn})

    def _trust(self, name: str, args: ControllerRoleArgs) -> pulumi.Input[str]:
        if args.identity == "pod-identity":
            return _json(policies.pod_identity_trust())

        def trust(provider_arn: str) -> str:
            return _json(
                policies.irsa_trust(
                    provider_arn,
                    args.issuer,
                    namespace=args.namespace,
                    service_account=args.service_account,
                )
            )

        if args.oidc_provider == "existing":
            return trust(provider_arn(args.place, args.issuer))
        provider = aws.iam.OpenIdConnectProvider(
            name,
            url=args.issuer,
            client_id_lists=["sts.amazonaws.com"],
            tags={STACK_ANNOTATION: args.stack},
            opts=self._mine,
        )
        document: pulumi.Output[str] = provider.arn.apply(trust)
        return document

    def _attach(
        self, name: str, title: str, document: pulumi.Input[str], args: ControllerRoleArgs
    ) -> None:
        policy = aws.iam.Policy(
            f"{name}-{title}",
            name=names.controller_policy(title, args.place.cluster_name, args.place.region),
            policy=document,
            opts=self._mine,
        )
        aws.iam.RolePolicyAttachment(
            f"{name}-{title}", role=self.role.name, policy_arn=policy.arn, opts=self._mine
        )

    def _associate(self, name: str, args: ControllerRoleArgs) -> None:
        if args.pod_identity_agent == "create":
            aws.eks.Addon(
                f"{name}-agent",
                cluster_name=args.place.cluster_name,
                addon_name=POD_IDENTITY_AGENT,
                opts=self._mine,
            )
        aws.eks.PodIdentityAssociation(
            name,
            cluster_name=args.place.cluster_name,
            namespace=args.namespace,
            service_account=args.service_account,
            role_arn=self.role.arn,
            tags={STACK_ANNOTATION: args.stack},
            opts=self._mine,
        )

    def _dissociate(self, name: str, args: ControllerRoleArgs) -> None:
        NoAssociation(
            f"{name}-no-association",
            NoAssociationArgs(
                location=args.location,
                namespace=args.namespace,
                service_account=args.service_account,
                stack=args.stack,
            ),
            # Until the role trusts the token, the association is all there is.
            pulumi.ResourceOptions(parent=self, depends_on=[self.role]),
        )


def controller_policies(*, zonal_shift: bool) -> list[str]:
    """Return what the controller's policies are for, as their names say it."""
    titles = ["NodeLifecycle", "IAMIntegration", "EKSIntegration", "Interruption"]
    return [*titles, "ResourceDiscovery", *(["ZonalShift"] if zonal_shift else [])]


def _documents(args: ControllerRoleArgs) -> dict[str, pulumi.Input[str]]:
    """Each policy by what its name says it is for."""
    place = args.place
    documents: dict[str, pulumi.Input[str]] = {
        "NodeLifecycle": _json(policies.node_lifecycle(place, installation=args.installation)),
        "IAMIntegration": pulumi.Output.from_input(args.node_role_arn).apply(
            lambda arn: _json(
                policies.iam_integration(place, installation=args.installation, node_role_arn=arn)
            )
        ),
        "EKSIntegration": _json(policies.eks_integration(place)),
        "Interruption": pulumi.Output.from_input(args.queue_arn).apply(
            lambda arn: _json(policies.interruption(arn))
        ),
        "ResourceDiscovery": _json(policies.resource_discovery(place)),
    }
    if args.zonal_shift:
        documents["ZonalShift"] = _json(policies.zonal_shift(place))
    return documents


def _json(document: Document) -> str:
    # In one order, or every `up` would find a difference.
    return json.dumps(document, sort_keys=True)
