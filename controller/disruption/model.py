"""The cluster as arrays for consolidation: nodes, and the pods that may move.

Pods that differ only in their names form one class, whatever their workload. `capacity` is
what the nodes have for those pods, and `present` counts the pods of each class on each node.
The scheduling engine's own reader supplies labels, taints, zones of volumes, DaemonSet pods and
topology.

Axes: nodes, classes, resources, domains of a rule. Docstrings name the axes of an array, as (nodes)
for one value per node, or nodes × classes for a matrix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from controller.apis.kubernetes.pods import Pod
from controller.constraints.hostports import conflict
from controller.disruption.commands import Candidate
from controller.scheduling.arrays import Counts, Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.packing.formulation import ProblemBuilder, each_apart
from controller.scheduling.packing.pricing import PriceModel
from controller.scheduling.packing.problem import PackingProblem
from controller.scheduling.placement.domains import Domains
from controller.scheduling.pods.classes import PodClass, PodSignatures
from controller.scheduling.pods.groups import Eligibility, PendingGroup, PodGroup, needs_colocation
from controller.scheduling.pods.preferences import (
    PodConstraints,
    tolerating_soft_taints,
    without_preferences,
)
from controller.scheduling.problem import SchedulingProblem, scheduling_problem
from controller.scheduling.settings import Settings
from controller.scheduling.topology.groups import EVERY_NODE, TopologyGroup, TopologyType
from controller.state.snapshot import Snapshot

ABUNDANT = 1e6
"""The number of nodes that limits are assumed to allow in an estimate; the engine applies the
real limits."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Rule:
    """One topology rule: the domain of each node, and the pods that count in each domain.

    `domain` (nodes) is −1 for nodes that do not count; `universe` marks the domains that a spread
    compares. `members` are the classes that the rule counts, `owner_classes` the classes that have
    the rule in their spec. `counted` (domains) is the number of pods that the rule counts
    and that do not move, `owners` (domains) the same for pods that have the rule in their spec.
    """

    group: TopologyGroup
    domain: Indices
    universe: Mask
    counted: Vector
    owners: Vector
    members: Indices
    owner_classes: Indices

    @property
    def type(self) -> TopologyType:
        """The type of topology rule: spread, affinity or anti-affinity."""
        return self.group.type

    @property
    def is_local(self) -> bool:
        """Whether each node is a domain of its own and the rule is not an affinity."""
        return self.group.per_node and self.type is not TopologyType.AFFINITY

    @property
    def is_host_spread(self) -> bool:
        """Whether the rule is a spread by hostname whose minimum count pods may raise."""
        return self.group.is_host_spread

    def population(self, present: Counts) -> Vector:
        """Return the number of pods in each domain that the rule counts."""
        return self._sum(present, self.members, self.counted)

    def owner_population(self, present: Counts) -> Vector:
        """Return the number of pods in each domain that have the rule in their spec."""
        return self._sum(present, self.owner_classes, self.owners)

    def _sum(self, present: Counts, classes: Indices, fixed: Vector) -> Vector:
        pods = present[:, classes].sum(axis=1)
        there = (self.domain >= 0) & (pods > 0)
        return fixed + np.bincount(self.domain[there], pods[there], minlength=len(fixed))


@dataclass(frozen=True, eq=False, slots=True)
class ClassRules:
    """The rules of a class's own pods, and the anti-affinity of other classes that repels them."""

    owned: tuple[Rule, ...] = ()
    repelling: tuple[Rule, ...] = ()

    def __bool__(self) -> bool:
        """Whether the class has any rules."""
        return bool(self.owned or self.repelling)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClusterModel:
    """The arrays of a cluster; the module docstring describes `capacity`, `present` and the axes.

    `names` are the nodes. `candidate` (nodes) marks the nodes that may be disrupted; `takes`
    (nodes) marks those that may receive moved pods. `price` (nodes) is in $/h. `free` (nodes ×
    resources) is the remaining capacity beside the pods that are present. `sizes` (classes ×
    resources) is what a pod requests. `allowed` (nodes × classes) marks the nodes that admit a
    class. `pods` are the pods of a class on a node, by the indices of node and class.

    `packing` is the problem of buying new nodes for all these pods, with the classes in the same
    order. `worth_new` (classes) is the lowest cost of a pod on new nodes, in $/h; infinite if no
    offering can hold it. `intricate` (classes) marks classes whose destinations only the engine can
    determine.
    """

    names: tuple[str, ...]
    candidate: Mask
    takes: Mask
    price: Vector
    capacity: Matrix
    free: Matrix
    present: Counts
    sizes: Matrix
    allowed: Mask
    intricate: Mask
    rules: tuple[ClassRules, ...]
    packing: PackingProblem
    worth_new: Vector
    pods: Mapping[tuple[int, int], tuple[Pod, ...]]

    @cached_property
    def class_of(self) -> Mapping[str, int]:
        """The class of each pod that may move, by pod key."""
        return {pod.key: number for (_, number), pods in self.pods.items() for pod in pods}

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """The index of each node, by its name."""
        return {name: index for index, name in enumerate(self.names)}


def read_model(
    candidates: Sequence[Candidate],
    *,
    snapshot: Snapshot,
    settings: Settings,
    catalog: Catalog,
    signatures: PodSignatures | None = None,
    closed: Collection[str] = (),
) -> ClusterModel | None:
    """Return the arrays of a cluster in which the pods of these candidates may move.

    None if there are no such pods. `signatures` caches what earlier evaluations read of the pods;
    `closed` nodes receive no pods.
    """
    moving = [(candidate.name, pod) for candidate in candidates for pod in candidate.moving]
    origins = {pod.key: (name, pod) for name, pod in moving}
    problem = scheduling_problem(
        [pod for _, pod in moving],
        snapshot=snapshot,
        settings=settings,
        catalog=catalog,
        signatures=signatures,
        lifted=True,
    )
    return _Reader(problem, candidates, origins, closed).model() if problem.pods.classes else None


class _Reader:
    """Converts the engine's data into arrays."""

    def __init__(
        self,
        problem: SchedulingProblem,
        candidates: Sequence[Candidate],
        origins: Mapping[str, tuple[str, Pod]],
        closed: Collection[str],
    ) -> None:
        self._problem, self._candidates, self._closed = problem, candidates, closed
        index_of = problem.nodes.index_of
        self._origins = {
            key: (index_of[name], pod) for key, (name, pod) in origins.items() if name in index_of
        }
        self._classes_read: list[PendingGroup] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known_numbers: dict[Eligibility, int] = {}
        self._known_nodes: dict[Eligibility, list[bool]] = {}
        self._known_required: dict[int, PodConstraints] = {}
        self._known_domains: dict[tuple[str, frozenset[str]], tuple[list[str], Indices]] = {}
        self._domains = Domains(problem.nodes, problem.supply.beyond_limits, problem.groups.tallies)

    def model(self) -> ClusterModel:
        """Return the arrays of the cluster."""
        nodes, classes = self._problem.nodes, self._classes()
        self._classes_read = classes
        taken, spare = self._countable(classes)
        capacity = np.concatenate([nodes.remaining, spare], axis=1)
        sizes = np.concatenate([np.stack([pending.size for pending in classes]), taken], axis=1)
        present = np.zeros((len(nodes), len(classes)), dtype=np.int32)
        pods: defaultdict[tuple[int, int], list[Pod]] = defaultdict(list)
        for number, pending in enumerate(classes):
            for key in pending.keys:
                index, pod = self._origins[key]
                pods[index, number].append(pod)
        at, of = np.array(list(pods), dtype=np.int64).reshape(-1, 2).T
        present[at, of] = [len(alike) for alike in pods.values()]
        free = capacity.copy()
        np.subtract.at(free, at, sizes[of] * present[at, of][:, None])
        candidate = np.zeros(len(nodes), dtype=np.bool_)
        price = np.zeros(len(nodes))
        # A node with a malformed pod is no candidate: the engine cannot place that pod.
        refused = self._problem.pods.refused
        unread = {self._origins[key][0] for key in refused if key in self._origins}
        for here in self._candidates:
            if here.name in nodes.index_of:
                index = nodes.index_of[here.name]
                candidate[index], price[index] = index not in unread, here.price
        packing, worth_new = self._launch_options(classes)
        return ClusterModel(
            names=tuple(node.name for node in nodes.all),
            candidate=candidate,
            takes=np.array(
                [node.initialized and node.name not in self._closed for node in nodes.all],
                dtype=np.bool_,
            ),
            price=price,
            capacity=capacity,
            free=free,
            present=present,
            sizes=sizes,
            # Stored by class: a plan reads all nodes of one class.
            allowed=np.stack([pending.eligibility.nodes for pending in classes]).T,
            intricate=np.array(
                [_is_intricate(pending.pod_class, pending.eligibility) for pending in classes],
                dtype=np.bool_,
            ),
            rules=self._class_rules(classes),
            packing=packing,
            worth_new=worth_new,
            pods={index: tuple(alike) for index, alike in pods.items()},
        )

    def _classes(self) -> list[PendingGroup]:
        """Group the pods that the arrays do not distinguish."""
        alike: dict[tuple[object, ...], PendingGroup] = {}
        reader, read = self._problem.reader, self._problem.pods.classes
        for pod_class, constraints in read:
            eligibility = reader.eligibility(pod_class, constraints)
            if not self._admits_all(eligibility, pod_class.keys):
                # The pods run on nodes that violate their preferences, so they may on others.
                eligibility = reader.eligibility(pod_class, self._without_preferences(constraints))
            elif constraints.avoids_soft_taints and not eligibility.eligible.any():
                # Every new node for these pods would have such a taint.
                eligibility = reader.eligibility(pod_class, tolerating_soft_taints(constraints))
            intricate = _is_intricate(pod_class, eligibility)
            key = (
                self._equivalence(eligibility),
                pod_class.size.tobytes(),
                pod_class.signature.ports,
                pod_class.volumes.by_claim,
                pod_class.volumes.created,
                pod_class.index if intricate else None,
            )
            if key in alike:
                alike[key].keys += pod_class.keys
            else:
                alike[key] = reader.pending_group(
                    pod_class, eligibility.constraints, pod_class.keys
                )
        return list(alike.values())

    def _admits_all(self, eligibility: Eligibility, keys: Sequence[str]) -> bool:
        """Return whether the nodes of these pods satisfy their requirements and preferences."""
        nodes = self._known_nodes.get(eligibility)
        if nodes is None:
            nodes = self._known_nodes[eligibility] = eligibility.nodes.tolist()
        return all(nodes[self._origins[key][0]] for key in keys)

    def _equivalence(self, eligibility: Eligibility) -> int:
        """Return a number that classes with the same nodes and the same rules share."""
        if eligibility not in self._known_numbers:
            where = eligibility.nodes.tobytes(), eligibility.eligible.tobytes()
            key = (*where, eligibility.owned, eligibility.counted)
            self._known_numbers[eligibility] = self._numbers.setdefault(key, len(self._numbers))
        return self._known_numbers[eligibility]

    def _without_preferences(self, constraints: PodConstraints) -> PodConstraints:
        """Return the constraints without preferences, one shared result for each input."""
        if id(constraints) not in self._known_required:
            self._known_required[id(constraints)] = without_preferences(constraints)
        return self._known_required[id(constraints)]

    def _launch_options(self, classes: Sequence[PendingGroup]) -> tuple[PackingProblem, Vector]:
        """Return the launch options for these classes, and the lowest cost per pod in $/h."""
        supply = self._problem.supply
        groups = [
            PodGroup(pending, (), list(pending.keys), pending.eligible) for pending in classes
        ]
        builder = ProblemBuilder(
            supply.variants,
            self._problem.groups.all,
            capacity=supply.beyond_limits.capacity,
            limits=supply.limits,
        )
        plenty = np.full_like(supply.limits.left, ABUNDANT) * supply.limits.units
        packing, _ = builder.problem(each_apart(groups), supply.limits.left + plenty)
        bought = packing.allowed.any(axis=1)
        demand = np.where(bought, packing.demand, 0)
        if not demand.any():
            return packing, np.full(len(demand), np.inf)
        dual_prices = PriceModel(packing).dual_prices(demand, balance=0.0)
        return packing, np.where(bought, dual_prices.values, np.inf)

    def _countable(self, classes: Sequence[PendingGroup]) -> tuple[Matrix, Matrix]:
        """Return host ports and volumes as resources: used by pods (classes), and free on nodes."""
        nodes, attachments = self._problem.nodes, self._problem.attachments
        taken: list[list[int]] = []
        spare: list[Vector] = []
        for port in sorted({port for pending in classes for port in pending.ports}):
            taken.append([int(conflict((port,), pending.ports)) for pending in classes])
            spare.append(nodes.free_of((port,)).astype(np.float64))
        for driver in attachments.drivers:
            volumes = [pending.pod_class.volumes for pending in classes]
            by_claim = [
                sum(of == driver for of, _ in volumes_of_pod.by_claim) for volumes_of_pod in volumes
            ]
            created = [
                sum(count for of, count in volumes_of_pod.created if of == driver)
                for volumes_of_pod in volumes
            ]
            if any(by_claim) or any(created):
                taken.append([sum(both) for both in zip(by_claim, created, strict=True)])
                spare.append(attachments.spare(driver, ABUNDANT))
        return (
            np.array(taken, dtype=np.float64).reshape(-1, len(classes)).T,
            np.array(spare, dtype=np.float64).reshape(-1, len(nodes)).T,
        )

    def _class_rules(self, classes: Sequence[PendingGroup]) -> tuple[ClassRules, ...]:
        """Return the topology rules of each class; a rule of several classes is one object."""
        members: defaultdict[int, list[int]] = defaultdict(list)
        owner_classes: defaultdict[int, list[int]] = defaultdict(list)
        for number, pending in enumerate(classes):
            for group in pending.eligibility.counted:
                members[group.index].append(number)
            for group in pending.eligibility.owned:
                owner_classes[group.index].append(number)
        known: dict[int, Rule] = {}

        def rule(group: TopologyGroup) -> Rule:
            if group.index not in known:
                known[group.index] = self._rule(
                    group, members[group.index], owner_classes[group.index]
                )
            return known[group.index]

        return tuple(
            ClassRules(
                tuple(rule(group) for group in pending.eligibility.owned),
                tuple(
                    rule(group)
                    for group in pending.eligibility.counted
                    if group.type is TopologyType.ANTI_AFFINITY and group.hard
                ),
            )
            for pending in classes
        )

    def _rule(self, group: TopologyGroup, members: list[int], owner_classes: list[int]) -> Rule:
        """Return a topology group as a rule; hostname groups have one domain per node."""
        nodes, tally = self._problem.nodes, self._problem.groups.tallies[group.index]
        if group.per_node:
            names = [host or "" for host in nodes.domains(group.key)]
            domain = np.arange(len(nodes))
            universe = np.array([name in group.universe for name in names], dtype=np.bool_)
        else:
            every = self._universe(group, owner_classes)
            names, domain = self._number_domains(group.key, frozenset(every))
            universe = np.array([name in every for name in names], dtype=np.bool_)
            if group.node_filter != EVERY_NODE:
                counts = [group.node_filter.admits(node) for node in nodes.all]
                domain = np.where(counts, domain, -1)
        return Rule(
            group=group,
            domain=domain,
            universe=universe,
            counted=np.array([tally.counts[name] for name in names], dtype=np.float64),
            owners=np.array([tally.owners[name] for name in names], dtype=np.float64),
            members=np.array(members, dtype=np.int64),
            owner_classes=np.array(owner_classes, dtype=np.int64),
        )

    def _number_domains(self, key: str, more: frozenset[str]) -> tuple[list[str], Indices]:
        """Return the domains of a label and the domain index of each node (−1 without it)."""
        if (key, more) not in self._known_domains:
            domains = self._problem.nodes.domains(key)
            names = sorted(more.union(value for value in domains if value is not None))
            number: dict[str | None, int] = {name: index for index, name in enumerate(names)}
            domain = np.array([number.get(value, -1) for value in domains], dtype=np.int64)
            self._known_domains[key, more] = names, domain
        return self._known_domains[key, more]

    def _universe(self, group: TopologyGroup, owner_classes: list[int]) -> set[str]:
        """Return the domains whose counts a spread compares."""
        if not owner_classes:
            return set(group.universe)
        owned = self._domains.rules(self._classes_read[owner_classes[0]]).owned
        return next((set(every) for tally, _, every in owned if tally.group is group), set())


def _is_intricate(pod_class: PodClass, eligibility: Eligibility) -> bool:
    """Whether the placement of such pods depends on more than the arrays hold."""
    if pod_class.device_requests is not None:
        return True
    return bool(eligibility.owned) and needs_colocation(eligibility.owned)
