"""Simulates with the scheduling engine where pods schedule when nodes are removed.

Pending pods and the pods of nodes that are being deleted are placed first. Moved pods schedule on
initialized nodes that stay, or on new nodes. Consolidation moves no pods to nodes that are not
yet consolidatable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.apis import labels
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Pod
from controller.disruption.commands import Candidate
from controller.disruption.consolidateafter import not_yet_consolidatable
from controller.disruption.model import ClusterModel, read_model
from controller.disruption.offerings import TypesByPool, with_left
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.buffers import split_fills
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.offerings import catalog as encoded
from controller.scheduling.pods.classes import PodSignatures
from controller.scheduling.results import NewNode, Results
from controller.scheduling.scheduler import least_cost, never, schedule
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable
from controller.state.snapshot import Snapshot

NO_NODES: frozenset[str] = frozenset()

PLACEHOLDER_SUFFIX = ":placeholder"
"""Suffix of the name of a placeholder that reserves capacity for a pod. Kubernetes names have no
colon."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The placements of the pods of nodes that are removed together.

    `leaving` are the removed candidates, `results` the simulated placements of their pods.
    """

    leaving: tuple[Candidate, ...]
    results: Results

    @property
    def price(self) -> float:
        """The price of the removed nodes in $/h."""
        return sum((candidate.price for candidate in self.leaving), 0.0)

    @property
    def saving(self) -> float:
        """The saving in $/h; negative if the replacements cost more."""
        return self.price - self.results.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that are removed together because their replacements receive pods of all of them.

    `moves` maps existing nodes to the keys of the pods that move to them. If the `whole` is too
    large for the budgets, this is an instalment of it: one of its new nodes and as many of its
    nodes as the budgets allow. The other nodes' pods move to that new node later.
    """

    leaving: tuple[Candidate, ...]
    replacements: tuple[NewNode, ...] = ()
    moves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    whole: Group | None = None

    @property
    def price(self) -> float:
        """The price of the removed nodes in $/h."""
        return sum((candidate.price for candidate in self.leaving), 0.0)

    @property
    def cost(self) -> float:
        """The price of the replacements in $/h."""
        return sum((new.price for new in self.replacements), 0.0)

    @property
    def saving(self) -> float:
        """The saving in $/h; negative if the replacements cost more."""
        return self.price - self.cost

    @property
    def names(self) -> frozenset[str]:
        """The names of the removed nodes."""
        return frozenset(candidate.name for candidate in self.leaving)


class Simulation:
    """Simulates the removal of sets of candidates in one cluster."""

    def __init__(
        self,
        problem: DisruptionProblem,
        candidates: Sequence[Candidate],
        *,
        expired: Callable[[], bool] = never,
        signatures: PodSignatures | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        """Place the pending pods.

        `signatures` caches data about pods between simulations. Pods that are no longer in the
        snapshot are dropped from it. `catalog` is that of the problem's snapshot, if the caller
        keeps it between simulations.
        """
        self._problem, self._expired = problem, expired
        self._signatures = signatures or PodSignatures()
        self._signatures.keep(problem.snapshot.pods)
        self._candidates = {candidate.name: candidate for candidate in candidates}
        stranded = _stranded_pods(problem.snapshot)
        self.catalog = catalog or encoded(problem.snapshot)
        self.awaited: frozenset[str] = NO_NODES
        """The names of the nodes that will receive pending pods or pods of nodes being deleted."""

        self._buffered: dict[str, list[Pod]] = {}
        self.promised: frozenset[str] = NO_NODES
        """The names of the `awaited` nodes and of those that reserve capacity for buffers."""
        self._refilled = _starting_reservations(problem.snapshot)
        """The IDs of the reservations from which a node is being launched, or is about to be."""
        self._snapshot = self._with_pending_bound(problem.snapshot, problem.pending, stranded)
        if self._snapshot.instance_types is not problem.snapshot.instance_types:
            self.catalog = encoded(self._snapshot)
        self._not_consolidatable = not_yet_consolidatable(problem)

    @property
    def placed(self) -> DisruptionProblem:
        """The problem with the pending pods bound to the nodes that can hold them."""
        return replace(self._problem, snapshot=self._snapshot)

    def without(self, leaving: Collection[str]) -> SimulationResult | None:
        """Return where the pods of removed nodes schedule, or None if one is unschedulable.

        Nodes that are not yet consolidatable receive no pods.
        """
        return self._simulate_removal(frozenset(leaving), [], self._not_consolidatable)

    def forced_out(
        self,
        names: Collection[str],
        *,
        closed: Collection[str] = NO_NODES,
        restarting: Sequence[Pod] = (),
    ) -> SimulationResult | None:
        """Return where the pods schedule if nodes must leave, or None if one is unschedulable.

        Capacity that the nodes reserve for buffers is scheduled again, too. Unlike in `without`,
        nodes that are not yet consolidatable may receive the pods. `closed` nodes receive none.
        `restarting` pods of other nodes are scheduled again with them.
        """
        kept = [pod for name in sorted(names) for pod in self._buffered.get(name, [])]
        return self._simulate_removal(frozenset(names), kept, closed, restarting=restarting)

    def terminated_first(self, name: str) -> SimulationResult | None:
        """Return where the pods schedule if a node is terminated before it is replaced.

        None if the node uses no capacity reservation, if another node will use the freed instance,
        or if a pod is unschedulable even with it.
        """
        reservation = self._candidates[name].reservation
        if not reservation or reservation in self._refilled:
            return None
        types = with_left(self._snapshot.instance_types, reservation, 1)
        return self._simulate_removal(
            frozenset({name}), self._buffered.get(name, []), NO_NODES, types
        )

    def _simulate_removal(
        self,
        gone: frozenset[str],
        kept: Sequence[Pod],
        closed: Collection[str],
        types: TypesByPool | None = None,
        restarting: Sequence[Pod] = (),
    ) -> SimulationResult | None:
        """Return where pods schedule without the nodes `gone`, or None if one is unschedulable.

        These are the pods of the nodes, the `restarting` pods of other nodes, and the buffers' pods
        `kept`, for which the nodes reserve capacity. `closed` nodes receive none. `types` are the
        instance types then, if changed.
        """
        world = self._snapshot.fork(
            gone=gone,
            closed=self._snapshot.uninitialized.union(closed),
            unbound={pod.key for pod in restarting},
        )
        if types is not None:
            world = replace(world, instance_types=types)
        results = schedule(
            [*self._moving_pods(gone), *restarting, *kept],
            snapshot=world,
            settings=self._problem.scheduling,
            catalog=self.catalog if types is None else encoded(world),
            expired=self._expired,
        )
        if results.unschedulable:
            return None
        return self._result(gone, split_fills(results, kept)[0])

    def carried_out(
        self, leaving: Collection[str], destinations: Mapping[str, str]
    ) -> SimulationResult | None:
        """Return the result of removing nodes, with the destinations of their pods given.

        `destinations` maps pods to existing nodes, by pod key. New nodes are launched for the other
        pods; None if one of these is unschedulable. The method does not check whether the existing
        nodes can hold their pods: the caller has planned that.
        """
        results, rest = self._split_by_destination(leaving, destinations)
        if rest:
            bought = schedule(
                rest,
                snapshot=self._snapshot_for_new_nodes(leaving, rest, destinations),
                settings=self._problem.scheduling,
                catalog=self.catalog,
                expired=self._expired,
            )
            if bought.unschedulable:
                return None
            results = replace(bought, existing_nodes=results.existing_nodes)
        return self._result(leaving, results)

    def moved_to_one(
        self, node: StateNode, leaving: Collection[str], destinations: Mapping[str, str]
    ) -> SimulationResult | None:
        """Return the result of removing nodes if an empty node gets the pods without a destination.

        `destinations` maps the other pods to existing nodes, by pod key. `node` is the empty node.
        Returns None if a pod does not fit on it.
        """
        planned, rest = self._split_by_destination(leaving, destinations)
        shop = self._snapshot_for_new_nodes(leaving, rest, destinations)
        results = schedule(
            rest,
            snapshot=replace(shop, nodes=(*shop.nodes, node), node_pools=(), instance_types={}),
            settings=self._problem.scheduling,
            expired=self._expired,
        )
        if results.unschedulable:
            return None
        there = {**results.existing_nodes, **planned.existing_nodes}
        return self._result(leaving, Results(existing_nodes=there))

    def _split_by_destination(
        self, leaving: Collection[str], destinations: Mapping[str, str]
    ) -> tuple[Results, list[Pod]]:
        """Return the placements of the pods in `destinations`, and the other pods."""
        at_destination: dict[str, list[str]] = {}
        rest = []
        for pod in self._moving_pods(leaving):
            if pod.key in destinations:
                at_destination.setdefault(destinations[pod.key], []).append(pod.key)
            else:
                rest.append(pod)
        return Results(
            existing_nodes={name: tuple(keys) for name, keys in at_destination.items()}
        ), rest

    def _result(self, leaving: Collection[str], results: Results) -> SimulationResult:
        return SimulationResult(tuple(self._candidates[name] for name in sorted(leaving)), results)

    def _snapshot_for_new_nodes(
        self, leaving: Collection[str], rest: Sequence[Pod], destinations: Mapping[str, str]
    ) -> Snapshot:
        """Return the snapshot in which only new nodes can receive the pods in `rest`.

        It has no existing node with capacity, and only the pods that a topology rule may count.
        """
        moving = (pod.key for pod in self._moving_pods(leaving))
        world = self._snapshot.fork(
            gone=leaving,
            closed={node.name for node in self._snapshot.nodes},
            bound={key: destinations[key] for key in moving if key in destinations},
        )
        if any(map(_has_topology_rules, rest)):
            return world
        # Without rules of their own, the pods to schedule are affected only by the anti-affinity of
        # others.
        return replace(world, pods=tuple(pod for pod in world.pods if _has_anti_affinity(pod)))

    def have_topology_rules(self, leaving: Collection[str], keys: Collection[str]) -> bool:
        """Return whether one of these pods, by key, has a topology rule.

        Only pods of the `leaving` nodes are considered.
        """
        return any(
            pod.key in keys and _has_topology_rules(pod) for pod in self._moving_pods(leaving)
        )

    def model(
        self, names: Collection[str], *, new: Sequence[StateNode] = ()
    ) -> ClusterModel | None:
        """Return the cluster as arrays, or None if these candidates have no pods to move.

        The pods of the named candidates may move. `new` nodes are added to the cluster.
        """
        return read_model(
            [self._candidates[name] for name in sorted(names)],
            snapshot=replace(self._snapshot, nodes=(*self._snapshot.nodes, *new)),
            settings=self._problem.scheduling,
            catalog=self.catalog,
            signatures=self._signatures,
            closed=self._not_consolidatable,
        )

    def least_cost(self, names: Collection[str]) -> float:
        """Return a lower bound, in $/h, on the cost of any placement of these candidates' pods."""
        return least_cost(
            self._moving_pods(names),
            snapshot=self._snapshot.without(names),
            settings=self._problem.scheduling,
            catalog=self.catalog,
            expired=self._expired,
        )

    def _moving_pods(self, names: Collection[str]) -> list[Pod]:
        return [pod for name in sorted(names) for pod in self._candidates[name].moving]

    def _with_pending_bound(
        self, snapshot: Snapshot, pending: Sequence[Pod], stranded: Sequence[Pod]
    ) -> Snapshot:
        """Return the snapshot with waiting pods bound to the nodes that have capacity for them now.

        Pods on nodes that are being deleted reserve capacity at their destination, but topology
        counts them where they run. kube-scheduler does the same until they are evicted, and a
        PodDisruptionBudget or `karpenter.sh/do-not-disrupt` may block their eviction for long.

        Pods that prefer a new node keep that preference, so the engine may plan new nodes here,
        too. These are ignored, but the capacity reservations that they use count as used.
        """
        waiting = [*pending, *stranded]
        if not waiting:
            return snapshot
        results = schedule(
            waiting,
            snapshot=snapshot,
            settings=replace(self._problem.scheduling, refinements=0),
            catalog=self.catalog,
        )
        node_of = {key: name for name, keys in results.existing_nodes.items() for key in keys}
        self.promised = frozenset(node_of.values())
        for pod in waiting:
            if pod.key in node_of and pod.metadata.annotations.get(labels.BUFFER_POD) == "true":
                self._buffered.setdefault(node_of[pod.key], []).append(pod)
            elif pod.key in node_of:
                self.awaited |= {node_of[pod.key]}
        placed = {
            pod.key: bound_copy(pod, node_of[pod.key]) for pod in pending if pod.key in node_of
        }
        kept = [_placeholder(pod, node_of[pod.key]) for pod in stranded if pod.key in node_of]
        others = (pod for pod in snapshot.pods if pod.key not in placed)
        types = snapshot.instance_types
        for reservation in map(reservation_of, results.new_nodes):
            if reservation:
                types = with_left(types, reservation, -1)
                self._refilled |= {reservation}
        return replace(snapshot, pods=(*others, *placed.values(), *kept), instance_types=types)


def groups(result: SimulationResult) -> list[Group]:
    """Split a result into independent groups: nodes whose pods share a new node form one group."""
    origin = {pod.key: candidate.name for candidate in result.leaving for pod in candidate.moving}
    leader = {candidate.name: candidate.name for candidate in result.leaving}

    # Union-find over the names of the nodes, with path halving.
    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for node in result.results.new_nodes:
        first, *others = dict.fromkeys(find(origin[key]) for key in node.pods)
        for other in others:
            leader[find(other)] = find(first)
    members: dict[str, list[Candidate]] = {}
    for candidate in result.leaving:
        members.setdefault(find(candidate.name), []).append(candidate)
    made: dict[str, list[NewNode]] = {}
    for node in result.results.new_nodes:
        made.setdefault(find(origin[node.pods[0]]), []).append(node)
    moves: dict[str, dict[str, list[str]]] = {}
    for name, keys in result.results.existing_nodes.items():
        for key in keys:
            moves.setdefault(find(origin[key]), {}).setdefault(name, []).append(key)
    return [
        Group(
            leaving=tuple(leaving),
            replacements=tuple(made.get(key, ())),
            moves={name: tuple(pods) for name, pods in moves.get(key, {}).items()},
        )
        for key, leaving in members.items()
    ]


def names_of(some: Iterable[Group]) -> frozenset[str]:
    """Return the names of all nodes in these groups."""
    return frozenset(name for group in some for name in group.names)


def destinations_of(moves: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the node of each pod, by pod key, from the pods of each node."""
    return {key: node for node, keys in moves.items() for key in keys}


def join_groups(parts: Sequence[Group]) -> Group:
    """Return one group that consists of these groups."""
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


def bound_copy(pod: Pod, node: str) -> Pod:
    """Return a copy of the pod that is bound to a node."""
    return with_fields(pod, "spec", node_name=node)


def _placeholder(pod: Pod, node: str) -> Pod:
    """Return a placeholder that takes a pod's capacity on a node; no label selector matches it."""
    name = f"{pod.metadata.name}{PLACEHOLDER_SUFFIX}"
    return with_fields(bound_copy(pod, node), "metadata", name=name, labels={})


def _starting_reservations(snapshot: Snapshot) -> frozenset[str]:
    """Return the IDs of the capacity reservations of nodes that are not initialized yet."""
    starting = (node for node in snapshot.nodes if not node.initialized and not node.deleting)
    named = (node.labels.get(labels.RESERVATION_ID, "") for node in starting)
    return frozenset(filter(None, named))


def reservation_of(node: NewNode) -> str:
    """Return the ID of the capacity reservation that a new node is launched from, if any."""
    pinned = (r for r in node.requirements if r.key == labels.RESERVATION_ID and r.operator == "In")
    return next((r.values[0] for r in pinned if len(r.values) == 1), "")


def _stranded_pods(snapshot: Snapshot) -> list[Pod]:
    """Return the reschedulable pods on nodes that are being deleted."""
    leaving = {node.name for node in snapshot.nodes if node.deleting}
    return [pod for pod in snapshot.pods if pod.spec.node_name in leaving and is_reschedulable(pod)]


def _has_topology_rules(pod: Pod) -> bool:
    """Return whether the pod has a topology spread constraint or an inter-pod (anti-)affinity."""
    affinity = pod.spec.affinity
    return bool(pod.spec.topology_spread_constraints) or (
        affinity is not None
        and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    )


def _has_anti_affinity(pod: Pod) -> bool:
    """Return whether the pod has inter-pod anti-affinity, which repels other pods."""
    affinity = pod.spec.affinity
    return affinity is not None and affinity.pod_anti_affinity is not None
