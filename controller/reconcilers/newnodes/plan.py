"""Remembers the planned node of each pending pod.

A new batch may arrive after the launch of a node and before kube-scheduler binds its pods. Without
the plan, Joiner would schedule these pods a second time, perhaps differently, and launch one node
too many.

The plan is written to each pod's `status.nominatedNodeName` as soon as its node has a name (see
`provisioning.nomination`), so kube-scheduler follows it and it survives restarts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Pod
from controller.state.nodes import StateNode
from controller.state.pods import is_untried

BINDING_GRACE = timedelta(seconds=2)
"""How long after a node is initialized the plan of a pod that is not bound is dropped.

kube-scheduler may bind another pod instead. The next round tries existing nodes first, so dropping
a plan is cheap.
"""

NOMINATED_GRACE = timedelta(seconds=30)
"""How long after a node is initialized the plan of a pod that is still nominated for it is dropped.

kube-scheduler clears the nomination of a pod that it cannot schedule. So a nominated pod has not
been tried yet, or is being bound, which takes time on a busy control plane. There are two
exceptions: kube-scheduler may never again try a pod that Joiner nominated again, and it never
clears the nomination of a pod that may not preempt.
"""

MOST_RENOMINATIONS = 3
"""How often a pod is nominated again after kube-scheduler cleared its nomination.

Once is enough if kube-scheduler tried the pod just before its node opened. If the pod does not fit,
kube-scheduler clears every nomination, and each one makes it retry other pods.
"""


@dataclass(slots=True)
class _Planned:
    pod: str  # namespace/name
    node: str  # or its NodeClaim before the node exists
    ready_since: datetime | None = None
    is_lost: bool = False
    renominations: int = 0


@dataclass(slots=True)
class PlacementPlan:
    """The planned NodeClaim or node of each pending pod, by the pod's UID."""

    _planned: dict[str, _Planned] = field(default_factory=dict)
    _expected: dict[str, set[str]] = field(default_factory=dict)

    def expect(self, pod: Pod, node: str) -> None:
        """Plan the pod on this NodeClaim or node."""
        self._planned[pod.metadata.uid] = _Planned(pod.key, node)
        self._expected.setdefault(node, set()).add(pod.metadata.uid)

    def expected_on(self, *names: str) -> Mapping[str, str]:
        """Return the pods planned on a node as `namespace/name`, by UID.

        `names` are the names of the node and of its NodeClaim.
        """
        return {
            uid: planned.pod
            for name in names
            for uid in self._expected.get(name, ())
            if (planned := self._planned[uid]).node == name and not planned.is_lost
        }

    def planned_nodes(self) -> Iterable[str]:
        """Return the names of NodeClaims and nodes with planned pods."""
        return self._expected.keys()

    def others_pending(self, *names: str) -> bool:
        """Whether pods are planned on nodes that are not initialized yet, other than these.

        `names` are names of nodes and NodeClaims.
        """
        return any(
            planned.ready_since is None and not planned.is_lost and planned.node not in names
            for planned in self._planned.values()
        )

    def may_renominate(self, pod: Pod, now: datetime) -> bool:
        """Whether a pod may be nominated again for its Ready node; if so, counts a nomination."""
        planned = self._planned.get(pod.metadata.uid)
        if planned is None or planned.is_lost or planned.renominations >= MOST_RENOMINATIONS:
            return False
        planned.renominations += 1
        planned.ready_since = now
        return True

    @property
    def awaits_binding(self) -> bool:
        """Whether the node of a planned pod is initialized, so that the pod will soon be bound."""
        return any(
            planned.ready_since is not None and not planned.is_lost
            for planned in self._planned.values()
        )

    def split(
        self,
        waiting: Iterable[Pod],
        node_of: Callable[[str], StateNode | None],
        now: datetime,
        *,
        undecided: Iterable[Pod] = (),
        clearing: Container[str] = (),
    ) -> tuple[list[Pod], list[Pod]]:
        """Split pending pods into those to schedule and those with a planned node.

        Pods with a planned node are returned as if bound, so that the engine counts them there.
        Plans of pods that are no longer pending are dropped, except those of `undecided` pods,
        which no scheduler has tried yet. A plan expires if its pod is not bound some time after the
        node is initialized (`BINDING_GRACE`, `NOMINATED_GRACE`), except on the nodes `clearing`,
        on which pods are terminating. `node_of` returns a node by its name or that of its
        NodeClaim.
        """
        open_, placed, kept = [], [], {}
        node_of = functools.cache(node_of)
        for pod in (*waiting, *filter(self._planned_of, undecided)):
            planned = self._planned_of(pod)
            node = node_of(planned.node) if planned else None
            if planned is None or node is None or node.deleting:
                open_.append(pod)
                continue
            kept[pod.metadata.uid] = planned
            planned.is_lost = node.name not in clearing and _is_overdue(planned, pod, node, now)
            if planned.is_lost:
                open_.append(pod)
                continue
            placed.append(with_fields(pod, "spec", node_name=node.name))
        self._keep(kept)
        return open_, placed

    def _planned_of(self, pod: Pod) -> _Planned | None:
        return self._planned.get(pod.metadata.uid) or _nomination(pod)

    def _keep(self, plans: dict[str, _Planned]) -> None:
        self._planned, self._expected = plans, {}
        for uid, planned in plans.items():
            self._expected.setdefault(planned.node, set()).add(uid)


def _nomination(pod: Pod) -> _Planned | None:
    """Return the plan written to the pod's status by an earlier leader or by kube-scheduler."""
    name = pod.status.nominated_node_name
    return _Planned(pod.key, name) if name else None


def _is_overdue(planned: _Planned, pod: Pod, node: StateNode, now: datetime) -> bool:
    if not node.initialized:
        return False
    if planned.ready_since is None:
        planned.ready_since = now
    if is_untried(pod):
        return False  # regardless of how long kube-scheduler takes
    is_nominated = (
        pod.status.nominated_node_name == node.name
        and pod.spec.preemption_policy != "Never"
        and not planned.renominations
    )
    return now - planned.ready_since > (NOMINATED_GRACE if is_nominated else BINDING_GRACE)
