"""Which changes of objects can change disruption's decisions.

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
    """Whether an object changed in a way that matters to disruption."""
    if kind == kinds.POD:
        return _pod(before) != _pod(after)
    if kind == kinds.NODE:
        return _node(before) != _node(after)
    if kind == kinds.NODE_CLAIM:
        return _claim(before) != _claim(after)
    return True


def _pod(pod: Pod) -> tuple[object, ...]:
    ready = conditions.is_true(pod.status.conditions, "Ready")
    own = pod.metadata
    state = is_terminal(pod), own.is_deleting, ready, in_resize(pod)
    return *state, own.labels, own.annotations, pod.spec


def _node(node: Node) -> tuple[object, ...]:
    ready = conditions.is_true(node.status.conditions, "Ready")
    own, protected = node.metadata, node.metadata.annotations.get(labels.DO_NOT_DISRUPT)
    state = own.is_deleting, ready, lifecycle_event(node), protected
    return *state, own.labels, node.spec, node.status.allocatable


def _claim(claim: NodeClaim) -> tuple[object, ...]:
    own = claim.metadata
    known = {(condition.type, condition.status) for condition in claim.status.conditions}
    return own.is_deleting, own.labels, own.annotations, known
