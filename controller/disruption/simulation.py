"""What becomes of pods when nodes leave: the engine asked about the cluster without them.

Pods that wait already, and those of nodes on their way out, are placed first: their room is
theirs. Moved pods go to nodes that are initialized and stay, or to new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from controller.apis.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.resources import pod_requests
from controller.disruption.commands import Candidate
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.catalog.offerings import catalog
from controller.scheduling.results import NewNode, Results
from controller.scheduling.scheduler import least_cost, never, schedule
from controller.state.pods import is_reschedulable
from controller.state.snapshot import Snapshot

NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of the pods of nodes that leave together.

    `price` is what the nodes cost, `cost` what is bought in their place, both in $/h.
    """

    leaving: tuple[Candidate, ...]
    results: Results

    @property
    def price(self) -> float:
        """What the leaving nodes cost in $/h."""
        return sum((one.price for one in self.leaving), 0.0)

    @property
    def saving(self) -> float:
        """What is saved in $/h; negative when it costs more."""
        return self.price - self.results.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that go together because the nodes in their place take pods of all of them."""

    leaving: tuple[Candidate, ...]
    replacements: tuple[NewNode, ...] = ()
    moves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def price(self) -> float:
        """What the leaving nodes cost in $/h."""
        return sum((one.price for one in self.leaving), 0.0)

    @property
    def cost(self) -> float:
        """What the nodes in their place cost in $/h."""
        return sum((one.price for one in self.replacements), 0.0)

    @property
    def saving(self) -> float:
        """What is saved in $/h."""
        return self.price - self.cost

    @property
    def names(self) -> frozenset[str]:
        """The names of the leaving nodes."""
        return frozenset(one.name for one in self.leaving)


class Simulation:
    """One cluster, asked what happens when these or those of its candidates leave."""

    def __init__(
        self,
        problem: DisruptionProblem,
        candidates: Sequence[Candidate],
        *,
        expired: Callable[[], bool] = never,
    ) -> None:
        """Place the pods that wait already."""
        self._problem, self._expired = problem, expired
        self._candidates = {one.name: one for one in candidates}
        waiting = [*problem.pending, *_stranded(problem.snapshot)]
        self._catalog = catalog(problem.snapshot)
        self.promised: frozenset[str] = NOBODY
        """Nodes whose room is meant for pods that wait."""
        self._snapshot = self._with_places(problem.snapshot, waiting)
        self._known: dict[tuple[frozenset[str], frozenset[str]], Outcome | None] = {}
        self._pods_by_node: dict[str, list[Pod]] = {}
        for pod in self._snapshot.pods:
            self._pods_by_node.setdefault(pod.spec.node_name, []).append(pod)

    def without(
        self,
        leaving: Collection[str],
        *,
        closed: Collection[str] = NOBODY,
    ) -> Outcome | None:
        """Return where the pods of leaving nodes go; None when one of them would go nowhere.

        `closed` nodes stay and take no pods. The same question is answered once.
        """
        asked = frozenset(leaving), frozenset(closed)
        if asked not in self._known:
            self._known[asked] = self._asked(*asked)
        return self._known[asked]

    def _asked(self, leaving: frozenset[str], closed: frozenset[str]) -> Outcome | None:
        results = schedule(
            self._moving(leaving),
            snapshot=self._world(leaving, closed),
            settings=self._problem.scheduling,
            catalog=self._catalog,
            expired=self._expired,
        )
        if results.unschedulable:
            return None
        return Outcome(tuple(self._candidates[name] for name in sorted(leaving)), results)

    def least_cost(self, names: Collection[str]) -> float:
        """Return what no arrangement of these candidates' pods costs less than, in $/h."""
        return least_cost(
            self._moving(names),
            snapshot=self._world(names, NOBODY),
            settings=self._problem.scheduling,
            catalog=self._catalog,
            expired=self._expired,
        )

    def values(self, names: Collection[str]) -> Mapping[str, float]:
        """Return what each pod of these candidates would cost in $/h if all were placed anew: its
        share, by the resource of which it takes most, of the node that was bought for it. A pod
        that finds room on nodes that stay anyway is worth nothing; one that finds none is
        left out.
        """
        moving = self._moving(names)
        results = schedule(
            moving,
            snapshot=self._world(names, NOBODY),
            settings=self._problem.scheduling,
            catalog=self._catalog,
            expired=lambda: True,
        )
        pods = {pod.key: pod for pod in moving}
        found = {key: 0.0 for keys in results.existing_nodes.values() for key in keys}
        for node in results.new_nodes:
            found |= _shares(node, pods, self._problem.snapshot.instance_types[node.node_pool])
        return found

    def _moving(self, names: Collection[str]) -> list[Pod]:
        return [pod for name in sorted(names) for pod in self._candidates[name].moving]

    def _world(self, leaving: Collection[str], closed: Collection[str]) -> Snapshot:
        gone = frozenset(leaving)
        nodes = tuple(
            replace(one, deleting=True) if one.name in closed or not one.initialized else one
            for one in self._snapshot.nodes
            if one.name not in gone
        )
        pods = tuple(
            pod
            for name, running in self._pods_by_node.items()
            if name not in gone
            for pod in running
        )
        return replace(self._snapshot, nodes=nodes, pods=pods)

    def _with_places(self, snapshot: Snapshot, waiting: Sequence[Pod]) -> Snapshot:
        """Return the snapshot with waiting pods bound where there is room for them now."""
        if not waiting:
            return snapshot
        results = schedule(
            waiting,
            snapshot=snapshot,
            settings=self._problem.scheduling,
            catalog=self._catalog,
        )
        place = {key: name for name, keys in results.existing_nodes.items() for key in keys}
        self.promised = frozenset(place.values())
        found = {pod.key: bound(pod, place[pod.key]) for pod in waiting if pod.key in place}
        others = (pod for pod in snapshot.pods if pod.key not in found)
        return replace(snapshot, pods=(*others, *found.values()))


def groups(outcome: Outcome) -> list[Group]:
    """Part an outcome into the nodes that depend on one another: those whose pods share a new
    node. Where one group goes, the others need not.
    """
    home = {pod.key: one.name for one in outcome.leaving for pod in one.moving}
    leader = {one.name: one.name for one in outcome.leaving}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for node in outcome.results.new_nodes:
        first, *others = dict.fromkeys(find(home[key]) for key in node.pods)
        for other in others:
            leader[find(other)] = find(first)
    members: dict[str, list[Candidate]] = {}
    for one in outcome.leaving:
        members.setdefault(find(one.name), []).append(one)
    made: dict[str, list[NewNode]] = {}
    for node in outcome.results.new_nodes:
        made.setdefault(find(home[node.pods[0]]), []).append(node)
    moves: dict[str, dict[str, list[str]]] = {}
    for name, keys in outcome.results.existing_nodes.items():
        for key in keys:
            moves.setdefault(find(home[key]), {}).setdefault(name, []).append(key)
    return [
        Group(
            leaving=tuple(leaving),
            replacements=tuple(made.get(key, ())),
            moves={name: tuple(pods) for name, pods in moves.get(key, {}).items()},
        )
        for key, leaving in members.items()
    ]


def bound(pod: Pod, node: str) -> Pod:
    """Return the pod as it is once it runs on a node."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def _stranded(snapshot: Snapshot) -> list[Pod]:
    """Return the pods that nodes on their way out still have, and that need another."""
    leaving = {one.name for one in snapshot.nodes if one.deleting}
    return [pod for pod in snapshot.pods if pod.spec.node_name in leaving and is_reschedulable(pod)]


def _shares(
    node: NewNode, pods: Mapping[str, Pod], types: Iterable[InstanceType]
) -> dict[str, float]:
    room = next(one for one in types if one.name == node.instance_types[0]).allocatable
    taken = {
        key: max(
            (amount / room[name] for name, amount in pod_requests(pods[key]).items() if amount),
            default=0.0,
        )
        for key in node.pods
    }
    total = sum(taken.values()) or 1.0
    return {key: node.price * share / total for key, share in taken.items()}
