"""Simulates where kube-scheduler binds moved pods, regardless of the plan.

The pod that replaces an evicted one has another name. kube-scheduler binds it to the node with the
best score: the least and most evenly allocated one. So it may not bind pods as planned, and a pod
that no longer fits needs a new node. Consolidation subtracts the cost of such nodes from a saving.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from controller.apis.kubernetes.pods import Pod
from controller.constraints.resources import CPU, MEMORY
from controller.disruption.applying import apply_commands
from controller.disruption.commands import Candidate, Command
from controller.disruption.methods.consolidation.plan import Plan
from controller.disruption.model import ClusterModel, read_model
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.arrays import Matrix, Vector
from controller.scheduling.catalog.offerings import Catalog
from controller.state.evictions import EvictionGuards
from controller.state.usage import allocatable


def cost_of_left_over(
    problem: DisruptionProblem, commands: Sequence[Command], *, catalog: Catalog
) -> float:
    """Return the expected cost, in $/h, of new nodes for pods that no longer fit.

    It is the mean of lower estimates for two orders of drains; infinite if no node can be launched
    for these pods. Pods of commands without replacements are bound first, because they do not wait
    for new nodes.
    """
    ordered = sorted(commands, key=lambda command: bool(command.replacements))
    leaving = [
        (candidate.moving, bool(command.replacements))
        for command in ordered
        for candidate in command.candidates
    ]
    named = [
        (command, [f"{number}-{index}" for index in range(len(command.replacements))])
        for number, command in enumerate(ordered)
    ]
    born = {name for _, names in named for name in names}
    after = apply_commands(problem, named)
    moved = frozenset(pod.key for pods, _ in leaving for pod in pods)
    destinations = _destinations(after, moved)
    model = read_model(
        destinations, snapshot=after.snapshot, settings=problem.scheduling, catalog=catalog
    )
    if model is None:
        return 0.0
    capacity = _capacity(after, model)
    # Which node is drained first is unknown. The mean of two opposite orders represents all.
    drains = [(_largest_first(pods, model, capacity), waits) for pods, waits in leaving]
    backwards = drains[::-1]
    backwards.sort(key=lambda one: one[1])
    guards = EvictionGuards(problem.snapshot.pod_disruption_budgets)
    orders = [_eviction_order(order, guards) for order in (drains, backwards)]
    costs = [_bound_one_by_one(model, order, born, capacity) for order in orders]
    return sum(costs) / len(orders)


def _destinations(after: DisruptionProblem, moved: frozenset[str]) -> list[Candidate]:
    """Return the nodes that receive moved pods, with only these pods.

    Nodes that Joiner does not manage or whose NodePool was deleted are left out.
    """
    pods: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in after.snapshot.pods:
        if pod.key in moved:
            pods[pod.spec.node_name].append(pod)
    return [
        Candidate(state.node, state.claim, pool, tuple(pods[state.name]))
        for state in after.snapshot.nodes
        if state.name in pods and state.node is not None and state.claim is not None
        if (pool := after.node_pools.get(state.node_pool)) is not None
    ]


def _capacity(after: DisruptionProblem, model: ClusterModel) -> Matrix:
    """Return the allocatable CPU and memory of nodes (nodes × 2)."""
    states = {state.name: state for state in after.snapshot.nodes}
    totals = [allocatable(states[name]) for name in model.names]
    return np.array([[it.get(CPU, 0), it.get(MEMORY, 0)] for it in totals], dtype=np.float64)


def _largest_first(pods: Sequence[Pod], model: ClusterModel, capacity: Matrix) -> list[Pod]:
    """Return the pods of a node that move, in the order in which a drain evicts them."""
    whole = np.maximum(capacity.max(axis=0), 1.0)

    def share(pod: Pod) -> float:
        number = model.class_of.get(pod.key)
        return 0.0 if number is None else float((model.sizes[number, :2] / whole).max())

    return sorted(pods, key=share, reverse=True)


def _eviction_order(
    drains: Sequence[tuple[list[Pod], bool]], guards: EvictionGuards
) -> list[tuple[Pod, bool]]:
    """Return the pods of drains in the order of their evictions.

    A drain evicts the pods that their PodDisruptionBudgets allow now, and the others once these run
    again, so a large pod may be evicted after small ones. Pods that wait for replacements are last.
    """
    order: list[tuple[Pod, bool]] = []
    for waits in (False, True):
        left = [pod for pods, waiting in drains if waiting == waits for pod in pods]
        while left:
            allowed: dict[int, int] = {}
            later: list[Pod] = []
            for pod in left:
                # At least 1: a PodDisruptionBudget that allows no eviction now may allow one later.
                for budget in (budgets := guards.of(pod)):
                    allowed.setdefault(id(budget), max(budget.status.disruptions_allowed, 1))
                if all(allowed[id(budget)] > 0 for budget in budgets):
                    order.append((pod, waits))
                    for budget in budgets:
                        allowed[id(budget)] -= 1
                else:
                    later.append(pod)
            left = later
    return order


def _bound_one_by_one(
    model: ClusterModel, moved: Sequence[tuple[Pod, bool]], born: set[str], capacity: Matrix
) -> float:
    """Return the cost, in $/h, of new nodes if kube-scheduler binds the pods in this order.

    Each pod goes to the node with the best score. Only pods that wait for replacements may use
    `born` nodes.
    """
    new = np.array([name in born for name in model.names], dtype=np.bool_)
    plan = Plan(model, np.zeros(len(model.names)), np.zeros(model.capacity.shape))
    plan.lift()
    for pod, waits in moved:
        number = model.class_of.get(pod.key)
        if number is None or model.intricate[number]:
            continue
        open_ = plan.open_to(number, np.ones_like(new) if waits else ~new)
        if len(open_):
            liked = _scores(plan.free[open_, :2], model.sizes[number, :2], capacity[open_])
            plan.place(number, 1, int(open_[liked.argmax()]))
        else:
            plan.buy(number, 1)
    return plan.price_of_bought()


def _scores(free: Matrix, size: Vector, capacity: Matrix) -> Vector:
    """Return kube-scheduler's score of nodes for a pod, from its two scores of resources."""
    left = (free - size) / np.maximum(capacity, 1.0)
    scores: Vector = left.mean(axis=1) + 1.0 - np.abs(left[:, 0] - left[:, 1]) / 2
    return scores
