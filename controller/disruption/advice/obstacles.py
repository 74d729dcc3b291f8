"""Possible obstacles to a lower cost of a cluster, each with a change that removes it.

The cost of an obstacle is unknown here. A forecast of the cluster without the obstacle measures it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Requirement
from controller.apis.wording import with_count
from controller.disruption import candidates
from controller.disruption.advice import nodepools, workloads
from controller.disruption.advice.adoption import SAFE_TO_EVICT
from controller.disruption.advice.forecast import NEVER, Forecast, never_allows
from controller.disruption.budgets import budget_faults
from controller.disruption.problem import DisruptionProblem, PodChange
from controller.scheduling.settings import IGNORE, RESPECT
from controller.state.evictions import EvictionGuards, permanent_obstacle, remedy
from controller.state.nodes import StateNode
from controller.state.pods import forbids_disruption, is_reschedulable

Change = Callable[[DisruptionProblem], DisruptionProblem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Something that may prevent a saving.

    `kind` classifies it, `what` names it, `change` describes the change that removes it, and `made`
    applies this change to a cluster. `weight` is the price in $/h of the nodes that it concerns. If
    NodePools are changed to remove it, `edit` is this change.
    """

    kind: str
    what: str
    change: str
    made: Change
    weight: float
    edit: nodepools.Edit | None = None
    pool: str = ""
    """The name of the NodePool that `edit` changes, if it changes only one."""

    key: str = ""
    """The label of the requirement that `edit` removes, if it removes one."""

    selector: str = ""
    """The label whose node selector the change removes, if it removes one."""


def obstacles(steady: Forecast, pools: Mapping[str, NodePool]) -> list[Obstacle]:
    """Return the possible obstacles to savings in a cluster, the most expensive first.

    `pools` are the NodePools as users wrote them.
    """
    reading = _Reading(steady)
    found = [
        *_node_pools(reading, pools),
        *_settings(reading),
        *_disruption_budgets(reading),
        *_protected_pods(reading),
        *_protected_nodes(reading),
        *_placement_rules(reading),
        *_selectors(reading, pools),
    ]
    return sorted(found, key=lambda each: (-each.weight, each.what))


class _Reading:
    """A cluster after all disruption: its movable pods, and the prices of their nodes."""

    def __init__(self, steady: Forecast) -> None:
        self.steady, self.problem = steady, steady.problem
        price = candidates.prices(self.problem)
        self.price = {state.name: price(state) for state in steady.nodes}
        self.ours = {state.name for state in steady.nodes if state.managed} | steady.staying.keys()
        self.pods = [
            pod
            for pod in self.problem.snapshot.pods
            if is_reschedulable(pod) and pod.spec.node_name in self.ours
        ]

    def weight(self, pods: Iterable[Pod]) -> float:
        """Return the price of the nodes of these pods, in $/h."""
        return sum(self.price.get(name, 0.0) for name in {pod.spec.node_name for pod in pods})

    def weight_of(self, nodes: Iterable[StateNode]) -> float:
        """Return the price of these nodes, in $/h."""
        return sum(self.price[state.name] for state in nodes)


# Pods that may not be evicted.


def _disruption_budgets(reading: _Reading) -> Iterator[Obstacle]:
    guards = EvictionGuards(reading.problem.snapshot.pod_disruption_budgets)
    blocked: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in reading.pods:
        if guards.obstacle(pod) is not None:
            for budget in guards.of(pod):
                blocked[budget.metadata.key].append(pod)
    for budget in reading.problem.snapshot.pod_disruption_budgets:
        name = budget.metadata.key
        if not (pods := blocked.get(name)):
            continue
        why = permanent_obstacle(budget)
        yield Obstacle(
            kind="PodDisruptionBudget",
            what=f"PodDisruptionBudget {name} blocks the eviction of {with_count(len(pods), 'pod')}"
            + (f": {why}" if why else ""),
            change=remedy(budget),
            made=partial(_without_budget, name=name),
            weight=reading.weight(pods),
        )


def _without_budget(problem: DisruptionProblem, name: str) -> DisruptionProblem:
    left = tuple(
        budget for budget in problem.snapshot.pod_disruption_budgets if budget.metadata.key != name
    )
    return replace(problem, snapshot=replace(problem.snapshot, pod_disruption_budgets=left))


def _protected_pods(reading: _Reading) -> Iterator[Obstacle]:
    protected = [pod for pod in reading.pods if forbids_disruption(pod, reading.problem.now)]
    for name, pods in workloads.by_workload(protected).items():
        is_of_autoscaler = pods[0].metadata.annotations.get(SAFE_TO_EVICT) == "false"
        annotation = f"{SAFE_TO_EVICT}=false" if is_of_autoscaler else labels.DO_NOT_DISRUPT
        yield Obstacle(
            kind="DoNotDisrupt",
            what=f"{annotation} on {with_count(len(pods), 'pod')} of {name}",
            change="remove the annotation, or protect the pods for a time: "
            f"{labels.DO_NOT_DISRUPT}=4h",
            made=_on_pods(pods, partial(workloads.without_annotation, name=labels.DO_NOT_DISRUPT)),
            weight=reading.weight(pods),
        )


def _on_pods(pods: Iterable[Pod], changed: PodChange) -> Change:
    keys = frozenset(pod.key for pod in pods)
    return partial(DisruptionProblem.with_pods, keys=keys, changed=changed)


def _protected_nodes(reading: _Reading) -> Iterator[Obstacle]:
    nodes = [
        state
        for state in reading.steady.nodes
        if state.managed
        and state.node is not None
        and state.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true"
    ]
    if nodes:
        yield Obstacle(
            kind="DoNotDisrupt",
            what=f"{labels.DO_NOT_DISRUPT} on {with_count(len(nodes), 'node')}",
            change="remove the annotation from the nodes",
            made=_without_protection,
            weight=reading.weight_of(nodes),
        )


def _without_protection(problem: DisruptionProblem) -> DisruptionProblem:
    """Return the problem without `karpenter.sh/do-not-disrupt` on nodes."""

    def without_protection(state: StateNode) -> StateNode:
        if state.node is None or labels.DO_NOT_DISRUPT not in state.node.metadata.annotations:
            return state
        annotations = {
            key: value
            for key, value in state.node.metadata.annotations.items()
            if key != labels.DO_NOT_DISRUPT
        }
        return replace(state, node=with_fields(state.node, "metadata", annotations=annotations))

    nodes = tuple(map(without_protection, problem.snapshot.nodes))
    return replace(problem, snapshot=replace(problem.snapshot, nodes=nodes))


# Rules for where pods may run.


def _placement_rules(reading: _Reading) -> Iterator[Obstacle]:
    for name, pods in workloads.by_workload(reading.pods).items():
        spec = pods[0].spec
        apart = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
        if apart is not None and apart.required:
            keys = ", ".join(sorted({term.topology_key for term in apart.required}))
            yield Obstacle(
                kind="AntiAffinity",
                what=f"required anti-affinity of {name} over {keys}",
                change="make it preferred instead of required",
                made=_on_pods(pods, workloads.without_anti_affinity),
                weight=reading.weight(pods),
            )
        if strict := [
            each for each in spec.topology_spread_constraints if workloads.is_strict(each)
        ]:
            keys = ", ".join(sorted({each.topology_key for each in strict}))
            yield Obstacle(
                kind="TopologySpread",
                what=f"topology spread of {name} over {keys}",
                change="set whenUnsatisfiable to ScheduleAnyway, or raise maxSkew",
                made=_on_pods(pods, workloads.without_strict_spreads),
                weight=reading.weight(pods),
            )
        if apart is not None and (
            both := sorted(
                {term.topology_key for term in apart.required}
                & {each.topology_key for each in strict}
            )
        ):
            # Either rule alone keeps the pods apart: relaxing only one of them saves nothing.
            yield Obstacle(
                kind="AntiAffinityAndSpread",
                what=f"required anti-affinity and topology spread of {name} over {', '.join(both)}",
                change="make both preferred: ScheduleAnyway instead of DoNotSchedule",
                made=_on_pods(pods, workloads.without_strict_separation),
                weight=reading.weight(pods),
            )


def _selectors(reading: _Reading, pools: Mapping[str, NodePool]) -> Iterator[Obstacle]:
    """Yield the node labels that the pods of a namespace require, except the operating system."""
    asking: defaultdict[tuple[str, str], dict[str, Pod]] = defaultdict(dict)
    asked: defaultdict[tuple[str, str], list[Requirement]] = defaultdict(list)
    for pod in reading.pods:
        for required in workloads.required_labels(pod):
            if required.key != labels.OS:
                asking[pod.metadata.namespace, required.key][pod.key] = pod
                asked[pod.metadata.namespace, required.key].append(required)
    for (namespace, key), requirements in asked.items():
        pods = list(asking[namespace, key].values())
        weight, selector = reading.weight(pods), _selector(key, requirements)
        wanted = {value for each in requirements for value in each.values}
        is_named = len(wanted) == 1 and all(each.operator == "In" for each in requirements)
        if is_named and pools and not _is_offered(pools, key, value := wanted.pop()):
            like = min(pools)
            edit = nodepools.labelled_copy_edit(like, key, value)
            yield Obstacle(
                kind="MissingNodePool",
                what=f"no NodePool has the label {selector}, which "
                f"{with_count(len(pods), 'pod')} in namespace {namespace} select",
                change=f"add a NodePool like {like} with this label, or remove the selector",
                made=partial(nodepools.with_edit, edit=edit),
                weight=weight,
                edit=edit,
            )
        else:
            yield Obstacle(
                kind="NodeSelector",
                what=f"node selector {selector} of {with_count(len(pods), 'pod')} in namespace "
                f"{namespace}",
                change="remove the selector",
                made=_on_pods(pods, partial(workloads.without_selector, key=key)),
                weight=weight,
                selector=key,
            )


def _selector(key: str, requirements: Iterable[Requirement]) -> str:
    """Return the text of a label's requirements, such as `disk=ssd` or `disk NotIn hdd`."""
    values: defaultdict[str, set[str]] = defaultdict(set)
    for each in requirements:
        values[each.operator].update(each.values)
    texts = (
        f"{key}{'=' if operator == 'In' else f' {operator} '}{','.join(sorted(named))}".rstrip()
        for operator, named in values.items()
    )
    return "; ".join(texts)


def _is_offered(pools: Mapping[str, NodePool], key: str, value: str) -> bool:
    """Whether nodes of a NodePool may have the label."""
    if key in labels.WELL_KNOWN or key == labels.HOSTNAME:
        return True
    templates = [pool.spec.template for pool in pools.values()]
    return any(
        (template.metadata.labels or {}).get(key) == value
        or any(term.key == key for term in template.spec.requirements)
        for template in templates
    )


# NodePools.


def _node_pools(reading: _Reading, pools: Mapping[str, NodePool]) -> Iterator[Obstacle]:
    for name, pool in pools.items():
        for kind, what, change, changed, key in (*_requirements(pool), *_policies(pool)):
            edit = nodepools.pool_edit(name, changed)
            yield Obstacle(
                kind=kind,
                what=f"NodePool {name}: {what}",
                change=change,
                made=partial(nodepools.with_edit, edit=edit),
                # The whole cluster might run on nodes of the NodePool.
                weight=reading.steady.cost,
                edit=edit,
                pool=name,
                key=key,
            )


_Found = tuple[str, str, str, Callable[[NodePool], NodePool], str]
"""Kind, what, change, edit and key of an obstacle in a NodePool."""


def _requirements(pool: NodePool) -> Iterator[_Found]:
    keys = dict.fromkeys(term.key for term in pool.spec.template.spec.requirements)
    for key in keys:
        said = nodepools.describe_requirements(pool, key)
        edit = partial(nodepools.without_requirement, key=key)
        if labels.normalize(key) == labels.CAPACITY_TYPE:
            yield "CapacityType", f"capacity types are {said}", "allow the others", edit, key
        elif labels.normalize(key) == labels.ARCH:
            yield "Architecture", f"architectures are {said}", "allow the others", edit, key
        elif nodepools.describes_instances(key):
            yield "InstanceTypes", said, f"allow more values of {key}", edit, key


def _policies(pool: NodePool) -> Iterator[_Found]:
    disruption = pool.spec.disruption
    if pool.spec.limits:
        said = ", ".join(f"{name} {value}" for name, value in pool.spec.limits.items())
        yield (
            "Limits",
            f"limits {said}",
            "raise the limits",
            partial(nodepools.with_limits, limits={}),
            "",
        )
    if disruption.consolidation_policy != nodepools.CONSOLIDATES:
        yield (
            "ConsolidationPolicy",
            f"consolidationPolicy {disruption.consolidation_policy}",
            f"set it to {nodepools.CONSOLIDATES}",
            nodepools.with_consolidation,
            "",
        )
    if disruption.consolidate_after == NEVER:
        yield (
            "ConsolidateAfter",
            "consolidateAfter Never",
            "set it to a duration such as 1m",
            nodepools.with_finite_consolidate_after,
            "",
        )
    if any(map(never_allows, disruption.budgets)):
        faults = budget_faults(pool)
        yield (
            "Budget",
            "; ".join(faults) or "a budget of 0 nodes",
            "correct the budget" if faults else "allow at least 10%, or give the budget a schedule",
            nodepools.without_closed_budgets,
            "",
        )


# Settings of the controller.


def _settings(reading: _Reading) -> Iterator[Obstacle]:
    problem = reading.problem
    settings, cost = problem.settings, reading.steady.cost
    if settings.eviction_price:
        yield Obstacle(
            kind="EvictionPrice",
            what=f"eviction price of {settings.eviction_price:g} $ per pod",
            change="set DISRUPTION_EVICTION_PRICE=0: more pods are evicted for smaller savings",
            made=_evicting_for_free,
            weight=cost,
        )
    if not settings.spot_to_spot and _has_spot(reading.steady.nodes):
        yield Obstacle(
            kind="SpotToSpot",
            what="spot nodes are not replaced by cheaper spot nodes",
            change="set SpotToSpotConsolidation=true in FEATURE_GATES",
            made=_spot_to_spot,
            weight=cost,
        )
    if problem.scheduling.preference_policy == RESPECT and any(map(_prefers, reading.pods)):
        yield Obstacle(
            kind="Preferences",
            what="preferred affinities, and spreads with ScheduleAnyway",
            change="set PREFERENCE_POLICY=Ignore, or remove the preferences",
            made=_ignoring_preferences,
            weight=cost,
        )


def _evicting_for_free(problem: DisruptionProblem) -> DisruptionProblem:
    return replace(problem, settings=replace(problem.settings, eviction_price=0.0))


def _spot_to_spot(problem: DisruptionProblem) -> DisruptionProblem:
    return replace(problem, settings=replace(problem.settings, spot_to_spot=True))


def _ignoring_preferences(problem: DisruptionProblem) -> DisruptionProblem:
    return replace(problem, scheduling=replace(problem.scheduling, preference_policy=IGNORE))


def _has_spot(nodes: Sequence[StateNode]) -> bool:
    return any(
        state.managed and state.labels.get(labels.CAPACITY_TYPE) == labels.SPOT for state in nodes
    )


def _prefers(pod: Pod) -> bool:
    affinity, spreads = pod.spec.affinity, pod.spec.topology_spread_constraints
    parts: Collection[object] = (
        (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
        if affinity is not None
        else ()
    )
    return any(getattr(part, "preferred", None) for part in parts) or any(
        not workloads.is_strict(each) for each in spreads
    )
