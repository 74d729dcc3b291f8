"""The methods of disruption in the order in which they are tried: the first that finds
something to do ends the look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from controller.apis import conditions
from controller.apis.nodeclaim import INSTANCE_TERMINATING
from controller.apis.pods import Pod
from controller.disruption import candidates, consolidation, drift, emptiness
from controller.disruption.budgets import Budgets
from controller.disruption.candidates import Candidates
from controller.disruption.commands import Command, Reason
from controller.disruption.prices import node_price
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.scheduling.scheduler import never
from controller.state.nodes import StateNode


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and per node that stays the reason."""

    commands: tuple[Command, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)


def decide(problem: DisruptionProblem, *, expired: Callable[[], bool] = never) -> Decision:
    """Return the commands of the first method that has any: emptiness, drift, consolidation."""
    found = candidates_of(problem)
    blocked = dict(found.blocked)
    # Empty nodes need no thought: they are gone before anybody asks the engine.
    empty = emptiness.commands(found.admitted, budgets=budgets_of(problem, Reason.EMPTY))
    if empty:
        return Decision(tuple(_told(one) for one in empty), blocked)
    busy = [one for one in found.admitted if not emptiness.should_disrupt(one)]
    forced = candidates_of(problem, eventual=True).admitted
    simulation = Simulation(problem, forced, expired=expired)
    command, why_not = drift.propose(
        forced,
        simulation=simulation,
        budgets=budgets_of(problem, Reason.DRIFTED),
        expired=expired,
    )
    blocked |= why_not
    if command is not None:
        return Decision((command,), blocked)
    proposal = consolidation.propose(
        problem,
        busy,
        simulation=simulation,
        budgets=budgets_of(problem, Reason.UNDERUTILIZED),
        expired=expired,
    )
    return Decision(tuple(proposal.commands), {**proposal.blocked, **blocked})


def candidates_of(problem: DisruptionProblem, *, eventual: bool = False) -> Candidates:
    """Return the nodes that may go; `eventual` ones go whatever their pods say, once their
    grace period ends.
    """
    pods: dict[str, list[Pod]] = {}
    for pod in problem.snapshot.pods:
        pods.setdefault(pod.spec.node_name, []).append(pod)
    found = candidates.found(
        problem.snapshot.nodes,
        pods_on=lambda name: pods.get(name, ()),
        node_pools=problem.node_pools,
        disruption_budgets=problem.snapshot.pod_disruption_budgets,
        now=problem.now,
        eventual=eventual,
    )
    states = {one.name: one for one in problem.snapshot.nodes}
    priced = tuple(replace(one, price=_price(problem, states[one.name])) for one in found.admitted)
    return Candidates(priced, found.blocked)


def cost(problem: DisruptionProblem) -> float:
    """Return what all nodes cost whose price is known, in $/h."""
    return sum(_price(problem, one) for one in problem.snapshot.nodes)


def _price(problem: DisruptionProblem, state: StateNode) -> float:
    types = problem.snapshot.instance_types.get(state.node_pool, ())
    return node_price(state, types) or 0.0


def budgets_of(problem: DisruptionProblem, reason: Reason) -> Budgets:
    """Return what each pool's budgets allow now."""
    total, consuming = consumption(problem.snapshot.nodes)
    return Budgets.of(
        problem.node_pools.values(), reason, nodes=total, consuming=consuming, now=problem.now
    )


def consumption(nodes: Iterable[StateNode]) -> tuple[Counter[str], Counter[str]]:
    """Count each pool's initialized nodes, and those of them not ready or on their way out."""
    total: Counter[str] = Counter()
    consuming: Counter[str] = Counter()
    for state in nodes:
        if state.claim is None or not state.initialized:
            continue
        if conditions.is_true(state.claim.status.conditions, INSTANCE_TERMINATING):
            continue
        total[state.node_pool] += 1
        ready = state.node is not None and conditions.is_true(state.node.status.conditions, "Ready")
        consuming[state.node_pool] += state.deleting or not ready
    return total, consuming


def _told(command: Command) -> Command:
    names = ", ".join(one.name for one in command.candidates[:3])
    more = ", …" if len(command.candidates) > 3 else ""
    return replace(
        command,
        saving=sum(one.price for one in command.candidates),
        why=f"{len(command.candidates)} nodes are empty: {names}{more}",
    )
