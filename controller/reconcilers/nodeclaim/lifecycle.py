"""Brings a NodeClaim to life: finalizer, launch, registration, initialization, liveness."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from controller.apis import conditions, labels
from controller.apis.kinds import (
    EC2_NODE_CLASS,
    NODE,
    NODE_CLAIM,
    NODE_POOL,
    POD,
    RESOURCE_SLICE,
)
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import INITIALIZED, LAUNCHED, REGISTERED, NodeClaim
from controller.apis.nodes import Node
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    NodeClassNotReadyError,
    NodeClassUnknownError,
)
from controller.cloudprovider.provider import CloudProvider, Instance
from controller.constraints import taints
from controller.reconcilers.clock import Clock
from controller.reconcilers.nodeclaim import initialization, registration
from controller.reconcilers.nodeclaim.finalization import Finalization
from controller.reconcilers.writing import patched, with_condition
from controller.state.cluster import Cluster
from controller.state.registrations import Failure, Registrations
from controller.telemetry.events import EventType, Recorder
from controller.telemetry.metrics import Metrics

LAUNCH_TIMEOUT = timedelta(minutes=5)
"""How long launches of a claim may go on failing. The time that they take does not count: of a
large scale-up most is spent waiting for a turn with the cloud's API."""

LONGEST_PAUSE = timedelta(minutes=1)
"""How much of the time between two tries counts as failing: as much as is backed off at most. The
rest is waiting behind the launches of others."""

WAIT = timedelta(seconds=5)
"""How soon to look again at a claim whose node has not shown itself: events usually come first."""

PLUGIN_DEADLINE = timedelta(minutes=10)
"""How long a device plugin may take: images of drivers are large, and some are compiled there."""

FROM_PLUGINS = ("ResourceNotRegistered", "DRADriverPoolsNotPublished")
"""What a node waits for that its kubelet does not bring."""

MESSAGE_LIMIT = 300

READY_WHEN = (LAUNCHED, REGISTERED, INITIALIZED)
"""The steps of which a claim's condition `Ready` is the sum."""

log = logging.getLogger(__name__)


class NodePreparation(Protocol):
    """What is done for a node that does not take pods in yet."""

    async def awaited(self, claim: NodeClaim) -> None:
        """Prepare while the instance starts."""

    async def joined(self, claim: NodeClaim, node: Node) -> bool:
        """Prepare once there is a node; returns whether pods are to be held off it for now."""

    async def registered(self, node: Node) -> timedelta | None:
        """Let pods into a node that was held, once it is up; returns how long that may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """Moves one claim as far as it can go now; every step is safe to repeat."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    finalization: Finalization
    preparation: NodePreparation
    registrations: Registrations
    registration_timeout: timedelta = timedelta(minutes=15)
    _launching: dict[str, datetime] = field(default_factory=dict, init=False)
    """From when the time counts in which a claim must be launched, by its name: since we first
    looked at it, and later by as much as its launches have taken, and waited behind others."""

    _failed: dict[str, datetime] = field(default_factory=dict, init=False)
    """When the last step of a claim failed, by its name."""

    async def reconcile(self, name: str) -> timedelta | None:
        """Take the claim's next steps; returns when to look again, None to wait for an event."""
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting:
            self._launching.pop(name, None)
            self._failed.pop(name, None)
            return None if claim is None else await self.finalization.reconcile(claim)
        now = self.clock()
        since, failed = self._launching.setdefault(name, now), self._failed.pop(name, now)
        self._launching[name] = since + max(now - failed - LONGEST_PAUSE, timedelta(0))
        try:
            return await self._advance(claim)
        except ConflictError:
            raise  # our picture was old: the step is tried again at once
        except Exception:
            # Whatever stands in a step's way, the time for it runs out.
            if await self._gave_up(self.cluster.get(NODE_CLAIM, name) or claim):
                return None
            self._failed[name] = self.clock()
            raise

    async def _advance(self, claim: NodeClaim) -> timedelta | None:
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            claim = await self._finalizer(claim)
        for step in (self._launch, self._register):
            progressed = await step(claim)
            if progressed is None:
                return None
            claim = progressed
        pause = await self._let_pods_in(claim)
        if pause is not None:
            return pause
        claim = await self._initialize(claim)
        self._learn(claim)
        return await self._liveness(claim)

    def _learn(self, claim: NodeClaim) -> None:
        """Tell the cloud what the node has: it could only guess before."""
        node = self.cluster.get(NODE, claim.status.node_name)
        if node is not None and conditions.is_true(claim.status.conditions, INITIALIZED):
            self.cloud.learn(claim, node.status.capacity)

    async def _finalizer(self, claim: NodeClaim) -> NodeClaim:
        finalizers = [*claim.metadata.finalizers, labels.TERMINATION_FINALIZER]
        return await self._patched(claim, {"metadata": {"finalizers": finalizers}})

    async def _launch(self, claim: NodeClaim) -> NodeClaim | None:
        if conditions.is_true(claim.status.conditions, LAUNCHED):
            return claim
        node_class = self.cluster.get(EC2_NODE_CLASS, claim.spec.node_class_ref.name)
        began = self.clock()
        try:
            if node_class is None or node_class.metadata.is_deleting:
                raise NodeClassNotReadyError(
                    f'EC2NodeClass "{claim.spec.node_class_ref.name}" does not exist: '
                    "create it, or name another one in nodeClassRef"
                )
            instance = await self.cloud.launch(claim, node_class)
        except (InsufficientCapacityError, NodeClassNotReadyError) as error:
            await self._give_up_launch(claim, error)
            return None
        except Exception as error:
            took = max(self.clock() - began, timedelta(0))
            self._launching[claim.metadata.name] += took
            await self._report_launch_failure(claim, error)
            raise
        log.info(
            "launched nodeclaim",
            extra={
                "NodeClaim": claim.metadata.name,
                "provider-id": instance.provider_id,
                "instance-type": instance.instance_type,
                "zone": instance.zone,
                "capacity-type": instance.capacity_type,
            },
        )
        return await self._record_launch(claim, instance)

    async def _give_up_launch(self, claim: NodeClaim, error: CloudProviderError) -> None:
        capacity = isinstance(error, InsufficientCapacityError)
        event = "InsufficientCapacityError" if capacity else "NodeClassNotReady"
        await self.recorder.publish(NODE_CLAIM, claim, "Warning", event, str(error))
        await self._delete(claim, "insufficient_capacity" if capacity else "nodeclass_not_ready")

    async def _report_launch_failure(self, claim: NodeClaim, error: Exception) -> None:
        if isinstance(error, CloudProviderError):
            reason, message = error.reason, str(error)
        else:
            reason, message = CreateError.reason, f"{type(error).__name__}: {error}"
        await self._with_condition(
            claim, LAUNCHED, "Unknown", reason=reason, message=message[:MESSAGE_LIMIT]
        )
        if not isinstance(error, NodeClassUnknownError):
            await self._publish_launch_failure(claim, f"{message} ({reason})"[:MESSAGE_LIMIT])

    async def _publish_launch_failure(self, claim: NodeClaim, message: str) -> None:
        """Tell it where people look: at the pods that wait for it, and at their pool."""
        failure = f"Failed to launch nodeclaim/{claim.metadata.name}, trying again: {message}"
        for pod in self.cluster.nominated_for(claim.metadata.name):
            await self.recorder.publish(POD, pod, "Warning", "FailedScheduling", failure)
        await self.recorder.publish(NODE_CLAIM, claim, "Warning", "LaunchFailed", message)
        pool = self.cluster.get(NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, ""))
        if pool is not None:
            # Without the claim's name: what a hundred claims hear is told once.
            await self.recorder.publish(NODE_POOL, pool, "Warning", "LaunchFailed", message)

    async def _record_launch(self, claim: NodeClaim, instance: Instance) -> NodeClaim:
        metadata = {
            "labels": {**instance.labels, **claim.metadata.labels},
            "annotations": {**claim.metadata.annotations, **instance.annotations},
        }
        claim = await self._patched(claim, {"metadata": metadata})
        generation, now = claim.metadata.generation, self.clock()
        launched = conditions.with_condition(
            claim.status.conditions, LAUNCHED, "True", generation=generation, now=now
        )
        status = {
            "providerID": instance.provider_id,
            "imageID": instance.image_id,
            "capacity": dict(instance.capacity),
            "allocatable": dict(instance.allocatable),
            "conditions": to_wire(
                conditions.rolled_up(launched, READY_WHEN, generation=generation, now=now)
            ),
        }
        return await self._patched(claim, {"status": status}, subresource="status")

    async def _register(self, claim: NodeClaim) -> NodeClaim | None:
        if conditions.is_true(claim.status.conditions, REGISTERED):
            await self._register_again(claim)
            return claim
        nodes = self.cluster.nodes_of(claim)
        if len(nodes) > 1:
            return await self._with_condition(
                claim,
                REGISTERED,
                "False",
                reason="MultipleNodesFound",
                message=f"{len(nodes)} nodes carry the provider ID {claim.status.provider_id}",
            )
        if not nodes:
            await self.preparation.awaited(claim)
            return await self._with_condition(
                claim,
                REGISTERED,
                "Unknown",
                reason="NodeNotFound",
                message="Node not registered with cluster",
            )
        if not registration.is_awaiting(nodes[0]) and not registration.is_done(nodes[0]):
            # Its user data does not set the taint: pods may come before labels and taints do.
            missing: tuple[EventType, str, str] = (
                "Warning",
                "UnregisteredTaintMissing",
                f"Missing {labels.UNREGISTERED_TAINT} taint which prevents registration races",
            )
            await self.recorder.publish(NODE_CLAIM, claim, *missing)
            await self.recorder.publish(NODE, nodes[0], *missing)
        claim = await self._told_later(claim)
        if registration.is_untold(claim):
            return await self._with_condition(
                claim,
                REGISTERED,
                "Unknown",
                reason="RegistrationHookPending",
                message="the cloud does not tell yet in which partition of its placement group "
                "the instance is",
            )
        held = await self.preparation.joined(claim, nodes[0])
        node = self.cluster.node_of(claim) or nodes[0]  # it may have changed meanwhile
        node = await registration.register(self.api, claim, node, held=held)
        self.cluster.observe(NODE, node)
        self.metrics.node_created(claim)
        if (pool := self.cluster.owner_of(claim)) is not None:
            self.registrations.joined(pool)
        log.info(
            "registered nodeclaim",
            extra={"NodeClaim": claim.metadata.name, "Node": node.metadata.name},
        )
        claim = await self._patched(
            claim, {"status": {"nodeName": node.metadata.name}}, subresource="status"
        )
        return await self._with_condition(claim, REGISTERED, "True")

    async def _told_later(self, claim: NodeClaim) -> NodeClaim:
        """Return the claim with what the cloud could not tell of its instance at once."""
        if not registration.is_untold(claim):
            return claim
        told = registration.told(await self.cloud.get(claim.status.provider_id))
        return await self._patched(claim, {"metadata": {"labels": told}}) if told else claim

    async def _register_again(self, claim: NodeClaim) -> None:
        node = self.cluster.get(NODE, claim.status.node_name)
        done = conditions.is_true(claim.status.conditions, INITIALIZED)
        if done or node is None or not registration.is_awaiting(node):
            return
        held = taints.is_held(node.spec.taints)
        self.cluster.observe(NODE, await registration.register(self.api, claim, node, held=held))

    async def _let_pods_in(self, claim: NodeClaim) -> timedelta | None:
        node = self.cluster.get(NODE, claim.status.node_name)
        if node is None or not taints.is_held(node.spec.taints):
            return None
        return await self.preparation.registered(node)

    async def _initialize(self, claim: NodeClaim) -> NodeClaim:
        if not conditions.is_true(claim.status.conditions, REGISTERED):
            return claim
        if conditions.is_true(claim.status.conditions, INITIALIZED):
            return claim
        node = self.cluster.get(NODE, claim.status.node_name)
        followed = RESOURCE_SLICE in self.cluster.mirrored
        slices = self.cluster.list(RESOURCE_SLICE) if followed else None
        obstacle = initialization.obstacle(claim, node, slices)
        if obstacle is not None:
            await self._report_overdue(claim, obstacle)
            return await self._with_condition(
                claim, INITIALIZED, "Unknown", reason=obstacle.reason, message=obstacle.message
            )
        assert node is not None
        node = await initialization.initialize(self.api, node)
        self.cluster.observe(NODE, node)
        log.info(
            "initialized nodeclaim",
            extra={"NodeClaim": claim.metadata.name, "Node": node.metadata.name},
        )
        return await self._with_condition(claim, INITIALIZED, "True")

    async def _report_overdue(self, claim: NodeClaim, obstacle: initialization.Obstacle) -> None:
        """Name what does not come by itself: nothing else ends a node that is never initialized."""
        registered = conditions.find(claim.status.conditions, REGISTERED)
        since = registered.last_transition_time if registered else None
        if obstacle.reason not in FROM_PLUGINS or since is None:
            return
        if self.clock() - since < PLUGIN_DEADLINE:
            return
        # How long it has been is left out: other words every minute would be news every minute.
        minutes = PLUGIN_DEADLINE // timedelta(minutes=1)
        message = (
            f"{obstacle.message} within {minutes} minutes: is its device plugin or driver "
            "installed, does it run on this node, and does it tolerate the node's taints?"
        )
        await self.recorder.publish(NODE_CLAIM, claim, "Warning", obstacle.reason, message)

    async def _liveness(self, claim: NodeClaim) -> timedelta | None:
        if await self._gave_up(claim):
            return None
        return None if conditions.is_true(claim.status.conditions, INITIALIZED) else WAIT

    async def _gave_up(self, claim: NodeClaim) -> bool:
        """Delete a claim that has been getting nowhere for too long."""
        for kind, timeout, reason in (
            (LAUNCHED, LAUNCH_TIMEOUT, "launch_timeout"),
            (REGISTERED, self.registration_timeout, "registration_timeout"),
        ):
            condition = conditions.find(claim.status.conditions, kind)
            if condition is not None and condition.is_true:
                continue
            if self.clock() < self._since(claim, condition) + timeout:
                return False
            log.warning(
                "giving up nodeclaim", extra={"NodeClaim": claim.metadata.name, "reason": reason}
            )
            await self._delete(claim, reason)
            if (pool := self.cluster.owner_of(claim)) is not None:
                self.registrations.failed(pool, _failure(condition, self.clock()))
            return True
        return False

    def _since(self, claim: NodeClaim, condition: conditions.Condition | None) -> datetime:
        """Return from when the time for a step counts."""
        if not conditions.is_true(claim.status.conditions, LAUNCHED):
            return self._launching.get(claim.metadata.name, self.clock())
        since = condition.last_transition_time if condition else None
        return since or claim.metadata.creation_timestamp or self.clock()

    async def _delete(self, claim: NodeClaim, reason: str) -> None:
        try:
            await self.api.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
        except NotFoundError:
            return
        self.metrics.disrupted(claim, reason)

    async def _with_condition(
        self,
        claim: NodeClaim,
        kind: str,
        status: conditions.ConditionStatus,
        *,
        reason: str = "",
        message: str = "",
    ) -> NodeClaim:
        return await with_condition(
            self.api,
            self.cluster,
            claim,
            kind,
            status,
            reason=reason,
            message=message,
            ready_when=READY_WHEN,
            now=self.clock(),
        )

    async def _patched(
        self, claim: NodeClaim, patch: dict[str, object], *, subresource: str = ""
    ) -> NodeClaim:
        return await patched(
            self.api, self.cluster, NODE_CLAIM, claim, patch, subresource=subresource
        )


def _failure(condition: conditions.Condition | None, now: datetime) -> Failure:
    """Say why a claim was given up: as its launch does, or that its node did not join."""
    if condition is not None and condition.type == LAUNCHED:
        return Failure(condition.reason, condition.message, now)
    return Failure("RegistrationFailed", "Failed to register node", now)
