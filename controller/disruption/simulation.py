"""What becomes of pods when nodes leave: the engine asked about the cluster without them.

Pods that wait already, and those of nodes on their way out, are placed first: their room is
theirs. Moved pods go to nodes that are initialized and stay, or to new ones; who is moved to save
goes to no node that is settling still.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from controller.apis import labels
from controller.apis.pods import Pod
from controller.disruption.commands import Candidate
from controller.disruption.model import ClusterModel, read_model
from controller.disruption.problem import DisruptionProblem
from controller.disruption.settling import settling
from controller.scheduling.buffers import apart
from controller.scheduling.catalog.offerings import catalog
from controller.scheduling.pods.kinds import PodKinds
from controller.scheduling.results import NewNode, Results
from controller.scheduling.scheduler import least_cost, never, schedule
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable
from controller.state.snapshot import Snapshot

NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Departure:
    """What becomes of the pods of nodes that leave together.

    `price` is what the nodes cost, `cost` what is bought in their place, both in $/h.
    """

    leaving: tuple[Candidate, ...]
    results: Results

    @property
    def price(self) -> float:
        """What the leaving nodes cost in $/h."""
        return sum((candidate.price for candidate in self.leaving), 0.0)

    @property
    def saving(self) -> float:
        """What is saved in $/h; negative when it costs more."""
        return self.price - self.results.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that go together because the nodes in their place take pods of all of them.

    Of a `whole` that is too large for budgets a first instalment goes: one of its new nodes
    comes, and as many of its nodes go as may; the others fill that node later.
    """

    leaving: tuple[Candidate, ...]
    replacements: tuple[NewNode, ...] = ()
    moves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    whole: Group | None = None

    @property
    def price(self) -> float:
        """What the leaving nodes cost in $/h."""
        return sum((candidate.price for candidate in self.leaving), 0.0)

    @property
    def cost(self) -> float:
        """What the nodes in their place cost in $/h."""
        return sum((new.price for new in self.replacements), 0.0)

    @property
    def saving(self) -> float:
        """What is saved in $/h."""
        return self.price - self.cost

    @property
    def names(self) -> frozenset[str]:
        """The names of the leaving nodes."""
        return frozenset(candidate.name for candidate in self.leaving)


class Simulation:
    """One cluster, asked what happens when these or those of its candidates leave."""

    def __init__(
        self,
        problem: DisruptionProblem,
        candidates: Sequence[Candidate],
        *,
        expired: Callable[[], bool] = never,
        kinds: PodKinds | None = None,
    ) -> None:
        """Place the pods that wait already. `kinds` is kept by callers that ask about the same
        cluster again; of pods that have gone nothing is kept.
        """
        self._problem, self._expired = problem, expired
        self._kinds = kinds or PodKinds()
        self._kinds.keep(problem.snapshot.pods)
        self._candidates = {candidate.name: candidate for candidate in candidates}
        waiting = [*problem.pending, *_stranded(problem.snapshot)]
        self.catalog = catalog(problem.snapshot)
        self.awaited: frozenset[str] = NOBODY
        """Nodes that pods wait to come to."""

        self._buffered: dict[str, list[Pod]] = {}
        self.promised: frozenset[str] = NOBODY
        """Nodes whose room is meant for pods that wait."""
        self._snapshot = self._with_places(problem.snapshot, waiting)
        self._settling = settling(problem)
        self._pods_by_node: dict[str, list[Pod]] = {}
        for pod in self._snapshot.pods:
            self._pods_by_node.setdefault(pod.spec.node_name, []).append(pod)

    @property
    def placed(self) -> DisruptionProblem:
        """The cluster with the pods that wait bound where there is room for them."""
        return replace(self._problem, snapshot=self._snapshot)

    def without(self, leaving: Collection[str]) -> Departure | None:
        """Return where the engine would put the pods of leaving nodes; None when one of them would
        go nowhere.
        """
        return self._emptied(frozenset(leaving), [], self._settling)

    def forced_out(self, name: str, *, closed: Collection[str] = NOBODY) -> Departure | None:
        """Return where the engine would put the pods of a node that is forced to leave, which takes
        the room that it keeps for buffers with it: to nodes that are settling, too, but to none
        that is closed; None when one of them would go nowhere.
        """
        return self._emptied(frozenset({name}), self._buffered.get(name, []), closed)

    def _emptied(
        self, gone: frozenset[str], kept: Sequence[Pod], closed: Collection[str]
    ) -> Departure | None:
        results = schedule(
            [*self._moving(gone), *kept],
            snapshot=self._world(gone, closed),
            settings=self._problem.scheduling,
            catalog=self.catalog,
            expired=self._expired,
        )
        if results.unschedulable:
            return None
        return self._departure(gone, apart(results, kept)[0])

    def carried_out(self, leaving: Collection[str], homes: Mapping[str, str]) -> Departure | None:
        """Return what comes of nodes leaving whose pods go to these nodes that stay (by pod), and
        to new ones, which are bought for them; None when one of those would go nowhere.

        Nobody is asked whether those that stay take them: whoever plans it has seen to that.
        """
        results, rest = self._settled(leaving, homes)
        if rest:
            bought = schedule(
                rest,
                snapshot=self._shop(leaving, rest, homes),
                settings=self._problem.scheduling,
                catalog=self.catalog,
                expired=self._expired,
            )
            if bought.unschedulable:
                return None
            results = replace(bought, existing_nodes=results.existing_nodes)
        return self._departure(leaving, results)

    def taken_in(
        self, node: StateNode, leaving: Collection[str], homes: Mapping[str, str]
    ) -> Departure | None:
        """Return what comes of nodes leaving whose pods go to these nodes that stay (by pod), and
        all others to one that is empty; None when it has no room for one of those.
        """
        settled, rest = self._settled(leaving, homes)
        shop = self._shop(leaving, rest, homes)
        results = schedule(
            rest,
            snapshot=replace(shop, nodes=(*shop.nodes, node), node_pools=(), instance_types={}),
            settings=self._problem.scheduling,
            expired=self._expired,
        )
        if results.unschedulable:
            return None
        there = {**results.existing_nodes, **settled.existing_nodes}
        return self._departure(leaving, Results(existing_nodes=there))

    def _settled(
        self, leaving: Collection[str], homes: Mapping[str, str]
    ) -> tuple[Results, list[Pod]]:
        """Return the pods of leaving nodes that have homes, at home, and those that have none."""
        at_home: dict[str, list[str]] = {}
        rest = []
        for pod in self._moving(leaving):
            if pod.key in homes:
                at_home.setdefault(homes[pod.key], []).append(pod.key)
            else:
                rest.append(pod)
        return Results(existing_nodes={name: tuple(keys) for name, keys in at_home.items()}), rest

    def _departure(self, leaving: Collection[str], results: Results) -> Departure:
        return Departure(tuple(self._candidates[name] for name in sorted(leaving)), results)

    def _shop(
        self, leaving: Collection[str], rest: Sequence[Pod], homes: Mapping[str, str]
    ) -> Snapshot:
        """Return the world in which new nodes are bought for the rest: no node that stays takes
        them, and of the pods there only those are left that a rule might count.
        """
        gone = frozenset(leaving)
        nodes = tuple(
            replace(node, deleting=True) for node in self._snapshot.nodes if node.name not in gone
        )
        counts = any(map(_states_rules, rest))
        staying = [pod for pod in self._snapshot.pods if pod.spec.node_name not in gone]
        moved = [pod for pod in self._moving(gone) if pod.key in homes]
        if not counts:
            staying = [pod for pod in staying if _keeps_others_off(pod)]
            moved = [pod for pod in moved if _keeps_others_off(pod)]
        there = [bound(pod, homes[pod.key]) for pod in moved]
        return replace(self._snapshot, nodes=nodes, pods=(*staying, *there))

    def mind_others(self, leaving: Collection[str], keys: Collection[str]) -> bool:
        """Whether one of these pods of leaving nodes, by their keys, says anything of others."""
        return any(pod.key in keys and _states_rules(pod) for pod in self._moving(leaving))

    def model(self, names: Collection[str]) -> ClusterModel | None:
        """Return the cluster as arrays, in which the pods of these candidates may move; None when
        they have none.
        """
        return read_model(
            [self._candidates[name] for name in sorted(names)],
            snapshot=self._snapshot,
            settings=self._problem.scheduling,
            catalog=self.catalog,
            kinds=self._kinds,
            closed=self._settling,
        )

    def least_cost(self, names: Collection[str]) -> float:
        """Return what no arrangement of these candidates' pods costs less than, in $/h."""
        return least_cost(
            self._moving(names),
            snapshot=self._world(frozenset(names)),
            settings=self._problem.scheduling,
            catalog=self.catalog,
            expired=self._expired,
        )

    def _moving(self, names: Collection[str]) -> list[Pod]:
        return [pod for name in sorted(names) for pod in self._candidates[name].moving]

    def _world(self, gone: frozenset[str], closed: Collection[str] = NOBODY) -> Snapshot:
        """Return the world without some nodes, in which those that are closed take nobody in."""
        nodes = tuple(
            node if node.initialized and node.name not in closed else replace(node, deleting=True)
            for node in self._snapshot.nodes
            if node.name not in gone
        )
        pods = tuple(
            pod
            for name, running in self._pods_by_node.items()
            if name not in gone
            for pod in running
        )
        return replace(self._snapshot, nodes=nodes, pods=pods)

    def _with_places(self, snapshot: Snapshot, waiting: Sequence[Pod]) -> Snapshot:
        """Return the snapshot with waiting pods bound where there is room for them now.

        Who would rather have a node bought gives up no preference for what there is, so that
        nodes can be bought here, too; but which they would be is nothing to anybody.
        """
        if not waiting:
            return snapshot
        results = schedule(
            waiting,
            snapshot=snapshot,
            settings=replace(self._problem.scheduling, refinements=0),
            catalog=self.catalog,
        )
        place = {key: name for name, keys in results.existing_nodes.items() for key in keys}
        self.promised = frozenset(place.values())
        for pod in waiting:
            if pod.key in place and pod.metadata.annotations.get(labels.BUFFER_POD) == "true":
                self._buffered.setdefault(place[pod.key], []).append(pod)
            elif pod.key in place:
                self.awaited |= {place[pod.key]}
        placed = {pod.key: bound(pod, place[pod.key]) for pod in waiting if pod.key in place}
        others = (pod for pod in snapshot.pods if pod.key not in placed)
        return replace(snapshot, pods=(*others, *placed.values()))


def groups(departure: Departure) -> list[Group]:
    """Part a departure into the nodes that depend on one another: those whose pods share a new
    node. Where one group goes, the others need not.
    """
    home = {pod.key: candidate.name for candidate in departure.leaving for pod in candidate.moving}
    leader = {candidate.name: candidate.name for candidate in departure.leaving}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for node in departure.results.new_nodes:
        first, *others = dict.fromkeys(find(home[key]) for key in node.pods)
        for other in others:
            leader[find(other)] = find(first)
    members: dict[str, list[Candidate]] = {}
    for candidate in departure.leaving:
        members.setdefault(find(candidate.name), []).append(candidate)
    made: dict[str, list[NewNode]] = {}
    for node in departure.results.new_nodes:
        made.setdefault(find(home[node.pods[0]]), []).append(node)
    moves: dict[str, dict[str, list[str]]] = {}
    for name, keys in departure.results.existing_nodes.items():
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


def names_of(some: Iterable[Group]) -> frozenset[str]:
    """Return the names of the nodes that leave in groups."""
    return frozenset(name for group in some for name in group.names)


def homes_of(moves: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the node of each pod, by its key, given the pods that come to each node."""
    return {key: node for node, keys in moves.items() for key in keys}


def joined(parts: Sequence[Group]) -> Group:
    """Return groups that go together, whatever each of them depends on, as one."""
    ordered = sorted(parts, key=lambda part: min(part.names))
    moves: dict[str, tuple[str, ...]] = {}
    for part in ordered:
        for name, keys in part.moves.items():
            moves[name] = (*moves.get(name, ()), *keys)
    return Group(
        leaving=tuple(candidate for part in ordered for candidate in part.leaving),
        replacements=tuple(new for part in ordered for new in part.replacements),
        moves=moves,
    )


def bound(pod: Pod, node: str) -> Pod:
    """Return the pod as it is once it runs on a node."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def _stranded(snapshot: Snapshot) -> list[Pod]:
    """Return the pods that nodes on their way out still have, and that need another."""
    leaving = {node.name for node in snapshot.nodes if node.deleting}
    return [pod for pod in snapshot.pods if pod.spec.node_name in leaving and is_reschedulable(pod)]


def _states_rules(pod: Pod) -> bool:
    """Whether the pod says anything of other pods."""
    affinity = pod.spec.affinity
    return bool(pod.spec.topology_spread_constraints) or (
        affinity is not None
        and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    )


def _keeps_others_off(pod: Pod) -> bool:
    """Whether the pod keeps others off where it runs."""
    affinity = pod.spec.affinity
    return affinity is not None and affinity.pod_anti_affinity is not None
