"""Remembers the planned node of each pending pod.

A new batch may arrive after the launch of a node and before kube-scheduler binds its pods. Without
the plan these pods would be scheduled a second time, perhaps differently, and one node too many
would be bought.

The plan is written to each pod's `status.nominatedNodeName` as soon as its node has a name (see
`provisioning.nomination`), so kube-scheduler follows it and it survives restarts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from controller.apis.kubernetes.pods import Pod
from controller.state.nodes import StateNode
from controller.state.pods import is_untried

BINDING_GRACE = timedelta(seconds=2)
"""How long an initialized node may wait for a planned pod before the plan is dropped.

kube-scheduler decides, so another pod may take the capacity. Dropping a plan is cheap: the next
round first tries existing nodes.
"""

NOMINATED_GRACE = timedelta(seconds=30)
"""The same for a pod that is still nominated for the node.

kube-scheduler clears the nomination of a pod that it cannot schedule. While the nomination exists
the pod has not been tried, or is being bound, which takes time on a busy control plane. Two
nominations prove nothing: one that Joiner wrote again, because kube-scheduler may never try the pod
again, and one of a pod that may not preempt, because it is never cleared.
"""

MOST_REMINDERS = 3
"""How often a pod is nominated again after kube-scheduler cleared its nomination.

Once is enough if it tried the pod just before its node opened. If the pod does not fit, each
nomination is cleared again, and each makes kube-scheduler retry other pods.
"""


@dataclass(slots=True)
class _Place:
    pod: str  # namespace/name
    node: str  # or its NodeClaim before the node exists
    ready_since: datetime | None = None
    is_lost: bool = False
    reminders: int = 0


@dataclass(slots=True)
class PlacementPlan:
    """Pod's UID → the NodeClaim or node it is planned on."""

    _places: dict[str, _Place] = field(default_factory=dict)
    _expected: dict[str, set[str]] = field(default_factory=dict)

    def expect(self, pod: Pod, node: str) -> None:
        """Plan the pod on this NodeClaim or node."""
        self._places[pod.metadata.uid] = _Place(pod.key, node)
        self._expected.setdefault(node, set()).add(pod.metadata.uid)

    def expected_on(self, *names: str) -> Mapping[str, str]:
        """Return the pods planned on a node, given by its names, as UID → `namespace/name`."""
        return {
            uid: place.pod
            for name in names
            for uid in self._expected.get(name, ())
            if (place := self._places[uid]).node == name and not place.is_lost
        }

    def awaited(self) -> Iterable[str]:
        """Return the names of NodeClaims and nodes with planned pods."""
        return self._expected.keys()

    def others_await(self, *names: str) -> bool:
        """Whether pods are planned on other nodes that are not Ready yet."""
        return any(
            place.ready_since is None and not place.is_lost and place.node not in names
            for place in self._places.values()
        )

    def may_remind(self, pod: Pod, now: datetime) -> bool:
        """Whether a pod may be nominated again for its Ready node; counts it as done."""
        place = self._places.get(pod.metadata.uid)
        if place is None or place.is_lost or place.reminders >= MOST_REMINDERS:
            return False
        place.reminders += 1
        place.ready_since = now
        return True

    @property
    def is_being_met(self) -> bool:
        """Whether a planned pod's node is Ready, so that the pod should be bound at any moment."""
        return any(
            place.ready_since is not None and not place.is_lost for place in self._places.values()
        )

    def split(
        self,
        waiting: Iterable[Pod],
        nodes: Iterable[StateNode],
        now: datetime,
        *,
        undecided: Iterable[Pod] = (),
        clearing: Container[str] = (),
    ) -> tuple[list[Pod], list[Pod]]:
        """Split pending pods into those to schedule and those with a planned node.

        The latter are returned as if bound, so that the engine counts them on their nodes. Plans of
        pods that are no longer pending are dropped, except those of `undecided` pods, which no
        scheduler has tried yet. `clearing` names the nodes that other pods are leaving: plans on
        them do not expire.
        """
        by_name = {name: node for node in nodes for name in _names(node)}
        open_, placed, kept = [], [], {}
        for pod in (*waiting, *filter(self._place_of, undecided)):
            place = self._place_of(pod)
            node = by_name.get(place.node) if place else None
            if place is None or node is None or node.deleting:
                open_.append(pod)
                continue
            kept[pod.metadata.uid] = place
            place.is_lost = node.name not in clearing and _overdue(place, pod, node, now)
            if place.is_lost:
                open_.append(pod)
                continue
            spec = msgspec.structs.replace(pod.spec, node_name=node.name)
            placed.append(msgspec.structs.replace(pod, spec=spec))
        self._remember(kept)
        return open_, placed

    def _place_of(self, pod: Pod) -> _Place | None:
        return self._places.get(pod.metadata.uid) or _nominated(pod)

    def _remember(self, places: dict[str, _Place]) -> None:
        self._places, self._expected = places, {}
        for uid, place in places.items():
            self._expected.setdefault(place.node, set()).add(uid)


def _nominated(pod: Pod) -> _Place | None:
    """Return the plan written to the pod's status by an earlier leader or by kube-scheduler."""
    name = pod.status.nominated_node_name
    return _Place(pod.key, name) if name else None


def _names(node: StateNode) -> set[str]:
    names = {node.name}
    if node.claim is not None:
        names.add(node.claim.metadata.name)
    return names


def _overdue(place: _Place, pod: Pod, node: StateNode, now: datetime) -> bool:
    if not node.initialized:
        return False
    if place.ready_since is None:
        place.ready_since = now
    if is_untried(pod):
        return False  # regardless of how long kube-scheduler takes
    stands = (
        pod.status.nominated_node_name == node.name
        and pod.spec.preemption_policy != "Never"
        and not place.reminders
    )
    return now - place.ready_since > (NOMINATED_GRACE if stands else BINDING_GRACE)
