"""Removes nodes, and replaces any set of nodes by any cheaper set.

What a pod would cost if all were placed anew gives each node its *waste*: what it costs beyond
what its pods are worth. Waste per eviction ranks the nodes without a solve. Nodes are then
taken out of the plan in that order, in growing numbers, and the engine puts their pods on
what stays and on new nodes (ruin and recreate); what saves more than it disturbs stays in the
plan. Evictions are dear at first and become cheaper, so that the plan takes the savings that
move few pods before those that move many, down to the price that the settings name. A pod of
the plan has moved once however often the plan is made anew.

Nodes that depend on one another form a group; each group is a command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from controller.apis import conditions, durations, labels
from controller.apis.nodeclaim import CONSOLIDATABLE
from controller.constraints.requirements import minimum_values, read
from controller.disruption import balance
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.costs import eviction_cost, moving_price
from controller.disruption.prices import capped
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import NOBODY, Group, Outcome, Simulation, groups
from controller.scheduling.results import NewNode
from controller.scheduling.scheduler import never

REASON = Reason.UNDERUTILIZED
WHEN_EMPTY = "WhenEmpty"

EVICTION_LEVELS = (1.0, 0.5, 0.25, 0.12, 0.05, 0.02)
"""How dear an eviction is while the plan grows, in shares of what the average pod costs. On
clusters of 100 to 300 nodes whose deployments had shrunk by half, savings that cost more than
the first are few, and those below the last move ten pods for what one pod costs."""

PORTIONS = (0.0625, 0.125, 0.1875, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0)
"""Which shares of the ranking are taken out together."""

SPOT_TO_SPOT_TYPES = 15
"""How many cheaper types a spot node needs to be replaced by another spot node: with fewer,
each replacement would sooner be interrupted, and replaced again."""

AWAITED = "pods that wait for a node will come here"

UNSEEN = "there was no time left to look at it alone"

NEGLIGIBLE = 1e-6
"""$/h below which nothing is saved."""


@dataclass(slots=True)
class Proposal:
    """Commands, best first, per node that stays the reason, and which the budgets held back."""

    commands: list[Command] = field(default_factory=list)
    blocked: dict[str, str] = field(default_factory=dict)
    held_back: frozenset[str] = NOBODY


def obstacle(candidate: Candidate) -> str | None:
    """Return why a node is not consolidated at all, or None."""
    disruption = candidate.node_pool.spec.disruption
    if candidate.node_pool.spec.replicas is not None:
        return f"NodePool {candidate.pool} has a fixed number of nodes"
    if not candidate.price:
        return "its instance type, zone and capacity type are not among those of its NodePool"
    try:
        never_consolidated = durations.parse(disruption.consolidate_after) is None
    except ValueError:
        never_consolidated = True
    if never_consolidated:
        return f"NodePool {candidate.pool} has consolidation switched off"
    if disruption.consolidation_policy == WHEN_EMPTY:
        return f"NodePool {candidate.pool} consolidates empty nodes only"
    if not conditions.is_true(candidate.claim.status.conditions, CONSOLIDATABLE):
        return f"pods came or went less than {disruption.consolidate_after} ago"
    return None


def propose(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    *,
    simulation: Simulation,
    budgets: Budgets,
    expired: Callable[[], bool] = never,
) -> Proposal:
    """Return the commands that the budgets let go now.

    The plan is made for all candidates, whatever the budgets say; what they hold back takes no
    pods of those that go, so that nobody moves twice.
    """
    found = Proposal()
    open_: list[Candidate] = []
    for one in candidates:
        reason = AWAITED if one.name in simulation.promised else obstacle(one)
        if reason is None:
            open_.append(one)
        else:
            found.blocked[one.name] = reason
    if not open_:
        return found
    search = _Search(problem, open_, candidates, simulation, expired)
    plan = search.run()
    going = _within(budgets, search.ordered(plan))
    outcome = simulation.without(going, closed=plan - going) if going else None
    approved = search.approved(outcome) if outcome is not None else []
    names = frozenset(name for one in approved for name in one.names)
    if outcome is not None and names != going:
        outcome = simulation.without(names, closed=plan - names) if names else None
        approved = search.approved(outcome) if outcome is not None else []
        names = frozenset(name for one in approved for name in one.names)
    found.commands = [search.command(one) for one in approved]
    found.held_back = plan - names
    for one in open_:
        if one.name in names:
            continue
        if one.name in plan:
            found.blocked[one.name] = f"the budgets of NodePool {one.pool} let no more nodes go now"
        else:
            found.blocked[one.name] = UNSEEN if expired() else search.why_it_stays(one)
    return found


def confirmed(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    commands: Sequence[Command],
    *,
    simulation: Simulation,
    budgets: Budgets,
    held_back: frozenset[str] = NOBODY,
    expired: Callable[[], bool] = never,
) -> tuple[list[Command], dict[str, str]]:
    """Return the commands that stand, as they would be given now, and why the nodes of the
    others stay.

    They are carried out together, so they are looked at together; what was held back then
    takes no pods now.
    """
    open_ = {
        one.name: one
        for one in candidates
        if one.name not in simulation.promised and obstacle(one) is None
    }
    rejected: dict[str, str] = {}
    left: list[Command] = []
    for command in commands:
        now = [open_[name] for name in sorted(command.names) if name in open_]
        if len(now) < len(command.names):
            rejected |= dict.fromkeys(command.names, "what runs on it, or is to, has changed")
        elif _within(budgets, now) != command.names:
            rejected |= dict.fromkeys(command.names, "the budgets let fewer nodes go by now")
        else:
            budgets.admit(now)
            left.append(command)
    going = [open_[name] for command in left for name in sorted(command.names)]
    search = _Search(problem, going, candidates, simulation, expired)
    while left:
        fresh = search.again(left, held_back)
        failed = [one for one in left if one.names not in fresh]
        if not failed:
            return [fresh[one.names] for one in left], rejected
        failed = search.culprits(left, held_back) or failed
        for one in failed:
            rejected |= dict.fromkeys(one.names, "its pods would go elsewhere by now")
        left = [one for one in left if one not in failed]
    return [], rejected


def _within(budgets: Budgets, ordered: Iterable[Candidate]) -> frozenset[str]:
    """Return the names of the first that the budgets let go; the budgets are not spent."""
    left = replace(budgets, remaining=dict(budgets.remaining))
    return frozenset(one.name for one in left.admit(ordered))


class _Search:
    """The plan in the making: which nodes should not be there."""

    def __init__(
        self,
        problem: DisruptionProblem,
        open_: Sequence[Candidate],
        everyone: Sequence[Candidate],
        simulation: Simulation,
        expired: Callable[[], bool],
    ) -> None:
        self._problem, self._simulation, self._expired = problem, simulation, expired
        self._open = {one.name: one for one in open_}
        settings, now = problem.settings, problem.now
        hours = settings.horizon / timedelta(hours=1)
        self._disturbance = {
            one.name: sum(max(eviction_cost(pod), 0.0) for pod in one.moving) for one in open_
        }
        self._move_price = {
            one.name: sum(moving_price(pod, settings, now) for pod in one.moving) / hours
            for one in open_
        }
        values = simulation.values(self._open)
        self._waste = {
            # What finds no other place is worth its node.
            one.name: one.price - sum(values.get(pod.key, one.price) for pod in one.moving)
            for one in open_
        }
        self._balance = balance.Totals.of(everyone)

    def run(self) -> frozenset[str]:
        """Return the names of the nodes that should go."""
        plan: frozenset[str] = NOBODY
        pods = sum(self._disturbance.values())
        average = sum(one.price for one in self._open.values()) / max(pods, 1.0)
        for level in EVICTION_LEVELS:
            price = level * average
            while not self._expired():
                better = self._grown(plan, price)
                if better is None:
                    break
                plan = better
        return plan or self._single()

    def _single(self) -> frozenset[str]:
        """Return the first node that is worth it alone: where no plan pays, each is looked at."""
        for name in sorted(self._open, key=lambda one: (-self._waste[one], one)):
            if self._expired():
                break
            alone = self._worthwhile(frozenset({name}), 0.0)
            if alone:
                return alone
        return NOBODY

    def _grown(self, plan: frozenset[str], price: float) -> frozenset[str] | None:
        """Return the plan with the nodes that are worth it at this price of an eviction.

        None when no other plan is better.
        """
        ranked = sorted(
            (
                name
                for name in self._open
                if name not in plan and self._waste[name] > self._cost(name, price)
            ),
            key=lambda name: (
                -self._waste[name] / max(self._disturbance[name], NEGLIGIBLE),
                name,
            ),
        )
        best, most = None, self._gain(plan, price) if plan else 0.0
        for count in sorted({max(1, round(len(ranked) * share)) for share in PORTIONS}):
            if not ranked or self._expired():
                break
            grown = self._worthwhile(plan.union(ranked[:count]), price)
            gain = self._gain(grown, price)
            if gain > most + NEGLIGIBLE:
                best, most = grown, gain
        return best

    def _worthwhile(self, tried: frozenset[str], price: float) -> frozenset[str]:
        """Return those of the nodes that are in groups which save more than they cost."""
        outcome = self._simulation.without(tried)
        if outcome is None:
            return NOBODY
        return frozenset(
            name
            for group in groups(outcome)
            if self._is_allowed(group) and self._net(group, price) > NEGLIGIBLE
            for name in group.names
        )

    def _gain(self, plan: frozenset[str], price: float) -> float:
        """Return what a plan saves, less what it costs, in $/h; nothing for one that fails."""
        outcome = self._simulation.without(plan) if plan else None
        if outcome is None:
            return 0.0
        return outcome.saving - sum(self._cost(name, price) for name in plan)

    def _cost(self, name: str, price: float) -> float:
        """Return what it costs to empty a node, in $/h over the horizon."""
        return self._disturbance[name] * price + self._move_price[name]

    def _net(self, group: Group, price: float) -> float:
        return group.saving - sum(self._cost(name, price) for name in group.names)

    def _is_allowed(self, group: Group) -> bool:
        """Whether its nodes can be bought for less than is saved, and balanced pools agree."""
        return self._replacements(group) is not None and self._balance.approves(group)

    def _replacements(self, group: Group) -> tuple[NewNode, ...] | None:
        """Return the new nodes, each with only those types that leave something saved; None when
        one has none, or when spot nodes would be replaced by spot nodes against the rules.
        """
        found = []
        for node in group.replacements:
            pool = self._problem.node_pools[node.node_pool]
            types = self._problem.snapshot.instance_types[node.node_pool]
            below = node.price * group.price / group.cost if node.price else group.price
            cheaper = capped(node, below=below, types=types, pool=pool)
            if cheaper is None:
                return None
            found.append(cheaper)
        if not all(one.is_spot for one in group.leaving) or not any(map(may_be_spot, found)):
            return tuple(found)
        if not self._problem.settings.spot_to_spot:
            return None
        if len(group.leaving) > 1:
            return tuple(found)
        if any(len(one.instance_types) < SPOT_TO_SPOT_TYPES for one in found):
            return None
        return tuple(
            replace(one, instance_types=one.instance_types[:SPOT_TO_SPOT_TYPES])
            if not minimum_values(
                self._problem.node_pools[one.node_pool].spec.template.spec.requirements
            )
            else one
            for one in found
        )

    def approved(self, outcome: Outcome) -> list[Group]:
        """Return the groups of a final outcome that save more than they cost, best first."""
        good = [
            one
            for one in groups(outcome)
            if self._is_allowed(one) and self._net(one, 0.0) > NEGLIGIBLE
        ]
        return sorted(good, key=lambda one: (-self._per_eviction(one), sorted(one.names)))

    def again(
        self, commands: Sequence[Command], closed: frozenset[str]
    ) -> dict[frozenset[str], Command]:
        """Return those of some commands, by their nodes, that would be given in the same way now
        if all of them were carried out; `closed` nodes take no pods.
        """
        names = frozenset(name for one in commands for name in one.names)
        outcome = None if self._expired() else self._simulation.without(names, closed=closed)
        if outcome is None:
            return {}
        groups_now = {group.names: group for group in self.approved(outcome)}
        return {
            one.names: self.command(group)
            for one in commands
            if (group := groups_now.get(one.names)) is not None
            and _is_like(one.replacements, group.replacements)
        }

    def culprits(self, commands: Sequence[Command], closed: frozenset[str]) -> list[Command]:
        """Return the commands that would not be given even if the others were not: theirs is the
        change that the others may have failed for.
        """
        names = frozenset(name for one in commands for name in one.names)
        return [
            one
            for one in commands
            if one.names not in self.again([one], closed | (names - one.names))
        ]

    def ordered(self, plan: frozenset[str]) -> list[Candidate]:
        """Return the nodes of a plan, the best bargain first, those of a group together."""
        outcome = self._simulation.without(plan) if plan else None
        if outcome is None:
            return []
        best = sorted(
            groups(outcome), key=lambda one: (-self._per_eviction(one), sorted(one.names))
        )
        return [
            candidate
            for group in best
            for candidate in sorted(
                group.leaving, key=lambda one: (-self._waste[one.name], one.name)
            )
        ]

    def _per_eviction(self, group: Group) -> float:
        moved = sum(self._disturbance[name] for name in group.names)
        return group.saving / max(moved, NEGLIGIBLE)

    def command(self, group: Group) -> Command:
        """Return the command that carries a group out."""
        replacements = self._replacements(group)
        assert replacements is not None
        evictions = sum(len(one.moving) for one in group.leaving)
        return Command(
            REASON,
            group.leaving,
            replacements=replacements,
            moves=group.moves,
            saving=group.saving,
            evictions=evictions,
            why=_why(group, evictions),
        )

    def why_it_stays(self, one: Candidate) -> str:
        """Say what the node's own removal would come to."""
        outcome = self._simulation.without(frozenset({one.name}))
        if outcome is None:
            return "some of its pods would find no other place"
        moved = len(one.moving)
        if outcome.saving <= NEGLIGIBLE:
            return (
                f"nothing cheaper was found: its {moved} pods would cost "
                f"{outcome.results.cost:.4f} $/h elsewhere, the node costs {one.price:.4f} $/h"
            )
        (group,) = groups(outcome)
        if self._replacements(group) is None:
            return "the nodes in its place might cost as much, or it is spot and would be again"
        if not self._balance.approves(group):
            return f"the balance of NodePool {one.pool} is against it: it saves too little"
        return (
            f"it would save {outcome.saving:.4f} $/h, less than moving {moved} pods costs "
            f"({self._cost(one.name, 0.0):.4f} $/h until it pays)"
        )


def _is_like(planned: Sequence[NewNode], now: Sequence[NewNode]) -> bool:
    """Whether as many nodes come, and each type that was planned would do."""
    left = list(now)
    for one in planned:
        types = frozenset(one.instance_types)
        heir = next(
            (
                other
                for other in left
                if other.node_pool == one.node_pool and types.issubset(other.instance_types)
            ),
            None,
        )
        if heir is None:
            return False
        left.remove(heir)
    return not left


def may_be_spot(node: NewNode) -> bool:
    """Whether the cloud may launch the node as a spot instance."""
    allowed = read(node.requirements).get(labels.CAPACITY_TYPE)
    return allowed is None or allowed.has(labels.SPOT)


def _why(group: Group, evictions: int) -> str:
    nodes = ", ".join(sorted(group.names)[:3]) + (", …" if len(group.names) > 3 else "")
    homes = []
    if group.moves:
        homes.append(f"{len(group.moves)} nodes that stay")
    if group.replacements:
        homes.append(f"{len(group.replacements)} new ones for {group.cost:.4f} $/h")
    where = " and ".join(homes) or "nowhere: there are none"
    return (
        f"{len(group.names)} nodes ({nodes}) for {group.price:.4f} $/h are not needed: their "
        f"{evictions} pods go to {where}"
    )
