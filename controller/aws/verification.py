"""Validates by dry run that EC2 would launch instances for an EC2NodeClass.

Joiner creates a launch template for one compatible instance type, then calls CreateFleet and
RunInstances with DryRun. A success is cached for 30 minutes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from cachetools import TTLCache

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimSpec
from controller.apis.karpenter.nodepool import NodeClassReference
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.taints import Requirement
from controller.aws.errors import DRY_RUN_PASSED, INSUFFICIENT_CAPACITY, AwsError
from controller.aws.launching import fleet
from controller.aws.launching.launcher import Launcher, LaunchPlan
from controller.aws.nodeclass.status import PERMISSIONS, ConditionError
from controller.aws.selectors import tag_list
from controller.aws.session import Aws
from controller.cloudprovider.errors import CreateError, InsufficientCapacityError

CACHED_SECONDS = 1800.0
"""Seconds for which a success is cached."""

ORDINARY = ("m5.large", "m6g.large")
"""Instance types to try first, because every region has them."""

POOL = "validation"


@dataclass(slots=True, kw_only=True)
class Verification:
    """Validates EC2NodeClasses by dry run; `enabled` is false with DISABLE_DRY_RUN."""

    aws: Aws
    launcher: Launcher
    enabled: bool = True
    clock: Callable[[], float] = time.monotonic
    _passed: TTLCache[bytes, None] = field(init=False)

    def __post_init__(self) -> None:
        self._passed = TTLCache(math.inf, CACHED_SECONDS, self.clock)

    async def verify(self, node_class: EC2NodeClass) -> None:
        """Check that EC2 would launch an instance for the EC2NodeClass.

        Raises:
            ConditionError: EC2 would refuse the launch.
            CloudProviderError: the check itself failed.

        """
        if not self.enabled:
            return
        key = _content(node_class)
        if key in self._passed:
            return
        plan = await self._plan(node_class)
        if plan is None:
            return
        with self.launcher.held(plan):
            await self._fleet(plan)
            await self._instance(plan)
        self._passed[key] = None

    def forget(self) -> None:
        """Drop all cached successes, after EC2 refused a launch that passed the dry run."""
        self._passed.clear()

    async def _plan(self, node_class: EC2NodeClass) -> LaunchPlan | None:
        for requirements in (_requirements_of(*ORDINARY), _on_demand(), []):
            try:
                return await self.launcher.plan(_claim(node_class, requirements), node_class)
            except InsufficientCapacityError:
                continue
            except AwsError as exc:
                if exc.operation == "create_launch_template":
                    _raise_refusal(exc, "CreateLaunchTemplate")
                raise
        # No capacity at the moment: the EC2NodeClass may still be valid.
        return None

    async def _fleet(self, plan: LaunchPlan) -> None:
        parameters = fleet.request(
            plan.candidates, capacity_type=plan.capacity_type, token="", tags=plan.tags
        )
        del parameters["ClientToken"]
        try:
            await self.aws.call("ec2", "create_fleet", DryRun=True, **parameters)
        except AwsError as exc:
            _raise_refusal(exc, "CreateFleet")

    async def _instance(self, plan: LaunchPlan) -> None:
        subnets = {c.subnet_id: c for c in plan.candidates}
        refusal: AwsError | None = None
        for subnet, candidate in subnets.items():
            try:
                await self.aws.call("ec2", "run_instances", **_run(plan, candidate, subnet))
            except AwsError as exc:
                if _is_passed(exc):
                    return
                refusal = exc
        if refusal is not None:
            _raise_refusal(refusal, "RunInstances")


def _run(plan: LaunchPlan, candidate: fleet.LaunchCandidate, subnet: str) -> dict[str, Any]:
    interfaces = [
        {**interface, "SubnetId": subnet}
        for interface in candidate.template.content["NetworkInterfaces"]
    ]
    return {
        "DryRun": True,
        "MinCount": 1,
        "MaxCount": 1,
        "LaunchTemplate": {"LaunchTemplateName": candidate.template.name, "Version": "$Latest"},
        "InstanceType": candidate.instance_type.name,
        "ImageId": candidate.image_id,
        "NetworkInterfaces": interfaces,
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tag_list(plan.tags)} for kind in ("instance", "volume")
        ],
    }


def _is_passed(exc: AwsError) -> bool:
    # No capacity at the moment: the EC2NodeClass may still be valid.
    return exc.code == DRY_RUN_PASSED or exc.code in INSUFFICIENT_CAPACITY


def _raise_refusal(exc: AwsError, call: str) -> None:
    """Raise an error for the EC2NodeClass's condition, or `exc` itself if AWS failed.

    Raises:
        ConditionError: EC2 refused; the EC2NodeClass or the controller's IAM role must change.
        AwsError: a server error of AWS.

    """
    if _is_passed(exc):
        return
    if exc.is_unauthorized or exc.reason.startswith("Unauthorized"):
        right = PERMISSIONS.get(exc.operation, exc.operation)
        raise ConditionError(
            f"{call}AuthCheckFailed",
            f"Controller isn't authorized to call {right}; allow it in the controller's IAM "
            f"role: {exc}",
        ) from exc
    if exc.is_server_fault:
        raise exc
    reason = exc.reason if exc.reason != CreateError.reason else f"{call}Refused"
    raise ConditionError(
        reason, f"EC2 would refuse to launch instances for this EC2NodeClass: {exc}"
    ) from exc


def _content(node_class: EC2NodeClass) -> bytes:
    status = node_class.status
    resolved = [status.subnets, status.security_groups, status.amis, status.instance_profile]
    return msgspec.json.encode([node_class.metadata.uid, node_class.spec, resolved])


def _requirements_of(*instance_types: str) -> list[Requirement]:
    named = Requirement(key=labels.INSTANCE_TYPE, operator="In", values=list(instance_types))
    return [named, *_on_demand()]


def _on_demand() -> list[Requirement]:
    return [Requirement(key=labels.CAPACITY_TYPE, operator="In", values=[labels.ON_DEMAND])]


def _claim(node_class: EC2NodeClass, requirements: list[Requirement]) -> NodeClaim:
    """Return a NodeClaim for the dry run; it is never written to the API server."""
    return NodeClaim(
        metadata=ObjectMeta(name=POOL, labels={labels.NODEPOOL: POOL}),
        spec=NodeClaimSpec(
            node_class_ref=NodeClassReference(
                group=labels.AWS_GROUP, kind="EC2NodeClass", name=node_class.metadata.name
            ),
            requirements=requirements,
        ),
    )
