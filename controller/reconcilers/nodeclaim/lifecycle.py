"""The lifecycle of a NodeClaim: finalizer, launch, registration, initialization, liveness."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import (
    INITIALIZED,
    LAUNCHED,
    REBOOTING,
    REGISTERED,
    NodeClaim,
)
from controller.apis.kinds import (
    EC2_NODE_CLASS,
    NODE,
    NODE_CLAIM,
    NODE_POOL,
    RESOURCE_SLICE,
)
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.errors import ApiError, ConflictError, NotFoundError
from controller.cloudprovider.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    NodeClassNotReadyError,
    NodeClassUnknownError,
)
from controller.cloudprovider.provider import Instance
from controller.constraints import taints
from controller.reconcilers.clock import first_past
from controller.reconcilers.nodeclaim import initialization, registration
from controller.reconcilers.nodeclaim.finalization import Finalization
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import (
    MESSAGE_LIMIT,
    apply_patch,
    changed_conditions,
    with_condition,
)
from controller.state.nodes import is_initialized, is_registered, is_unregistered
from controller.state.registrations import Failure, Registrations
from controller.telemetry.logs import ChangeMonitor

LAUNCH_TIMEOUT = timedelta(minutes=5)
"""How long the launches of a NodeClaim may fail before it is deleted. The duration of the calls
does not count: in a large scale-up most of it is waiting for the EC2 API."""

SLOW = timedelta(seconds=10)
"""How long AWS may take to respond to a launch before this is reported; usually it takes 3 s."""

LONGEST_PAUSE = timedelta(minutes=1)
"""The longest backoff between two launches, and the most that the time between them counts towards
`LAUNCH_TIMEOUT`. The rest is waiting for other launches."""

WAIT = timedelta(seconds=5)
"""How soon to check a NodeClaim without a Node again, if no event triggers the check earlier."""

LATE = timedelta(minutes=3)
"""After this time, the condition of a node that has not joined says what to check."""

PLUGIN_DEADLINE = timedelta(minutes=10)
"""How long a device plugin may take to start: driver images are large, and some are compiled on the
node."""

FROM_PLUGINS = ("ResourceNotRegistered", "DRADriverPoolsNotPublished")
"""The reasons for which a node waits for a device plugin or driver."""

READY_WHEN = (LAUNCHED, REGISTERED, INITIALIZED)
"""The conditions that a NodeClaim's condition `Ready` summarizes."""

log = logging.getLogger(__name__)


class NodePreparation(Protocol):
    """Prepares a node before kube-scheduler binds pods to it."""

    async def on_launch(self, claim: NodeClaim) -> None:
        """Prepare the node while its instance starts."""

    async def on_join(self, claim: NodeClaim, node: Node) -> bool:
        """Prepare the node once its Node object exists.

        Returns whether to hold the node: to register it with the taint `taints.HELD`, which keeps
        pods off it.
        """

    async def open_if_ready(self, node: Node) -> timedelta | None:
        """Open a held node once it is Ready: remove the taint `taints.HELD`.

        Returns when to call again; None if the node is open, or not Ready yet.
        """


OTHERS_GRACE = timedelta(seconds=10)
"""How long after its creation a NodeClaim of a NodePool that does not exist is not launched.

Another Karpenter may have created it and may be launching its instance. Once the status names an
instance, Joiner does not launch one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle(PortUser):
    """Advances one NodeClaim as far as possible; every step is safe to repeat."""

    ports: Ports
    finalization: Finalization
    preparation: NodePreparation
    registrations: Registrations
    registration_timeout: timedelta = timedelta(minutes=15)
    _launching: dict[str, datetime] = field(default_factory=dict, init=False)
    """The start of the launch timeout, by the NodeClaim's name: when it was first reconciled, plus
    the time of its EC2 calls and the time that it waited for other launches."""

    _failed: dict[str, datetime] = field(default_factory=dict, init=False)
    """The time at which the last step of a NodeClaim failed, by its name."""

    _changes: ChangeMonitor = field(default_factory=ChangeMonitor, init=False)

    async def reconcile(self, name: str) -> timedelta | None:
        """Take the NodeClaim's next steps; returns when to continue, None to wait for an event."""
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting:
            self._launching.pop(name, None)
            self._failed.pop(name, None)
            return None if claim is None else await self.finalization.reconcile(claim)
        if not self.cluster.is_adopted(claim):
            return None  # another controller launched and manages it
        now = self.clock()
        since, failed = self._launching.setdefault(name, now), self._failed.pop(name, now)
        self._launching[name] = since + max(now - failed - LONGEST_PAUSE, timedelta(0))
        try:
            return await self._advance(claim)
        except ConflictError:
            raise  # the object was out of date: the step is repeated at once
        except Exception:
            # The timeout applies to every kind of failure.
            if await self._delete_if_timed_out(self.cluster.get(NODE_CLAIM, name) or claim):
                return None
            self._failed[name] = self.clock()
            raise

    async def _advance(self, claim: NodeClaim) -> timedelta | None:
        left = self._grace(claim)
        if left > timedelta(0):
            return left
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            claim = await self._finalizer(claim)
        for step in (self._launch, self._register):
            progressed = await step(claim)
            if progressed is None:
                return None
            claim = progressed
        pause = await self._open_node(claim)
        if pause is not None:
            return pause
        claim = await self._initialize(claim)
        self._record_capacity(claim)
        return await self._liveness(claim)

    def _grace(self, claim: NodeClaim) -> timedelta:
        """Return how long not to launch a NodeClaim that another controller may have created."""
        pool, created = (
            claim.metadata.labels.get(labels.NODEPOOL),
            claim.metadata.creation_timestamp,
        )
        if not pool or created is None or self.cluster.get(NODE_POOL, pool) is not None:
            return timedelta(0)
        if conditions.is_true(claim.status.conditions, LAUNCHED):
            return timedelta(0)
        return created + OTHERS_GRACE - self.clock()

    def _record_capacity(self, claim: NodeClaim) -> None:
        """Record the node's real capacity for its instance type, in place of an estimate."""
        node = self.cluster.node_of(claim)
        if node is not None and conditions.is_true(claim.status.conditions, INITIALIZED):
            self.cloud.record_capacity(claim, node.status.capacity)

    async def _finalizer(self, claim: NodeClaim) -> NodeClaim:
        finalizers = [*claim.metadata.finalizers, labels.TERMINATION_FINALIZER]
        return await self._patch(claim, {"metadata": {"finalizers": finalizers}})

    async def _launch(self, claim: NodeClaim) -> NodeClaim | None:
        if conditions.is_true(claim.status.conditions, LAUNCHED):
            return claim
        node_class = self.cluster.get(EC2_NODE_CLASS, claim.spec.node_class_ref.name)
        began = self.clock()
        try:
            if node_class is None or node_class.metadata.is_deleting:
                raise NodeClassNotReadyError(
                    f'EC2NodeClass "{claim.spec.node_class_ref.name}" does not exist: '
                    "create it, or change spec.nodeClassRef"
                )
            waiting = asyncio.create_task(self._report_slow_launch(claim))
            try:
                instance = await self.cloud.launch(claim, node_class)
            finally:
                # If the report is written, the NodeClaim has changed.
                if not waiting.cancel() and not waiting.cancelled():
                    claim = waiting.result()
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
                **self._log_fields(claim),
                "provider-id": instance.provider_id,
                "instance-type": instance.instance_type,
                "zone": instance.zone,
                "capacity-type": instance.capacity_type,
            },
        )
        if (owner := self.cluster.owner_of(claim)) is not None:
            self.registrations.refusals.forget(owner)
        return await self._record_launch(claim, instance)

    async def _report_slow_launch(self, claim: NodeClaim) -> NodeClaim:
        """Report that AWS takes long to respond, unless cancelled before; the launch goes on."""
        await asyncio.sleep(SLOW.total_seconds())
        message = (
            f"AWS has not responded to the launch for {SLOW.total_seconds():.0f} s; still waiting"
        )
        if self._changes.has_changed(message):
            fields = {"NodeClaim": claim.metadata.name}
            log.warning("AWS is slow: a launch has no response yet", extra=fields)
        await self.recorder.publish(claim, "Warning", "WaitingForAWS", message)
        with contextlib.suppress(ApiError):
            return await self._with_condition(
                claim, LAUNCHED, "Unknown", reason="WaitingForAWS", message=message
            )
        return claim

    async def _give_up_launch(self, claim: NodeClaim, error: CloudProviderError) -> None:
        pool = claim.metadata.labels.get(labels.NODEPOOL, "")
        # Launches that fail alike are one warning.
        is_new = self._changes.has_changed(f"{pool}: {error}")
        log.log(
            logging.WARNING if is_new else logging.INFO,
            "failed launching nodeclaim; deleting it: %s",
            error,
            extra={**self._log_fields(claim), "NodePool": pool, "reason": error.reason},
        )
        capacity = isinstance(error, InsufficientCapacityError)
        event = "InsufficientCapacityError" if capacity else "NodeClassNotReady"
        await self.recorder.publish(claim, "Warning", event, str(error))
        if capacity:
            name = claim.metadata.name
            failure = f"NodeClaim {name} nominated for this pod failed to launch: {error}"
            for pod in self.cluster.nominated_for(name):
                await self.recorder.publish(
                    pod, "Warning", "InsufficientCapacityError", failure[:MESSAGE_LIMIT]
                )
        if (owner := self.cluster.owner_of(claim)) is not None:
            failure = _with_reason(str(error), error.reason)[:MESSAGE_LIMIT]
            self.registrations.refusals.record_refusal(owner, failure, self.clock())
        # The reasons of the metric are Karpenter's.
        await self._delete(claim, "insufficient_capacity" if capacity else "nodeclass_not_ready")

    def _log_fields(self, claim: NodeClaim) -> dict[str, str]:
        """Return the log fields of a NodeClaim: its name, and the pods that wait for its node."""
        pods = self.cluster.nominated_for(claim.metadata.name)
        named = {"Pods": ", ".join(pod.key for pod in pods)} if pods else {}
        return {"NodeClaim": claim.metadata.name, **named}

    async def _report_launch_failure(self, claim: NodeClaim, error: Exception) -> None:
        if isinstance(error, CloudProviderError):
            reason, message = error.reason, str(error)
        else:
            reason, message = CreateError.reason, f"{type(error).__name__}: {error}"
        await self._with_condition(
            claim, LAUNCHED, "Unknown", reason=reason, message=message[:MESSAGE_LIMIT]
        )
        if not isinstance(error, NodeClassUnknownError):
            await self._publish_launch_failure(claim, _with_reason(message, reason)[:MESSAGE_LIMIT])

    async def _publish_launch_failure(self, claim: NodeClaim, message: str) -> None:
        """Publish the failure on the nominated pods, the NodeClaim and its NodePool."""
        failure = f"Failed to launch nodeclaim/{claim.metadata.name}, retrying: {message}"
        for pod in self.cluster.nominated_for(claim.metadata.name):
            await self.recorder.publish(pod, "Warning", "FailedScheduling", failure)
        await self.recorder.publish(claim, "Warning", "LaunchFailed", message)
        pool = self.cluster.get(NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, ""))
        if pool is not None:
            # Without the NodeClaim's name, so that a hundred equal failures are one event.
            await self.recorder.publish(pool, "Warning", "LaunchFailed", message)

    async def _record_launch(self, claim: NodeClaim, instance: Instance) -> NodeClaim:
        launched_by = self.cluster.installation
        own = (
            {labels.TAG_INSTALLATION: launched_by, labels.OWN_INSTANCE: instance.provider_id}
            if launched_by
            else {}
        )
        metadata = {
            "labels": {**instance.labels, **claim.metadata.labels},
            "annotations": {**claim.metadata.annotations, **instance.annotations, **own},
        }
        claim = await self._patch(claim, {"metadata": metadata})
        status = {
            "providerID": instance.provider_id,
            "imageID": instance.image_id,
            "capacity": dict(instance.capacity),
            "allocatable": dict(instance.allocatable),
            "conditions": self._conditions_with(claim, LAUNCHED),
        }
        return await self._patch(claim, {"status": status}, subresource="status")

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
                message=f"{len(nodes)} nodes have the provider ID {claim.status.provider_id}",
            )
        if not nodes:
            await self.preparation.on_launch(claim)
            return await self._with_condition(
                claim,
                REGISTERED,
                "Unknown",
                reason="NodeNotFound",
                message=self._registration_message(claim),
            )
        if not is_unregistered(nodes[0]) and not is_registered(nodes[0]):
            # Its user data does not set the taint: pods may be bound before labels and taints are.
            await self.recorder.publish_all(
                (claim, nodes[0]),
                "Warning",
                "UnregisteredTaintMissing",
                f"Missing {labels.UNREGISTERED_TAINT} taint which prevents registration races",
            )
        claim = await self._with_late_labels(claim)
        if registration.lacks_late_labels(claim):
            return await self._with_condition(
                claim,
                REGISTERED,
                "Unknown",
                reason="RegistrationHookPending",
                message="EC2 does not report the instance's placement group partition yet",
            )
        held = await self.preparation.on_join(claim, nodes[0])
        node = self.cluster.node_of(claim) or nodes[0]  # it may have changed meanwhile
        node = await registration.register(self.api, claim, node, held=held)
        self.cluster.observe(NODE, node)
        if (pool := self.cluster.owner_of(claim)) is not None:
            self.registrations.record_registration(pool)
        registered = {
            "nodeName": node.metadata.name,
            "conditions": self._conditions_with(claim, REGISTERED),
        }
        claim = await self._patch(claim, {"status": registered}, subresource="status")
        # Once: a write that fails with a conflict is repeated with everything before it.
        self.metrics.record_node_creation(claim)
        log.info(
            "registered nodeclaim",
            extra={**self._log_fields(claim), "Node": node.metadata.name},
        )
        return claim

    async def _with_late_labels(self, claim: NodeClaim) -> NodeClaim:
        """Return the NodeClaim with the labels that EC2 reports only after the launch."""
        if not registration.lacks_late_labels(claim):
            return claim
        late = registration.late_labels(await self.cloud.get(claim.status.provider_id))
        return await self._patch(claim, {"metadata": {"labels": late}}) if late else claim

    async def _register_again(self, claim: NodeClaim) -> None:
        """Register a Node that its kubelet created again, or that lost its registration."""
        node = self.cluster.node_of(claim)
        if node is None or (is_registered(node) and not is_unregistered(node)):
            return
        held = taints.is_held(node.spec.taints)
        self.cluster.observe(NODE, await registration.register(self.api, claim, node, held=held))
        log.info(
            "registered node again: its Node was created again, or others changed its labels or "
            "taints",
            extra={"NodeClaim": claim.metadata.name, "Node": node.metadata.name},
        )

    async def _open_node(self, claim: NodeClaim) -> timedelta | None:
        node = self.cluster.node_of(claim)
        if node is None or not taints.is_held(node.spec.taints):
            return None
        return await self.preparation.open_if_ready(node)

    async def _initialize(self, claim: NodeClaim) -> NodeClaim:
        if not conditions.is_true(claim.status.conditions, REGISTERED):
            return claim
        if conditions.is_true(claim.status.conditions, REBOOTING):
            return claim  # a reboot ends before the node is initialized again
        node = self.cluster.node_of(claim)
        # A Node that its kubelet created again is not initialized, even if its NodeClaim was.
        if conditions.is_true(claim.status.conditions, INITIALIZED) and (
            node is None or is_initialized(node)
        ):
            return claim
        followed = RESOURCE_SLICE in self.cluster.mirrored
        slices = self.cluster.list(RESOURCE_SLICE) if followed else None
        obstacle = initialization.obstacle(claim, node, slices)
        if obstacle is not None:
            if self._has_just_registered(claim):
                return claim  # most nodes become Ready at once: do not delay them by writes
            claim = await self._with_condition(
                claim, INITIALIZED, "Unknown", reason=obstacle.reason, message=obstacle.message
            )
            await self._report_overdue(claim, obstacle)
            return claim
        assert node is not None
        node = await initialization.initialize(self.api, node)
        self.cluster.observe(NODE, node)
        claim = await self._with_condition(claim, INITIALIZED, "True")
        log.info(
            "initialized nodeclaim",
            extra={**self._log_fields(claim), "Node": node.metadata.name},
        )
        return claim

    def _has_just_registered(self, claim: NodeClaim) -> bool:
        """Whether the NodeClaim registered less than `WAIT` ago and is not initialized yet."""
        registered, now = conditions.find(claim.status.conditions, REGISTERED), self.clock()
        since = first_past(now, registered.last_transition_time if registered else None)
        return now - since < WAIT and conditions.find(claim.status.conditions, INITIALIZED) is None

    async def _report_overdue(self, claim: NodeClaim, obstacle: initialization.Obstacle) -> None:
        """Publish an event if a device plugin or driver is missing for too long.

        No timeout deletes a node that is not initialized.
        """
        # Not since the registration: the Node may have been created again later.
        waiting = conditions.find(claim.status.conditions, INITIALIZED)
        since = waiting.last_transition_time if waiting else None
        if obstacle.reason not in FROM_PLUGINS or since is None:
            return
        if self.clock() - since < PLUGIN_DEADLINE:
            return
        # Without the elapsed time: a message that changes every minute would be a new event.
        minutes = PLUGIN_DEADLINE // timedelta(minutes=1)
        message = (
            f"{obstacle.message} within {minutes} minutes: check that its device plugin or driver "
            "is installed, runs on this node and tolerates the node's taints"
        )
        await self.recorder.publish(claim, "Warning", obstacle.reason, message)

    def _registration_message(self, claim: NodeClaim) -> str:
        """Return the message of a NodeClaim without a node; it says what to do if that lasts."""
        launched = conditions.find(claim.status.conditions, LAUNCHED)
        since = launched.last_transition_time if launched else None
        if since is None or self.clock() - since < LATE:
            return "Node not registered with cluster"
        minutes, instance = LATE // timedelta(minutes=1), claim.status.provider_id.rpartition("/")
        return (
            f"Node not registered with cluster within {minutes} minutes: check the access entry of "
            "the node role, the security groups and the route to the API server; `aws ec2 "
            f"get-console-output --instance-id {instance[2]}` prints the instance's log"
        )

    async def _liveness(self, claim: NodeClaim) -> timedelta | None:
        if await self._delete_if_timed_out(claim):
            return None
        return None if conditions.is_true(claim.status.conditions, INITIALIZED) else WAIT

    async def _delete_if_timed_out(self, claim: NodeClaim) -> bool:
        """Delete a NodeClaim whose launch or registration timed out; returns whether it did."""
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
                "deleting nodeclaim due to timeout: its condition %s was not True within %g s",
                kind,
                timeout.total_seconds(),
                extra={
                    "NodeClaim": claim.metadata.name,
                    "NodePool": claim.metadata.labels.get(labels.NODEPOOL, ""),
                    "provider-id": claim.status.provider_id,
                    "reason": reason,
                },
            )
            await self._delete(claim, reason)
            if (pool := self.cluster.owner_of(claim)) is not None:
                self.registrations.record_failure(pool, _failure(claim, condition, self.clock()))
            return True
        return False

    def _since(self, claim: NodeClaim, condition: conditions.Condition | None) -> datetime:
        """Return when the timeout of a step started."""
        if not conditions.is_true(claim.status.conditions, LAUNCHED):
            return self._launching.get(claim.metadata.name, self.clock())
        since = condition.last_transition_time if condition else None
        return first_past(self.clock(), since, claim.metadata.creation_timestamp)

    async def _delete(self, claim: NodeClaim, reason: str) -> None:
        """Delete a NodeClaim if it has not changed since the decision.

        Raises:
            ConflictError: it changed. Another controller may have launched an instance for it.

        """
        own = claim.metadata
        try:
            await self.api.delete(
                NODE_CLAIM, own.name, uid=own.uid, resource_version=own.resource_version
            )
        except NotFoundError:
            return
        self.metrics.record_disruption(claim, reason)

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
            self.ports, claim, kind, status, reason=reason, message=message, ready_when=READY_WHEN
        )

    def _conditions_with(self, claim: NodeClaim, kind: str) -> Any:
        """Return the JSON of the NodeClaim's conditions, with the condition `kind` set to True."""
        return to_wire(changed_conditions(self.ports, claim, kind, "True", ready_when=READY_WHEN))

    async def _patch(
        self, claim: NodeClaim, patch: dict[str, object], *, subresource: str = ""
    ) -> NodeClaim:
        return await apply_patch(self.ports, claim, patch, subresource=subresource)


def _with_reason(message: str, reason: str) -> str:
    """Return a message with its reason in parentheses; AWS's words may end with it already."""
    return message if message.endswith(f"({reason})") else f"{message} ({reason})"


def _failure(claim: NodeClaim, condition: conditions.Condition | None, now: datetime) -> Failure:
    """Return why a claim was deleted: the failure of its launch or of its registration."""
    created = claim.metadata.creation_timestamp
    if condition is not None and condition.type == LAUNCHED:
        return Failure(condition.reason, condition.message, now, created)
    return Failure("RegistrationFailed", "Failed to register node", now, created)
