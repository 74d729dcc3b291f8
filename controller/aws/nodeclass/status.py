"""Resolves the status of an EC2NodeClass, condition by condition.

The message of a False condition says what to change, except where it is Karpenter's word for word:
`controller.apis.karpenter.nodeclasscauses` adds the remedy for events and for the conditions of
other objects. If AWS is slow, throttles or cannot be reached, the EC2NodeClass keeps its status and
is reconciled again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from controller.apis.karpenter.ec2nodeclass import (
    EC2NodeClass,
    EC2NodeClassStatus,
    SubnetStatus,
)
from controller.apis.kubernetes.conditions import ConditionStatus, find, roll_up, with_condition
from controller.apis.kubernetes.meta import with_fields
from controller.apis.labels import NVIDIA_CONSUMABLE_CAPACITY
from controller.aws.bootstrap import kubelet
from controller.aws.bootstrap.families import AL2023, family_of
from controller.aws.bootstrap.kubeletexpressions import malformed_expression
from controller.aws.bootstrap.nodeconfigs import UserDataError
from controller.aws.bootstrap.userdata import Bootstrap, user_data
from controller.aws.cluster import ClusterFacts
from controller.aws.errors import PROFILE_INVALID, AwsError, RequestError
from controller.aws.instancetypes.expecteddevices import SharingError, sharing_of
from controller.aws.instancetypes.reservations import Reservations
from controller.aws.network.placementgroups import PlacementGroups
from controller.aws.network.securitygroups import SecurityGroups
from controller.aws.network.subnets import Subnets
from controller.aws.nodeclass import nodeclasstags
from controller.aws.nodeclass.amis import AMIs, UnsupportedAliasError
from controller.aws.nodeclass.instanceprofiles import InstanceProfileError, InstanceProfiles
from controller.cloudprovider.errors import CloudProviderError, NodeClassNotReadyError

VALIDATION = "ValidationSucceeded"

PERMISSIONS = {
    "describe_subnets": "ec2:DescribeSubnets",
    "describe_security_groups": "ec2:DescribeSecurityGroups",
    "describe_images": "ec2:DescribeImages",
    "get_parameter": "ssm:GetParameter",
    "describe_cluster": "eks:DescribeCluster",
    "describe_placement_groups": "ec2:DescribePlacementGroups",
    "describe_capacity_reservations": "ec2:DescribeCapacityReservations",
    "get_instance_profile": "iam:GetInstanceProfile",
    "list_instance_profiles": "iam:ListInstanceProfiles",
    "create_instance_profile": "iam:CreateInstanceProfile",
    "add_role_to_instance_profile": "iam:AddRoleToInstanceProfile",
    "create_launch_template": "ec2:CreateLaunchTemplate",
    "create_fleet": "ec2:CreateFleet",
    "run_instances": "ec2:RunInstances",
}
"""The IAM action that an operation of boto3 needs."""

GRANTED_BY = {
    "get_parameter": "joiner:imageParameters",
    "get_instance_profile": "joiner:instanceProfiles",
    "create_instance_profile": "joiner:instanceProfiles",
    "add_role_to_instance_profile": "joiner:instanceProfiles",
}
"""The setting of the stack that grants an optional permission, by operation."""

NAMED_BY = {
    "AMIsReady": ("AMIResolutionFailed", "spec.amiSelectorTerms"),
    "CapacityReservationsReady": (
        "CapacityReservationResolutionFailed",
        "spec.capacityReservationSelectorTerms",
    ),
    "PlacementGroupReady": ("PlacementGroupResolutionFailed", "spec.placementGroupSelector"),
    "SubnetsReady": ("SubnetResolutionFailed", "spec.subnetSelectorTerms"),
    "SecurityGroupsReady": ("SecurityGroupResolutionFailed", "spec.securityGroupSelectorTerms"),
    "InstanceProfileReady": (InstanceProfileError.reason, "spec.role, or a tag of spec.tags"),
}
"""The reason if AWS rejects the value of a field, and the field, by condition."""


class ConditionError(Exception):
    """A condition of an EC2NodeClass is not True; has its status, reason and message."""

    def __init__(self, reason: str, message: str, *, status: ConditionStatus = "False") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status: ConditionStatus = status


@dataclass(frozen=True, slots=True)
class Caveat:
    """A condition that warns about an EC2NodeClass and does not prevent launches.

    The condition is False while the warning applies, and absent otherwise. `Ready` does not depend
    on it.
    """

    kind: str
    reason: str
    message: str


@dataclass(slots=True)
class _Resolution:
    """The status of an EC2NodeClass while it is resolved."""

    node_class: EC2NodeClass
    status: EC2NodeClassStatus
    now: datetime
    kinds: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)

    async def step(self, kind: str, resolve: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Resolve one part of the status, and set its condition to the outcome."""
        try:
            fields = await resolve()
        except ConditionError as exc:
            self._set(kind, exc.status, reason=exc.reason, message=exc.message)
        except AwsError as exc:
            if exc.is_invalid_parameter and kind in NAMED_BY:
                reason, named_by = NAMED_BY[kind]
                self._set(kind, "False", reason=reason, message=f"AWS rejected {named_by}: {exc}")
                return
            if not exc.is_unauthorized:
                raise
            right = PERMISSIONS.get(exc.operation, exc.operation)
            setting = GRANTED_BY.get(exc.operation)
            how = f" (setting {setting})" if setting else ""
            self._set(
                kind,
                "False",
                reason="Unauthorized",
                message=f"Controller isn't authorized to call {right}; allow it in the "
                f"controller's IAM role{how}: {exc}",
            )
        else:
            self.status = msgspec.structs.replace(self.status, **fields)
            self._set(kind, "True")

    def warn(self, caveat: Caveat) -> None:
        """Set the condition of a warning; `Ready` does not depend on it."""
        self.caveats.append(caveat.kind)
        self._say(caveat.kind, "False", reason=caveat.reason, message=caveat.message)

    def _set(
        self, kind: str, status: ConditionStatus, *, reason: str = "", message: str = ""
    ) -> None:
        self.kinds.append(kind)
        self._say(kind, status, reason=reason, message=message)

    def _say(self, kind: str, status: ConditionStatus, *, reason: str, message: str) -> None:
        conditions = with_condition(
            self.status.conditions,
            kind,
            status,
            reason=reason,
            message=message,
            generation=self.node_class.metadata.generation,
            now=self.now,
        )
        self.status = msgspec.structs.replace(self.status, conditions=conditions)

    @property
    def as_class(self) -> EC2NodeClass:
        """The EC2NodeClass with the status that is resolved so far."""
        return msgspec.structs.replace(self.node_class, status=self.status)

    def roll_up(self) -> EC2NodeClass:
        """Return the EC2NodeClass with Ready; conditions that were not set are removed."""
        said = {*self.kinds, *self.caveats, "Ready"}
        kept = [c for c in self.status.conditions if c.type in said]
        conditions = roll_up(
            kept, self.kinds, generation=self.node_class.metadata.generation, now=self.now
        )
        return with_fields(self.as_class, "status", conditions=conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClasses:
    """Resolves EC2NodeClasses; `verify` checks at the end by dry run whether EC2 would launch."""

    cluster: ClusterFacts
    amis: AMIs
    subnets: Subnets
    groups: SecurityGroups
    profiles: InstanceProfiles
    reservations: Reservations
    placements: PlacementGroups
    verify: Callable[[EC2NodeClass], Awaitable[None]]
    caveats: Callable[[EC2NodeClass], Iterable[Caveat]]
    invalid_expression: Callable[[EC2NodeClass], str]
    """Returns which kubelet expression (in CEL) has no valid value; empty if all have one."""

    reserved_capacity: bool = True
    expressions: bool = False
    """Whether `spec.kubelet` may contain expressions: the feature gate NodeClassCEL."""

    shares_gpus: bool = False
    """Whether claims may share GPUs: the feature gate DRANVIDIAGPU."""

    async def resolve(self, node_class: EC2NodeClass, *, now: datetime) -> EC2NodeClass:
        """Return the EC2NodeClass with its current status.

        Raises:
            CloudProviderError: AWS cannot be reached, throttles or failed; the status stays.

        """
        resolution = _Resolution(node_class, node_class.status, now)
        await resolution.step("AMIsReady", lambda: self._images(node_class))
        if self.reserved_capacity:
            await resolution.step(
                "CapacityReservationsReady", lambda: self._find_reservations(node_class)
            )
        await resolution.step("PlacementGroupReady", lambda: self._placement(node_class))
        await resolution.step("SubnetsReady", lambda: self._zones(node_class))
        await resolution.step("SecurityGroupsReady", lambda: self._security(node_class))
        await resolution.step("InstanceProfileReady", lambda: self._profile(node_class))
        await resolution.step(VALIDATION, lambda: self._validation(resolution))
        for caveat in self.caveats(resolution.as_class):
            resolution.warn(caveat)
        return resolution.roll_up()

    async def _images(self, node_class: EC2NodeClass) -> dict[str, Any]:
        version = (await self.cluster.get()).version
        try:
            amis = await self.amis.find(node_class, version)
        except UnsupportedAliasError as exc:
            raise ConditionError(exc.reason, str(exc)) from exc
        if not amis:
            raise ConditionError("AMINotFound", "AMISelector did not match any AMIs")
        return {"amis": list(amis)}

    async def _find_reservations(self, node_class: EC2NodeClass) -> dict[str, Any]:
        reservations = await self.reservations.find(
            node_class.spec.capacity_reservation_selector_terms
        )
        return {"capacity_reservations": list(reservations)}

    async def _placement(self, node_class: EC2NodeClass) -> dict[str, Any]:
        selector = node_class.spec.placement_group_selector
        group = await self.placements.find(selector)
        if selector and group is None:
            raise ConditionError(
                "PlacementGroupNotFound",
                f'Placement group "{selector.name or selector.id}" not found; it must exist and '
                "be available. Correct spec.placementGroupSelector",
            )
        return {}

    async def _zones(self, node_class: EC2NodeClass) -> dict[str, Any]:
        subnets = await self.subnets.find(node_class.spec.subnet_selector_terms)
        if not subnets:
            raise ConditionError("SubnetsNotFound", "SubnetSelector did not match any Subnets")
        return {"subnets": [SubnetStatus(id=s.id, zone=s.zone, zone_id=s.zone_id) for s in subnets]}

    async def _security(self, node_class: EC2NodeClass) -> dict[str, Any]:
        groups = await self.groups.find(node_class.spec.security_group_selector_terms)
        if not groups:
            raise ConditionError(
                "SecurityGroupsNotFound",
                "SecurityGroupSelector did not match any SecurityGroups",
            )
        return {"security_groups": list(groups)}

    async def _profile(self, node_class: EC2NodeClass) -> dict[str, Any]:
        try:
            return {"instance_profile": await self.profiles.ensure(node_class)}
        except InstanceProfileError as exc:
            raise ConditionError(exc.reason, str(exc)) from exc

    async def _validation(self, resolution: _Resolution) -> dict[str, Any]:
        node_class = resolution.as_class
        await self._text(node_class)
        waiting = [
            condition
            for kind in resolution.kinds
            if (condition := find(node_class.status.conditions, kind)) and not condition.is_true
        ]
        if waiting:
            raise ConditionError(
                "DependenciesNotReady",
                "Awaiting " + ", ".join(c.type for c in waiting),
                status="False" if any(c.is_false for c in waiting) else "Unknown",
            )
        if invalid_expression := self.invalid_expression(node_class):
            raise ConditionError("KubeletExpressionEvaluationFailed", invalid_expression)
        await self._validate(node_class)
        return {}

    async def _validate(self, node_class: EC2NodeClass) -> None:
        try:
            await self.verify(node_class)
        except ConditionError as exc:
            if exc.reason != PROFILE_INVALID:
                raise
            remedy = self.profiles.remedy(node_class)
            self.profiles.forget(node_class)
            if named := node_class.spec.instance_profile:
                raise ConditionError(
                    "InstanceProfileNotFound",
                    f'Instance profile "{named}" not found; create it in IAM or correct '
                    "spec.instanceProfile",
                ) from exc
            message = "; ".join(filter(None, (exc.message, remedy)))
            raise ConditionError(exc.reason, message) from exc
        except (RequestError, NodeClassNotReadyError) as exc:
            raise ConditionError(exc.reason, str(exc)) from exc
        except CloudProviderError as exc:
            before = find(node_class.status.conditions, VALIDATION)
            if before and before.observed_generation == node_class.metadata.generation:
                # The failure is not the EC2NodeClass's: the last result still applies.
                raise
            raise ConditionError(
                exc.reason, f"not validated yet; retrying: {exc}", status="Unknown"
            ) from exc

    async def _text(self, node_class: EC2NodeClass) -> None:
        """Validate the spec without calls to AWS."""
        spec, family = node_class.spec, family_of(node_class)
        cluster = await self.cluster.get()
        if family is AL2023 and not cluster.service_cidr:
            raise ConditionError(
                "ClusterCIDRResolutionFailed",
                "Failed to detect the cluster CIDR, which AL2023 nodes need: EKS returned no "
                "service CIDR",
            )
        wrong = kubelet.problems(spec.kubelet)
        if wrong:
            raise ConditionError("InvalidKubeletConfiguration", "; ".join(wrong))
        if not self.expressions and (closed := kubelet.gate_problems(spec.kubelet)):
            raise ConditionError("KubeletExpressionsDisabled", closed)
        if malformed := malformed_expression(spec.kubelet):
            raise ConditionError("KubeletExpressionInvalid", malformed)
        unsupported = kubelet.unsupported_fields(spec.kubelet, family)
        if unsupported:
            raise ConditionError(
                "UnsupportedKubeletConfiguration",
                f"AMI family {family.name} does not support spec.kubelet."
                f"{', '.join(unsupported)}; remove these fields",
            )
        self._validate_sharing(node_class)
        try:
            user_data(family, Bootstrap(cluster=cluster, custom=spec.user_data or ""))
        except UserDataError as exc:
            raise ConditionError("InvalidUserData", str(exc)) from exc
        refused = nodeclasstags.forbidden(spec.tags or {})
        if refused:
            raise ConditionError(
                "TagValidationFailed",
                f"spec.tags contains restricted tags, which only the controller sets: "
                f"{', '.join(map(repr, refused))}; remove them",
            )

    def _validate_sharing(self, node_class: EC2NodeClass) -> None:
        """Validate the annotation with which claims share GPUs."""
        try:
            shared = sharing_of(node_class)
        except SharingError as exc:
            raise ConditionError("NVIDIAConsumableCapacityInvalid", str(exc)) from exc
        if shared is not None and not self.shares_gpus:
            raise ConditionError(
                "DRADisabled",
                f"annotation {NVIDIA_CONSUMABLE_CAPACITY} enables GPU sharing, but the "
                "DRANVIDIAGPU feature gate is disabled. To turn it on, add DRANVIDIAGPU=true to "
                "the setting AWS_FEATURE_GATES",
            )
