"""The changes of objects that can change the decisions of disruption.

Nodes and NodeClaims are written many times a minute, pods many times a second, and most of these
writes (heartbeats, usage, event times) do not matter to scheduling.
"""

from __future__ import annotations

from typing import Any

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import Kind
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.constraints.resources import in_resize
from controller.state.nodes import lifecycle_event
from controller.state.pods import is_terminal


def affects_disruption(kind: Kind[Any], before: Any, after: Any) -> bool:
    """Whether the change of an object can change the decisions of disruption."""
    if kind == kinds.POD:
        return _pod(before) != _pod(after)
    if kind == kinds.NODE:
        return _node(before) != _node(after)
    if kind == kinds.NODE_CLAIM:
        return _claim(before) != _claim(after)
    return True


def _pod(pod: Pod) -> tuple[object, ...]:
    ready = conditions.is_true(pod.status.conditions, "Ready")
    metadata = pod.metadata
    resized = pod.spec.node_name and in_resize(pod)  # only a pod on a node is resized
    state = is_terminal(pod), metadata.is_deleting, ready, resized
    return *state, metadata.labels, metadata.annotations, pod.spec


def _node(node: Node) -> tuple[object, ...]:
    ready = conditions.is_true(node.status.conditions, "Ready")
    metadata, protected = node.metadata, node.metadata.annotations.get(labels.DO_NOT_DISRUPT)
    state = metadata.is_deleting, ready, lifecycle_event(node), protected
    return *state, metadata.labels, node.spec, node.status.allocatable


def _claim(claim: NodeClaim) -> tuple[object, ...]:
    metadata = claim.metadata
    condition_states = {(condition.type, condition.status) for condition in claim.status.conditions}
    return metadata.is_deleting, metadata.labels, metadata.annotations, condition_states
