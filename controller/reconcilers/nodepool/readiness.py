"""Writes a NodePool's status and hash: conditions, resources and node count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from controller.apis import labels
from controller.apis.appliers import appliers
from controller.apis.karpenter import hashes, validation
from controller.apis.karpenter.annotations import OF_NODE_POOLS, OF_TEMPLATES, invalid_values
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.imagesnapshot import (
    SNAPSHOT_FAMILIES,
    ImageSnapshotError,
    free_device,
    image_snapshot,
)
from controller.apis.karpenter.nodeclasscauses import causes
from controller.apis.karpenter.nodepool import (
    IMAGE_SNAPSHOT_USED,
    IN_SERVICE,
    NODE_REGISTRATION_HEALTHY,
    SOLE_OWNER,
    NodeClassReference,
    NodePool,
)
from controller.apis.kinds import EC2_NODE_CLASS, NODE_POOL
from controller.apis.kubernetes import conditions, quantities
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import to_wire
from controller.apis.ownership import has_unsupported_class
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.nodepools import contradiction
from controller.constraints.requirements import read
from controller.disruption.budgets import budget_faults
from controller.options import GATE_DISABLED, gate_disabled
from controller.reconcilers.newnodes.supply import requirement_mismatch, zone_mismatch
from controller.reconcilers.nodepool.scaleups import ScaleUps
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.rehashing import update_hashes
from controller.reconcilers.writing import apply_patch
from controller.state.registrations import Failure, Registrations

VALIDATION_SUCCEEDED = "ValidationSucceeded"
NODE_CLASS_READY = "NodeClassReady"

RECHECK = timedelta(minutes=1)
"""How soon to check again whether an instance type matches: EC2 may offer new instance types."""

OUT_OF_SERVICE = timedelta(minutes=3)
"""How long a pool creates no nodes after a stack that is being destroyed last set the condition
`joiner.dev/InService` to False. The destroy renews the condition; if it is aborted, the pool
creates nodes again."""

_Outcome = tuple[conditions.ConditionStatus, str, str]
"""Status, reason and message of a condition."""

TRUE: _Outcome = ("True", "", "")


@dataclass(frozen=True, slots=True)
class _Match:
    """The last comparison of a pool's requirements with instance types, and its result."""

    generation: int
    types: Sequence[InstanceType]
    problem: str


@dataclass(frozen=True, slots=True)
class Readiness(PortUser):
    """Writes the status and hash of a NodePool when they change."""

    ports: Ports
    registrations: Registrations
    static_capacity: bool = False
    """Whether the feature gate StaticCapacity is on."""

    reserved_capacity: bool = True
    """Whether the feature gate ReservedCapacity is on."""

    _matched: dict[str, _Match] = field(default_factory=dict, init=False)
    _scale_ups: ScaleUps = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scale_ups", ScaleUps(self.ports))

    async def reconcile(self, name: str) -> timedelta | None:
        """Update the pool's status; returns when to check again, None to wait for an event."""
        pool = self.cluster.get(NODE_POOL, name)
        if pool is None:
            self.registrations.forget(name)
            self._scale_ups.forget(name)
            self._matched.pop(name, None)
            return None
        if pool.metadata.is_deleting:
            return None
        pauses = [await self._scale_ups.report(pool)]
        await self._report_invalid(pool)
        pool = await self._retry(await self._hash(pool))
        node_class = self._node_class(pool)
        mismatch = await self._requirement_mismatch(pool, node_class)
        after = self._conditions(pool, node_class, mismatch)
        await self._report_unready(pool, after)
        used = self.cluster.usage_of(name)
        resources = {
            k: quantities.format_quantity(v, k) for k, v in sorted(used.items()) if k != "nodes"
        }
        nodes = used.get("nodes", 0) // quantities.MILLI
        generation = node_class.metadata.generation if node_class else 0
        same = (
            conditions.are_equal(pool.status.conditions, after)
            and dict(pool.status.resources) == resources
            and pool.status.nodes == nodes
            and pool.status.node_class_observed_generation == generation
        )
        pauses += [self._out_of_service_for(after), RECHECK if mismatch else None]
        again = min((pause for pause in pauses if pause is not None), default=None)
        if same:
            return again
        gone = {k: None for k in pool.status.resources if k not in resources}
        status = {
            "conditions": to_wire(after),
            "resources": {**resources, **gone},
            "nodes": nodes,
            "nodeClassObservedGeneration": generation,
        }
        await apply_patch(self.ports, pool, {"status": status}, subresource="status")
        return again

    def _node_class(self, pool: NodePool) -> EC2NodeClass | None:
        """Return the pool's class; None if it does not exist, or is of an unsupported kind."""
        if has_unsupported_class(pool):
            return None
        return self.cluster.get(EC2_NODE_CLASS, pool.spec.template.spec.node_class_ref.name)

    async def _report_invalid(self, pool: NodePool) -> None:
        """Publish which budgets and annotations are invalid; the NodePool stays ready.

        Karpenter does not validate budgets at all.
        """
        for fault in budget_faults(pool):
            await self.recorder.publish(
                pool, "Warning", "InvalidDisruptionBudget",
                f"{fault}; an invalid budget allows no disruption for its reasons")  # fmt: skip
        of_template = pool.spec.template.metadata.annotations or {}
        for fault in (
            *invalid_values(pool.metadata.annotations, OF_NODE_POOLS),
            *invalid_values(of_template, OF_TEMPLATES),
        ):
            await self.recorder.publish(pool, "Warning", "InvalidAnnotation", fault)

    async def _report_unready(self, pool: NodePool, known: Sequence[Condition]) -> None:
        """Publish why the NodePool is not ready; `pulumi up` shows it while it waits."""
        found = (conditions.find(known, kind) for kind in (VALIDATION_SUCCEEDED, NODE_CLASS_READY))
        faults = [condition.message for condition in found if condition and condition.is_false]
        if faults:
            await self.recorder.publish(pool, "Warning", "NodePoolNotReady", "; ".join(faults))

    def _out_of_service_for(self, known: Sequence[Condition]) -> timedelta | None:
        """Return for how long the pool is still out of service; None if it is in service."""
        closed = conditions.find(known, IN_SERVICE)
        if closed is None or not closed.is_false or closed.last_transition_time is None:
            return None
        left = closed.last_transition_time + OUT_OF_SERVICE - self.clock()
        return left if left > timedelta() else None

    async def _requirement_mismatch(self, pool: NodePool, node_class: EC2NodeClass | None) -> str:
        """Return which of the pool's requirements no instance type meets; empty if one does.

        The result is cached while the pool and the types do not change, because each change of a
        NodeClaim calls this, and there are hundreds of types.
        """
        name, generation = pool.metadata.name, pool.metadata.generation
        if node_class is None or not conditions.is_true(node_class.status.conditions, "Ready"):
            return ""  # the types of the class are not known; NodeClassReady says so
        if mismatch := zone_mismatch(pool, node_class):
            return mismatch
        before = self._matched.get(name)
        try:
            types = await self.cloud.instance_types(node_class, pool)
        except CloudProviderError:
            return before.problem if before and before.generation == generation else ""
        if before is None or before.generation != generation or before.types is not types:
            before = self._matched[name] = _Match(
                generation, types, requirement_mismatch(pool, types)
            )
        return before.problem

    def _validation(self, pool: NodePool, mismatch: str) -> _Outcome:
        if problems := "; ".join(validation.problems(pool)) or contradiction(pool):
            return "False", "NodePoolValidationFailed", problems
        if pool.spec.replicas is not None and not self.static_capacity:
            return "False", GATE_DISABLED, gate_disabled("spec.replicas", "StaticCapacity")
        if not self.reserved_capacity and _needs_reserved(pool):
            requirement = (
                f"{labels.CAPACITY_TYPE} In [{labels.RESERVED}] in spec.template.spec.requirements"
            )
            return "False", GATE_DISABLED, gate_disabled(requirement, "ReservedCapacity")
        return ("False", "NoCompatibleInstanceTypes", mismatch) if mismatch else TRUE

    def _conditions(
        self, pool: NodePool, node_class: EC2NodeClass | None, mismatch: str
    ) -> list[Condition]:
        now, generation = self.clock(), pool.metadata.generation
        with_outcome = partial(_with_outcome, generation=generation, now=now)
        health = self._registration_health(pool, node_class, now)
        after = with_outcome(
            pool.status.conditions, VALIDATION_SUCCEEDED, self._validation(pool, mismatch)
        )
        after = with_outcome(after, NODE_CLASS_READY, _class_readiness(pool, node_class))
        after = with_outcome(after, NODE_REGISTRATION_HEALTHY, health)
        after = with_outcome(after, SOLE_OWNER, _several_owners(pool))
        after = with_outcome(after, IMAGE_SNAPSHOT_USED, _ignored_snapshot(pool, node_class))
        dependents = [VALIDATION_SUCCEEDED, NODE_CLASS_READY]
        if self._out_of_service_for(after) is None:
            after = conditions.without_condition(after, IN_SERVICE)
        else:
            dependents.append(IN_SERVICE)
        return conditions.roll_up(after, dependents, generation=generation, now=now)

    def _registration_health(
        self, pool: NodePool, node_class: EC2NodeClass | None, now: datetime
    ) -> _Outcome:
        """Return whether new nodes register; a change of pool or class resets the failures."""
        name, generation = pool.metadata.name, pool.metadata.generation
        before = conditions.find(pool.status.conditions, NODE_REGISTRATION_HEALTHY)
        class_generation = node_class.metadata.generation if node_class else 0
        if (
            before is None
            or before.observed_generation != generation
            or pool.status.node_class_observed_generation != class_generation
        ):
            self.registrations.forget(name)
        elif before.status != "Unknown":
            since = before.last_transition_time or now
            earlier = Failure(before.reason, before.message, since) if before.is_false else None
            self.registrations.restore(name, earlier)
        self.registrations.observe(name, _node_inputs(node_class))
        failure = self.registrations.last_failure(name)
        status: conditions.ConditionStatus = "False" if failure is not None else "True"
        reason, message = (failure.reason, failure.message) if failure is not None else ("", "")
        next_try = self.registrations.next_try(name)
        if next_try is not None:
            message += (
                f"; Joiner launches one node at a time, the next at {next_try:%H:%M:%S} UTC; to "
                f"retry now: kubectl annotate nodepool {name} {labels.RETRY}=true"
            )
        if not self.registrations.is_known(name):
            status, reason = "Unknown", "AwaitingReconciliation"
            message = "No node has registered since the NodePool or its EC2NodeClass changed"
        return status, reason, message

    async def _retry(self, pool: NodePool) -> NodePool:
        """Remove the retry annotation, if it is set, and end the pool's backoff."""
        if labels.RETRY not in pool.metadata.annotations:
            return pool
        self.registrations.retry(pool.metadata.name)
        patch = {"metadata": {"annotations": {labels.RETRY: None}}}
        return await apply_patch(self.ports, pool, patch)

    async def _hash(self, pool: NodePool) -> NodePool:
        wanted = {
            labels.NODEPOOL_HASH: hashes.node_pool_hash(pool),
            labels.NODEPOOL_HASH_VERSION: hashes.NODE_POOL_VERSION,
        }
        before = pool.metadata.annotations
        if all(before.get(k) == v for k, v in wanted.items()):
            return pool
        if before.get(labels.NODEPOOL_HASH_VERSION) != hashes.NODE_POOL_VERSION:
            claims = self.cluster.claims_of(pool.metadata.name)
            version = labels.NODEPOOL_HASH_VERSION
            await update_hashes(self.ports, claims, wanted, version=version)
        return await apply_patch(self.ports, pool, {"metadata": {"annotations": wanted}})


def _needs_reserved(pool: NodePool) -> bool:
    """Whether the pool's requirements allow no capacity type but `reserved`."""
    allowed = read(pool.spec.template.spec.requirements).get(labels.CAPACITY_TYPE)
    return allowed is not None and not any(
        allowed.has(capacity_type) for capacity_type in (labels.ON_DEMAND, labels.SPOT)
    )


def _with_outcome(
    known: Sequence[Condition],
    kind: str,
    outcome: _Outcome | None,
    *,
    generation: int,
    now: datetime,
) -> list[Condition]:
    """Return the conditions with that of type `kind` set to an outcome; removed if None."""
    if outcome is None:
        return conditions.without_condition(known, kind)
    status, reason, message = outcome
    return conditions.with_condition(
        known, kind, status, reason=reason, message=message, generation=generation, now=now
    )


def _class_readiness(pool: NodePool, node_class: EC2NodeClass | None) -> _Outcome:
    reference = pool.spec.template.spec.node_class_ref
    if has_unsupported_class(pool):
        return "False", "NodeClassNotFound", _fault_in_reference(reference)
    named = f'EC2NodeClass "{reference.name}"'
    if node_class is None:
        message = f"{named} does not exist: create it, or change nodeClassRef"
        return "False", "NodeClassNotFound", message
    if node_class.metadata.is_deleting:
        return "False", "NodeClassTerminating", f"{named} is being deleted"
    ready = conditions.find(node_class.status.conditions, "Ready")
    if ready is None:
        return "Unknown", "NodeClassReadinessUnknown", f"{named} has no Ready condition yet"
    if not ready.is_true:
        status: conditions.ConditionStatus = "False" if ready.is_false else "Unknown"
        return status, ready.reason, f"{named} is not ready: {causes(node_class)}"
    return TRUE


def _fault_in_reference(reference: NodeClassReference) -> str:
    """Return which parts of a reference are wrong, and what to do."""
    wrong = [
        (part, value, right)
        for part, value, right in (
            ("group", reference.group, EC2_NODE_CLASS.group),
            ("kind", reference.kind, EC2_NODE_CLASS.name),
        )
        if value != right
    ]
    faults = [f'nodeClassRef.{part} "{value}" is not supported, only {right} is'
              for part, value, right in wrong]  # fmt: skip
    fields = "The fields cannot" if len(wrong) > 1 else "The field cannot"
    return f"{'; '.join(faults)}. {fields} change: delete the NodePool and create it again"


def _several_owners(pool: NodePool) -> _Outcome | None:
    """Return which tools apply the pool, and the one that wins; None if at most one does."""
    owners = appliers(pool.metadata.labels, pool.metadata.annotations)
    if len(owners) < 2:
        return None
    restoring = [owner.name for owner in owners if owner.restores]
    if len(restoring) == 1:
        wins = f"{restoring[0]} wins, because it reverts the changes of the others"
    elif restoring:
        wins = f"{' and '.join(restoring)} revert each other's changes, and the last write wins"
    else:
        wins = "the last write wins"
    message = (
        f"{' and '.join(owner.name for owner in owners)} apply this NodePool: {wins}. Remove the "
        "NodePool from all but one of them, or rename it there"
    )
    return "False", "SeveralOwners", message


def _ignored_snapshot(pool: NodePool, node_class: EC2NodeClass | None) -> _Outcome | None:
    """Return why new nodes ignore the pool's snapshot with images; None if they use it."""
    ignored = "New nodes start without the snapshot:"
    try:
        snapshot = image_snapshot(pool.spec.template.metadata.annotations or {})
    except ImageSnapshotError as exc:
        message = (
            f"{ignored} annotation {labels.IMAGE_SNAPSHOT} of spec.template: {exc}. Set it to "
            "the ID of a snapshot, with or without settings of the volume, such as "
            "snap-0123456789abcdef0,volumeSize=100Gi"
        )
        return "False", "ImageSnapshotInvalid", message
    if snapshot is None or node_class is None:
        return None
    spec = node_class.spec
    family = spec.resolved_ami_family
    if family not in SNAPSHOT_FAMILIES:
        message = (
            f"{ignored} AMI family {family} does not support annotation {labels.IMAGE_SNAPSHOT} of "
            f"spec.template, only {' and '.join(SNAPSHOT_FAMILIES)} do. Remove the annotation, or "
            "refer to an EC2NodeClass of one of these families"
        )
        return "False", "ImageSnapshotUnsupported", message
    if family == "AL2023" and not free_device(spec.block_device_mappings or ()):
        message = (
            f'{ignored} spec.blockDeviceMappings of EC2NodeClass "{node_class.metadata.name}" use '
            "all device names from /dev/xvdf to /dev/xvdp (or /dev/sdf to /dev/sdp), so none is "
            "left for the volume. Remove or rename one of the devices"
        )
        return "False", "NoFreeDevice", message
    return None


def _node_inputs(node_class: EC2NodeClass | None) -> object:
    """Return the resolved properties of new nodes; a change may let them register."""
    if node_class is None:
        return None
    status = node_class.status
    return (
        frozenset(image.id for image in status.amis),
        frozenset(subnet.id for subnet in status.subnets),
        frozenset(group.id for group in status.security_groups),
        status.instance_profile,
        conditions.is_true(status.conditions, "Ready"),
    )
