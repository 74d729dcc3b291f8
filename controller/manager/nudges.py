"""Maps changes of the cluster to the reconcilers that they concern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import (
    CONSOLIDATABLE,
    DRIFTED,
    INITIALIZED,
    LAUNCHED,
    REBOOTING,
    NodeClaim,
)
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import Kind
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.manager.loops import Loop, Pace, Singleton
from controller.reconcilers.nodeclaim.podevents import affected_node
from controller.reconcilers.nodeoverlay.evaluation import ALL
from controller.reconcilers.provisioning.batchwindow import BatchWindow
from controller.reconcilers.provisioning.nomination import lost_nomination
from controller.state.buffers import SCALABLES
from controller.state.cluster import Cluster, key_of
from controller.state.pods import pending_resize


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudges:
    """The loops that are nudged; those of disabled features ignore nudges."""

    cluster: Cluster
    batch_window: BatchWindow
    pools: Loop
    classes: Loop
    claims: Loop
    consolidatable: Loop
    drift: Loop
    consistency: Loop
    tagging: Loop
    expiration: Loop
    pod_events: Loop
    nodes: Loop
    nominations: Loop
    resizes: Loop
    repair: Loop
    reboots: Loop
    overlays: Loop
    buffers: Loop
    static: Loop
    disruption: Singleton
    disruption_queue: Singleton
    garbage: Singleton

    def on_change(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Nudge the reconcilers that a change concerns.

        `before` is None for a created object, `after` for a deleted one.
        """
        concerned: dict[Kind[Any], Callable[[Any, Any], None]] = {
            kinds.POD: self._pod_changed,
            kinds.NODE: self._node_changed,
            kinds.NODE_CLAIM: self._claim_changed,
            kinds.NODE_POOL: self._pool_changed,
            kinds.EC2_NODE_CLASS: self._class_changed,
            kinds.VOLUME_ATTACHMENT: self._attachment_changed,
            kinds.NODE_OVERLAY: self._overlay_changed,
            kinds.CAPACITY_BUFFER: self._buffer_changed,
            kinds.POD_TEMPLATE: self._template_changed,
            **{kind: partial(self._scalable_changed, kind) for kind in SCALABLES.values()},
            kinds.RESOURCE_SLICE: self._slice_changed,
        }
        if kind in concerned:
            concerned[kind](before, after)

    async def nudge_all(self, pace: Pace) -> None:
        """Nudge each loop with all its objects, because existing objects cause no change event.

        `pace` lets other tasks of the event loop run in between.
        """
        for pool in self.cluster.list(kinds.NODE_POOL):
            self.pools.nudge(pool.metadata.name)
            self.static.nudge(pool.metadata.name)
        for node_class in self.cluster.list(kinds.EC2_NODE_CLASS):
            self.classes.nudge(node_class.metadata.name)
        for claim in self.cluster.list(kinds.NODE_CLAIM):
            await pace.wait()
            self._claim_changed(None, claim)
        for node in self.cluster.list(kinds.NODE):
            await pace.wait()
            self.nodes.nudge(node.metadata.name)
            self.repair.nudge(node.metadata.name)
            self.resizes.nudge(node.metadata.name)
        self.overlays.nudge(ALL)
        for buffer in self.cluster.list(kinds.CAPACITY_BUFFER):
            self.buffers.nudge(key_of(buffer))
        for pod in self.cluster.pending_pods():
            self.batch_window.nudge(pod.metadata.uid)

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        if after is not None and self.cluster.becomes_pending(before, after):
            self.batch_window.nudge(after.metadata.uid)
        if node_name := affected_node(before, after):
            self.pod_events.nudge(node_name)
        if node_name := lost_nomination(before, after):
            self.nominations.nudge(node_name)
        if after is not None and pending_resize(after) is not None:
            self.resizes.nudge(after.spec.node_name)
        pod = after or before
        if pod is not None and pod.spec.node_name:
            node = self.cluster.get(kinds.NODE, pod.spec.node_name)
            if node is not None and node.metadata.is_deleting:
                self.nodes.nudge(node.metadata.name)

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        node = after or before
        if node is None:
            return
        for loop in (self.nodes, self.repair):
            loop.nudge(node.metadata.name)
        claim = self.cluster.claim_of(node)
        if claim is not None:
            self.claims.nudge(claim.metadata.name)
            if _holds(claim, REBOOTING):
                self.reboots.nudge(claim.metadata.name)
        is_leaving = after is None or after.metadata.is_deleting
        was_leaving = before is None or before.metadata.is_deleting
        if is_leaving and not was_leaving:
            # Its pods need other nodes soon. Start a batch, although none of the pods is new.
            self.batch_window.nudge(node.metadata.uid)

    def _claim_changed(self, before: NodeClaim | None, after: NodeClaim | None) -> None:
        claim = after or before
        if claim is None:
            return
        for loop in (self.claims, self.consolidatable, self.expiration):
            loop.nudge(claim.metadata.name)
        for loop in (self.pools, self.static):
            loop.nudge(claim.metadata.labels.get(labels.NODEPOOL, ""))
        for node in self.cluster.nodes_of(claim):
            self.nodes.nudge(node.metadata.name)
        if before is None:
            self.garbage.nudge()
        if claim.status.provider_id:
            self.tagging.nudge(claim.metadata.name)
        if _consistency_inputs(before) != _consistency_inputs(after):
            self.consistency.nudge(claim.metadata.name)
        if after is None:
            self.classes.nudge(claim.spec.node_class_ref.name)
        if _made_from(before) != _made_from(after):
            self.drift.nudge(claim.metadata.name)
        self._candidates_changed(before, after)

    def _candidates_changed(self, before: NodeClaim | None, after: NodeClaim | None) -> None:
        self.disruption_queue.nudge()
        if after is not None and _holds(after, REBOOTING):
            self.reboots.nudge(after.metadata.name)
        if any(
            _holds(after, kind) and not _holds(before, kind) for kind in (CONSOLIDATABLE, DRIFTED)
        ):
            self.disruption.nudge()

    def _pool_changed(self, before: NodePool | None, after: NodePool | None) -> None:
        pool = after or before
        if pool is None:
            return
        self.pools.nudge(pool.metadata.name)
        if before is None or after is None or _drift_inputs(before) != _drift_inputs(after):
            for claim in self.cluster.claims_of(pool.metadata.name):
                self.drift.nudge(claim.metadata.name)
        if (
            before is not None
            and after is not None
            and _launch_inputs(before) == _launch_inputs(after)
        ):
            return
        for claim in self.cluster.claims_of(pool.metadata.name):
            self.consolidatable.nudge(claim.metadata.name)
        self.static.nudge(pool.metadata.name)
        self.overlays.nudge(ALL)
        # Pods that were unschedulable may schedule now.
        self.batch_window.nudge(pool.metadata.uid)

    def _class_changed(self, before: Any, after: Any) -> None:
        name = (after or before).metadata.name
        self.classes.nudge(name)
        self.overlays.nudge(ALL)
        for pool in self.cluster.list(kinds.NODE_POOL):
            if pool.spec.template.spec.node_class_ref.name == name:
                self.pools.nudge(pool.metadata.name)
        for claim in self.cluster.claims_of_class(name):
            self.drift.nudge(claim.metadata.name)

    def _overlay_changed(self, before: Any, after: Any) -> None:
        overlay = after or before
        if before is None or after is None or not _has_same_spec(before, after):
            self.overlays.nudge(ALL)
        # The overlay's conditions decide whether it applies, so prices may have changed.
        self.batch_window.nudge(overlay.metadata.uid)

    def _buffer_changed(self, before: Any, after: Any) -> None:
        buffer = after or before
        if before is None or after is None or not _has_same_spec(before, after):
            self.buffers.nudge(key_of(buffer))
        # The buffer's status says for how many pods capacity must be reserved.
        self.batch_window.nudge(buffer.metadata.uid)

    def _template_changed(self, before: Any, after: Any) -> None:
        template = (after or before).metadata
        for buffer in self.cluster.list(kinds.CAPACITY_BUFFER):
            reference = buffer.spec.pod_template_ref
            if buffer.metadata.namespace == template.namespace and (
                reference is not None and reference.name == template.name
            ):
                self.buffers.nudge(key_of(buffer))

    def _scalable_changed(self, kind: Kind[Any], before: Any, after: Any) -> None:
        if before is not None and after is not None and _has_same_spec(before, after):
            return
        scaled = (after or before).metadata
        for buffer in self.cluster.list(kinds.CAPACITY_BUFFER):
            reference = buffer.spec.scalable_ref
            if buffer.metadata.namespace == scaled.namespace and (
                reference is not None
                and (reference.kind, reference.name) == (kind.name, scaled.name)
            ):
                self.buffers.nudge(key_of(buffer))

    def _slice_changed(self, before: Any, after: Any) -> None:
        # A NodeClaim may be waiting for these devices before it initializes.
        node = self.cluster.get(kinds.NODE, (after or before).spec.node_name)
        claim = self.cluster.claim_of(node) if node is not None else None
        if claim is not None:
            self.claims.nudge(claim.metadata.name)

    def _attachment_changed(self, before: Any, after: Any) -> None:
        self.nodes.nudge((after or before).spec.node_name)


def _has_same_spec(before: Any, after: Any) -> bool:
    """Return whether the object's spec is unchanged: only its metadata or status differs."""
    return bool(before.metadata.generation == after.metadata.generation)


def _holds(claim: NodeClaim | None, condition: str) -> bool:
    return claim is not None and conditions.is_true(claim.status.conditions, condition)


def _consistency_inputs(claim: NodeClaim | None) -> tuple[bool, bool]:
    """Return the state of a NodeClaim on which its consistency check depends."""
    return _holds(claim, INITIALIZED), claim is not None and claim.metadata.is_deleting


def _made_from(claim: NodeClaim | None) -> tuple[object, ...]:
    """Return the fields of a NodeClaim on which its drift depends."""
    own = claim.metadata if claim is not None else ObjectMeta()
    return claim is None, own.labels, own.annotations, _holds(claim, LAUNCHED)


def _drift_inputs(pool: NodePool) -> tuple[int, Mapping[str, str]]:
    """Return the fields of a NodePool on which the drift of its nodes depends."""
    return pool.metadata.generation, pool.metadata.annotations


def _launch_inputs(pool: NodePool) -> tuple[int, bool]:
    """Return the fields of a NodePool that determine which nodes it can launch."""
    return pool.metadata.generation, conditions.is_true(pool.status.conditions, "Ready")
