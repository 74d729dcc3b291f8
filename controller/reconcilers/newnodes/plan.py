"""Remembers which node each waiting pod was made a place on.

Between the launch of a node and the moment the scheduler binds its pods a new
batch may come. Without a memory the pods would be packed a second time, perhaps
differently, and a node too many bought.

The plan is written down as each pod's `status.nominatedNodeName` as soon as its node has
a name (see `provisioning.nomination`), so the scheduler follows it and a restart does not
forget it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from controller.apis.pods import Pod
from controller.state.nodes import StateNode
from controller.state.pods import is_untried

BINDING_GRACE = timedelta(seconds=2)
"""How long an initialized node may wait for a planned pod before the plan is dropped.

The scheduler has the last word, so a pod may lose its place to another. Dropping a plan
is cheap: the next round first looks at the nodes there are.
"""

NOMINATED_GRACE = timedelta(seconds=30)
"""The same for a pod that is still nominated for the node.

The scheduler drops the nomination of a pod that it tried in vain. Where it stands the pod
has not been tried yet, or is being bound: on a busy control plane that takes its time. A
nomination that was dropped and written again says nothing: nobody may come to try the pod.
Nor does that of a pod that may not preempt others, which is never dropped.
"""

MOST_REMINDERS = 3
"""How often a pod is nominated anew where the scheduler has dropped it.

Once is enough where it tried the pod a moment before its node opened. Where a pod does not
fit after all, each nomination is dropped again, and that again has others tried.
"""


@dataclass(slots=True)
class _Place:
    pod: str  # namespace/name
    node: str  # or the claim that is to become one
    ready_since: datetime | None = None
    is_lost: bool = False
    reminders: int = 0


@dataclass(slots=True)
class PlacementPlan:
    """Pod UID to the claim or node it is expected on."""

    _places: dict[str, _Place] = field(default_factory=dict)
    _expected: dict[str, set[str]] = field(default_factory=dict)

    def expect(self, pod: Pod, node: str) -> None:
        """Note that the pod will run on this claim or node."""
        self._places[pod.metadata.uid] = _Place(pod.key, node)
        self._expected.setdefault(node, set()).add(pod.metadata.uid)

    def expected_on(self, *names: str) -> Mapping[str, str]:
        """Return the pods expected on a machine, named by claim and by node: `namespace/name` by
        UID.
        """
        return {
            uid: place.pod
            for name in names
            for uid in self._expected.get(name, ())
            if (place := self._places[uid]).node == name and not place.is_lost
        }

    def others_await(self, *names: str) -> bool:
        """Whether pods are expected on other machines than this one, and not for some time."""
        return any(
            place.ready_since is None and not place.is_lost and place.node not in names
            for place in self._places.values()
        )

    def may_remind(self, pod: Pod, now: datetime) -> bool:
        """Whether the scheduler may be told of a place on a ready node again; counts as done."""
        place = self._places.get(pod.metadata.uid)
        if place is None or place.is_lost or place.reminders >= MOST_REMINDERS:
            return False
        place.reminders += 1
        place.ready_since = now
        return True

    @property
    def is_being_met(self) -> bool:
        """Whether some pod's node is ready, so that the pod should be bound any moment."""
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
        """Sort the pods that wait into those still to be placed, and those already placed.

        The second come back as if bound, so that the engine counts them where they are
        expected. Places of pods that no longer wait are forgotten, save those of `undecided`
        pods, which no scheduler has tried yet: that others were bound says nothing of them.
        `clearing` names the nodes that other pods are leaving: who was promised their room is
        given the time.
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
    """Return the place that is written on the pod, by an earlier leader or by the scheduler."""
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
        return False  # however long the scheduler takes
    stands = (
        pod.status.nominated_node_name == node.name
        and pod.spec.preemption_policy != "Never"
        and not place.reminders
    )
    return now - place.ready_since > (NOMINATED_GRACE if stands else BINDING_GRACE)
