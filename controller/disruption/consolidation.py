"""Removes nodes, and replaces any set of nodes by any cheaper set.

The cluster is read into arrays once. A linear program over them says which nodes had better go
and what pods and free room are worth; a search makes a plan of that (see `relaxation`, `plan`
and `search`), in which a pod moves once, however often the plan changes. New nodes for
those that find no room are bought by the engine, which thereby proves what they come to.

Nodes that depend on one another form a group; each group is a command.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np

from controller.apis import conditions
from controller.apis.nodeclaim import CONSOLIDATABLE
from controller.disruption import balance
from controller.disruption.applying import launched
from controller.disruption.budgets import Budgets, held_back
from controller.disruption.commands import Candidate, Command, Reason, Verdict
from controller.disruption.concessions import Concession, concession
from controller.disruption.costs import HOUR, Lives, eviction_cost
from controller.disruption.emptiness import is_consolidated
from controller.disruption.homes import with_lasting_homes
from controller.disruption.kubescheduler import cost_of_left_over
from controller.disruption.model import ClusterModel
from controller.disruption.plan import Plan
from controller.disruption.pods import is_soon_gone
from controller.disruption.problem import DisruptionProblem
from controller.disruption.relaxation import HOLES, RelaxedPlan, relaxed
from controller.disruption.replacements import affordable, is_like
from controller.disruption.search import promises, searched
from controller.disruption.simulation import (
    NOBODY,
    Departure,
    Group,
    Simulation,
    groups,
    joined,
    names_of,
)
from controller.scheduling.arrays import Mask, Vector
from controller.scheduling.results import NewNode
from controller.scheduling.scheduler import never

REASON = Reason.UNDERUTILIZED
WHEN_EMPTY = "WhenEmpty"

LEAST_EVICTION = 0.1
"""How dear an eviction is at least to a plan, in shares of what the average pod costs: what moves
ten pods to save what one costs is no saving. Without it a cluster would be made anew, pod by
pod, for its last percents."""

MANY_NODES = 1000
"""From how many nodes on the first plan that brings anything is taken, so that the first commands
come soon: that in which new nodes may be bought."""

MOST_STEPS, STEP = 10, timedelta(minutes=2)
"""Of how many steps nodes may go that have to go one after the other, and how long each takes."""

ENGINE_TRIES = 20
"""How many nodes are tried with the engine in a look, of those that the arrays cannot judge."""

AWAITED = "pods that wait for a node will come here"

ENDING = "pods are ending there, and their room is free in a moment"

LATER = "others go first, and it is looked at again when they have gone"

NOWHERE = "some of its pods would find no other place"

SPOT_AGAIN = "the nodes in its place might cost as much, or it is spot and would be again"

ONE_BY_ONE = (
    "kube-scheduler brings pods one by one, and would leave some over that fit with the others in "
    "one way only: nodes for those cost more than is saved"
)

UNSEEN = "there was no time left to look at it alone"

NEGLIGIBLE = 1e-6
"""$/h below which nothing is saved."""


@dataclass(slots=True)
class Proposal:
    """Commands, best first, per node that stays the reason, and which the budgets held back."""

    commands: list[Command] = field(default_factory=list)
    blocked: dict[str, str] = field(default_factory=dict)
    held_back: frozenset[str] = NOBODY
    verdicts: list[Verdict] = field(default_factory=list)


def obstacle(candidate: Candidate, now: datetime) -> str | None:
    """Return why a node is not consolidated at all, or not yet; or None."""
    disruption = candidate.node_pool.spec.disruption
    if candidate.node_pool.spec.replicas is not None:
        return f"NodePool {candidate.pool} has a fixed number of nodes"
    if not candidate.price:
        return "its instance type, zone and capacity type are not among those of its NodePool"
    if not is_consolidated(candidate.node_pool):
        return f"NodePool {candidate.pool} has consolidation switched off"
    if disruption.consolidation_policy == WHEN_EMPTY:
        return f"NodePool {candidate.pool} consolidates empty nodes only"
    if candidate.anchored:
        return f'Pod "{candidate.anchored}" has a volume on the disk of this node'
    if not conditions.is_true(candidate.claim.status.conditions, CONSOLIDATABLE):
        return f"pods came or went less than {disruption.consolidate_after} ago"
    if any(is_soon_gone(pod, now) for pod in candidate.pods):
        # What they leave behind is room that would be bought elsewhere now.
        return ENDING
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
    proposal = Proposal()
    open_: list[Candidate] = []
    for candidate in candidates:
        reason = (
            AWAITED if candidate.name in simulation.promised else obstacle(candidate, problem.now)
        )
        if reason is None:
            open_.append(candidate)
        else:
            proposal.blocked[candidate.name] = reason
    if not open_:
        return proposal
    searches = [_Search(problem, open_, simulation, expired)]
    conceded = concession(problem, open_)
    if conceded is not None:
        searches.append(_Search.conceding(conceded, expired))
    search, planned, approved = _first_within(budgets, searches)
    names = names_of(approved)
    group_of = {name: group for group in planned.groups for name in group.names}
    proposal.commands = [search.command(group) for group in approved]
    proposal.held_back = planned.names - names
    for candidate in open_:
        if candidate.name in names:
            continue
        if candidate.name in group_of:
            group = group_of[candidate.name]
            both = {one.name: one for some in (*approved, group) for one in some.leaving}
            proposal.blocked[candidate.name] = (
                ONE_BY_ONE
                if group.names <= _within(budgets, both.values())
                else held_back(candidate.pool)
            )
        else:
            proposal.blocked[candidate.name] = (
                LATER if approved else UNSEEN if expired() else search.why_it_stays(candidate)
            )
    proposal.verdicts = search.verdicts(approved)
    return proposal


def _first_within(
    budgets: Budgets, searches: Sequence[_Search]
) -> tuple[_Search, _ConfirmedPlan, list[Group]]:
    """Return whose the best plan is of which budgets let any part go now, that plan, and what
    goes.
    """
    plans = [(search, planned) for search in searches for planned in search.plans()]
    plans.sort(key=lambda each: -each[1].gain)
    for search, planned in plans:
        approved = search.as_bound(search.within(planned, budgets))
        if approved:
            return search, planned, approved
    search, planned = next((each for each in plans if each[1].groups), plans[0])
    for stopgap in (search.instalment, search.next_best):
        approved = stopgap(planned, budgets)
        if approved:
            break
    return search, planned, approved


def confirmed(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    commands: Sequence[Command],
    *,
    simulation: Simulation,
    budgets: Budgets,
    expired: Callable[[], bool] = never,
) -> tuple[list[Command], dict[str, str]]:
    """Return the commands that stand, as they would be given now, and why the nodes of the
    others stay.

    They are carried out together, so they are looked at together: as planned, pod by pod.
    """
    open_ = {
        candidate.name: candidate
        for candidate in candidates
        if candidate.name not in simulation.promised and obstacle(candidate, problem.now) is None
    }
    rejected: dict[str, str] = {}
    left: list[Command] = []
    for command in commands:
        now = [open_[name] for name in sorted(command.names) if name in open_]
        if not command.whole.names <= open_.keys():
            rejected |= dict.fromkeys(command.names, "what runs on it, or is to, has changed")
        elif _within(budgets, now) != command.names:
            rejected |= dict.fromkeys(command.names, "the budgets let fewer nodes go by now")
        else:
            budgets.admit(now)
            left.append(command)
    going = [open_[name] for command in left for name in sorted(command.whole.names)]
    conceded = concession(problem, going)
    if conceded is not None and any(command.conceding for command in left):
        search = _Search.conceding(conceded, expired)
    else:
        search = _Search(problem, going, simulation, expired)
    while left:
        fresh = search.again(left)
        failed = [command for command in left if command.names not in fresh]
        if not failed:
            return [fresh[command.names] for command in left], rejected
        failed = search.culprits(left) or failed
        for changed in failed:
            rejected |= dict.fromkeys(changed.names, "its pods would go elsewhere by now")
        left = [command for command in left if command not in failed]
    return [], rejected


def _within(budgets: Budgets, ordered: Iterable[Candidate]) -> frozenset[str]:
    """Return the names of the first that the budgets let go; the budgets are not spent."""
    return frozenset(candidate.name for candidate in budgets.copy().admit(ordered))


@dataclass(frozen=True, slots=True)
class _ConfirmedPlan:
    """What goes, as far as the engine confirms it; the node that stays that each of the pods goes
    to, by its key; and what that saves, evictions paid, in $/h. Where it `is_proven`, the engine
    has found those nodes, and there is nothing to check.
    """

    groups: tuple[Group, ...]
    homes: Mapping[str, str]
    gain: float
    is_proven: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The names of the nodes that go."""
        return names_of(self.groups)


class _Search:
    """The plan in the making: which nodes should not be there."""

    def __init__(
        self,
        problem: DisruptionProblem,
        open_: Sequence[Candidate],
        simulation: Simulation,
        expired: Callable[[], bool],
        conceded: Concession | None = None,
    ) -> None:
        self._conceded = conceded
        self._problem, self._simulation, self._expired = problem, simulation, expired
        self._open = {candidate.name: candidate for candidate in open_}
        lives = Lives(problem.snapshot.pods, problem.settings, problem.now, problem.begun)
        self._disturbance = {
            candidate.name: sum(max(eviction_cost(pod), 0.0) for pod in candidate.moving)
            for candidate in open_
        }
        least = LEAST_EVICTION * sum(candidate.price for candidate in open_)
        least /= max(sum(self._disturbance.values()), 1.0)
        # What emptying each node costs, in $/h while what is saved lasts.
        self._costs = {
            candidate.name: max(
                self._disturbance[candidate.name] * least,
                sum(map(lives.hourly_price, candidate.moving)),
            )
            + (conceded.price_of(candidate) if conceded is not None else 0.0)
            for candidate in open_
        }
        self._balance = balance.Totals.of(problem)
        self._unbalanced: list[Group] = []
        self._seen: tuple[ClusterModel, Vector, RelaxedPlan] | None = None
        self._model = None if expired() else with_lasting_homes(problem, simulation, self._open)

    @classmethod
    def conceding(cls, conceded: Concession, expired: Callable[[], bool]) -> _Search:
        """Search the cluster in which pods do without what they prefer."""
        problem, open_ = conceded.problem, conceded.candidates
        simulation = Simulation(problem, open_, expired=expired)
        return cls(problem, open_, simulation, expired, conceded)

    def plans(self) -> Iterator[_ConfirmedPlan]:
        """Yield plans, the best first, that are worth it for the whole cluster."""
        if self._model is None:
            empty = [candidate for candidate in self._open.values() if not candidate.moving]
            yield _ConfirmedPlan(tuple(Group(leaving=(candidate,)) for candidate in empty), {}, 0.0)
            return
        model = self._model
        evictions = np.array([self._costs.get(name, 0.0) for name in model.names])
        ways = [replace(model, worth_new=np.full_like(model.worth_new, np.inf))]
        buyable = self._buyable(model)
        if buyable.any():
            ways.append(replace(model, worth_new=np.where(buyable, model.worth_new, np.inf)))
        freest = ways[-1]
        relaxation = relaxed(freest, evictions)
        self._seen = freest, evictions, relaxation
        plans: list[_ConfirmedPlan] = []
        is_large = len(model.names) > MANY_NODES
        for way in reversed(ways) if is_large else ways:
            if not promises(freest, relaxation) or (is_large and any(p.groups for p in plans)):
                break
            own = relaxation if way is freest else relaxed(way, evictions)
            plans.append(self._confirmed_plan(way, evictions, own))
        plans.sort(key=lambda plan: -plan.gain)
        if not any(plan.groups for plan in plans):
            plans = [self._by_engine(model)]
        yield from plans

    def _buyable(self, model: ClusterModel) -> Mask:
        """Mark the classes that new nodes may be bought for: where spot is not exchanged for spot,
        those of which some are on other nodes.
        """
        if self._problem.settings.spot_to_spot:
            return np.isfinite(model.worth_new)
        others = model.present[~self._spot_nodes(model)].any(axis=0)
        buyable: Mask = others & np.isfinite(model.worth_new)
        return buyable

    def within(self, planned: _ConfirmedPlan, budgets: Budgets) -> list[Group]:
        """Return the groups of a plan that go now, the best first, as far as budgets let them."""
        ordered = [
            candidate
            for group in planned.groups
            for candidate in sorted(group.leaving, key=self._dearness)
        ]
        going = _within(budgets, ordered)
        approved = []
        for group in planned.groups:
            if group.names <= going:
                approved.append(group)
            elif group.names & going:
                approved.extend(self._part(planned, group.names & going))
        approved.sort(key=self._rank)
        return approved if planned.is_proven else self._taken_in(approved)

    def _taken_in(self, approved: Sequence[Group]) -> list[Group]:
        """Return the groups whose pods the nodes that stay take in, one after the other.

        A plan is made step by step, and keeps spreads and affinities at each: what leaves later,
        or is held back, may have been what a pod before it was level with, or near. Groups that
        keep them only together become one. Room is there for every part of a plan.
        """
        left = list(approved)
        if self._model is None or not any(self._model.rules):
            return left
        while True:
            plan = self._emptied(names_of(left))
            if plan is None:
                return left
            there = list(self._in_turn(plan, left))
            if names_of(there) == names_of(left):
                return there
            left = there

    def _in_turn(self, plan: Plan, approved: Sequence[Group]) -> Iterator[Group]:
        """Yield groups as a plan in which their nodes are empty takes them in."""
        waiting = list(approved)
        while waiting:
            late = []
            for group in waiting:
                if plan.bring(group.moves):
                    yield group
                else:
                    late.append(group)
            if len(late) == len(waiting):
                company = self._company(plan, waiting)
                if company is None:
                    return
                if self._is_allowed(company) and plan.bring(company.moves):
                    yield company
                late = [group for group in waiting if not group.names <= company.names]
            waiting = late

    def _company(self, plan: Plan, waiting: Sequence[Group]) -> Group | None:
        """Return some groups that a plan takes in together, though none of them alone, as one: as
        few as can be, and of the best; None where there are none.
        """
        some = list(waiting[:ENGINE_TRIES])
        while homeless := plan.homeless(joined(some).moves):
            some = [
                group
                for group in some
                if homeless.isdisjoint(key for keys in group.moves.values() for key in keys)
            ]
        if self._expired() or not some:
            return None
        for group in some[::-1]:
            fewer = [other for other in some if other is not group]
            if fewer and not plan.homeless(joined(fewer).moves):
                some = fewer
        return joined(some)

    def as_bound(self, approved: Sequence[Group]) -> list[Group]:
        """Return so many of the best groups as save most once kube-scheduler has brought their
        pods where it likes. Where savings alone count, pods go where they are planned.

        That is asked however late it is: halves upon halves are no more than twice the first, and
        a plan that nobody has judged would be made again and again in vain.
        """
        if not self._problem.settings.eviction_price or len(self._open) > MANY_NODES:
            return list(approved)
        best, most = list[Group](), NEGLIGIBLE
        left = list(approved)
        while left:
            saved = sum(map(self._net, left))
            if saved <= most:
                break
            over = cost_of_left_over(
                self._simulation.placed,
                [self.command(group) for group in left],
                catalog=self._simulation.catalog,
            )
            if saved - over > most:
                best, most = left, saved - over
            left = self._taken_in(left[: len(left) // 2])
        return best

    def _part(self, planned: _ConfirmedPlan, going: frozenset[str]) -> list[Group]:
        """Return what is worth it still when of a group only these nodes go."""
        while going:
            departure = self._simulation.carried_out(going, planned.homes)
            good = self.approved(departure) if departure is not None else []
            left = names_of(good)
            if left == going:
                return good
            going = left
        return []

    @cached_property
    def _alone(self) -> tuple[Plan, Mapping[str, float]] | None:
        """What says of a node that stays what its own removal would come to: a plan in which
        everybody stays, and what the pods of each node are worth.
        """
        if self._seen is None:
            return None
        model, evictions, relaxation = self._seen
        anywhere = (self._model or model).worth_new * HOLES
        worth = model.present @ np.minimum(relaxation.values, anywhere)
        plan = Plan(model, evictions, relaxation.room_price)
        return plan, dict(zip(model.names, worth.tolist(), strict=True))

    def _confirmed_plan(
        self, model: ClusterModel, evictions: Vector, relaxation: RelaxedPlan
    ) -> _ConfirmedPlan:
        """Return the best plan by the arrays, as far as the engine confirms it."""
        plan = searched(model, evictions, relaxation, expired=self._expired)
        going = np.flatnonzero(plan.leaving).tolist()
        names = frozenset(model.names[place] for place in going)
        homes = plan.homes(last=self._spot_nodes(model))
        departure = self._simulation.carried_out(names, homes)
        if departure is None:
            stay = frozenset(
                name for name in names for pod in self._open[name].moving if pod.key not in homes
            )
            departure = self._simulation.carried_out(names - stay, homes)
        good = self.approved(departure) if departure is not None else []
        return _ConfirmedPlan(tuple(good), homes, sum(map(self._net, good)))

    def _by_engine(self, model: ClusterModel) -> _ConfirmedPlan:
        """Return a node that the engine finds worth it alone, of those that arrays cannot judge."""
        odd = model.present[:, model.intricate].any(axis=1)
        return self._alone_by_engine(
            model.names[place] for place in np.flatnonzero(odd & model.candidate).tolist()
        )

    def _spot_nodes(self, model: ClusterModel) -> Mask:
        spot = [name in self._open and self._open[name].is_spot for name in model.names]
        return np.array(spot, dtype=np.bool_)

    def instalment(self, planned: _ConfirmedPlan, budgets: Budgets) -> list[Group]:
        """Return the first step towards the best group of a plan that budgets let go in part only,
        if the whole pays though one of its new nodes stands half empty until the others have
        followed.
        """
        settings = self._problem.settings
        if not settings.instalments or planned.is_proven or self._conceded is not None:
            return []
        for whole in [group for group in planned.groups if group.replacements][:ENGINE_TRIES]:
            saved = self._net(whole) * (settings.horizon / HOUR)
            if self._expired() or not self.as_bound([whole]):
                continue
            for new in sorted(affordable(whole, self._problem) or (), key=lambda new: -new.price):
                first = self._first(whole, new, planned.homes, budgets)
                if first is None:
                    continue
                steps = math.ceil(len(whole.leaving) / len(first.leaving))
                if steps <= MOST_STEPS and new.price * steps * (STEP / HOUR) < saved:
                    return [first]
        return []

    def _first(
        self, whole: Group, new: NewNode, homes: Mapping[str, str], budgets: Budgets
    ) -> Group | None:
        """Return how as many of a group's nodes go as budgets let, for one of its new nodes."""
        pods = frozenset(new.pods)

        def strangers(candidate: Candidate) -> int:
            return sum(pod.key not in homes and pod.key not in pods for pod in candidate.moving)

        sharing = [one for one in whole.leaving if any(pod.key in pods for pod in one.moving)]
        sharing.sort(key=lambda one: (strangers(one), *self._dearness(one)))
        going = budgets.copy().admit(sharing)
        if len(going) == len(sharing):
            return None  # nobody would follow
        pool, types = self._problem.node_pools[new.node_pool], self._problem.snapshot.instance_types
        heir = launched("heir", new, pool, types[new.node_pool], self._problem.now)
        while going:
            departure = self._simulation.taken_in(heir, {one.name for one in going}, homes)
            if departure is not None:
                moves = dict(departure.results.existing_nodes)
                mine = replace(new, pods=moves.pop(heir.name, ()))
                return Group(
                    leaving=departure.leaving, replacements=(mine,), moves=moves, whole=whole
                )
            going.pop()
        return None

    def next_best(self, planned: _ConfirmedPlan, budgets: Budgets) -> list[Group]:
        """Return what goes of a plan of which budgets let no part go as planned: the first of its
        nodes that is worth it alone.
        """
        alone = (name for name in planned.names if _within(budgets, [self._open[name]]))
        return list(self._alone_by_engine(alone).groups)

    def _alone_by_engine(self, names: Iterable[str]) -> _ConfirmedPlan:
        """Return the first of some nodes, the dearest per eviction first, that the engine finds
        worth it alone.
        """
        ranked = sorted(
            names,
            key=lambda name: (-self._open[name].price / (1.0 + self._disturbance[name]), name),
        )
        for name in ranked[:ENGINE_TRIES]:
            departure = None if self._expired() else self._simulation.without({name})
            good = self.as_bound(self.approved(departure)) if departure is not None else []
            if good and departure is not None:
                homes = _homes(departure.results.existing_nodes)
                return _ConfirmedPlan(tuple(good), homes, departure.saving, is_proven=True)
        return _ConfirmedPlan((), {}, 0.0)

    def _net(self, group: Group) -> float:
        return group.saving - sum(self._costs[name] for name in group.names)

    def _is_allowed(self, group: Group) -> bool:
        """Whether its nodes can be bought for less than is saved, and balanced pools agree."""
        return affordable(group, self._problem) is not None and self._balance.approves(group)

    def approved(self, departure: Departure) -> list[Group]:
        """Return the groups of a final departure that save more than they cost, best first."""
        good = [
            group
            for group in groups(departure)
            if self._is_allowed(group) and self._net(group) > NEGLIGIBLE
        ]
        return sorted(good, key=self._rank)

    def again(self, commands: Sequence[Command]) -> dict[frozenset[str], Command]:
        """Return those of some commands, by their nodes, that can be carried out as they were
        planned, one after the other, and are still worth it.
        """
        if self._expired():
            return {}
        homes = {
            key: node for command in commands for key, node in _homes(command.whole.moves).items()
        }
        same = [command for command in commands if self._is_unchanged(command.whole)]
        plan = self._emptied({name for command in commands for name in command.whole.names})
        there = [command for command in same if self._finds_room(command.whole, plan)]
        names = frozenset(name for command in there for name in command.whole.names)
        departure = self._simulation.carried_out(names, homes) if names else None
        if not there and len(commands) == len(same) == 1:
            # What the arrays cannot judge the engine has found, and finds again.
            there, departure = same, self._simulation.without(same[0].whole.names)
            if departure is not None and _homes(departure.results.existing_nodes) != homes:
                return {}
        if departure is None:
            return {}
        group_of = {name: group for group in self.approved(departure) for name in group.names}
        fresh = {}
        for command in there:
            group = self._made_of(group_of, command.whole.names)
            if group is not None and is_like(command.whole.replacements, group.replacements):
                fresh[command.names] = self._afresh(command, group)
        return fresh

    def _made_of(self, group_of: Mapping[str, Group], names: frozenset[str]) -> Group | None:
        """Return the group of exactly these nodes, or those that make it up as one; None where
        there are none. `group_of` tells of which group a node is, by its name.
        """
        parts = {
            min(group.names): group for name in names if (group := group_of.get(name)) is not None
        }
        if names_of(parts.values()) != names:
            return None
        if len(parts) == 1:
            return next(iter(parts.values()))
        whole = joined(list(parts.values()))
        return whole if self._is_allowed(whole) else None

    def _afresh(self, command: Command, group: Group) -> Command:
        """Return a command as it would be given now that this is its group, or that of the whole
        it is part of.
        """
        if command.part_of is None:
            return self.command(group)
        now = tuple(self._open[candidate.name] for candidate in command.candidates)
        return replace(command, candidates=now, part_of=self.command(group))

    def culprits(self, commands: Sequence[Command]) -> list[Command]:
        """Return the commands that would not be given even if the others were not: theirs is the
        change that the others may have failed for.
        """
        return [command for command in commands if command.names not in self.again([command])]

    def _emptied(self, leaving: Collection[str]) -> Plan | None:
        """Return the cluster once these nodes are empty."""
        if self._model is None:
            return None
        nodes, resources = self._model.room.shape
        plan = Plan(self._model, np.zeros(nodes), np.zeros((nodes, resources)))
        for place, name in enumerate(self._model.names):
            if name in leaving:
                plan.clear(place)
        return plan

    def _is_unchanged(self, command: Command) -> bool:
        """Whether the pods on its nodes are those that were planned for."""
        planned = {key for keys in command.moves.values() for key in keys}
        planned.update(key for new in command.replacements for key in new.pods)
        return planned == {
            pod.key for candidate in command.candidates for pod in self._open[candidate.name].moving
        }

    def _finds_room(self, command: Command, plan: Plan | None) -> bool:
        """Whether those that go to nodes that stay still find room there, which they take."""
        return not command.evictions if plan is None else plan.bring(command.moves)

    def _dearness(self, candidate: Candidate) -> tuple[float, str]:
        """Order nodes: first those that cost least to empty for what they cost."""
        return self._costs[candidate.name] / candidate.price, candidate.name

    def _rank(self, group: Group) -> tuple[float, list[str]]:
        """Order groups: the best bargain first."""
        return -self._per_eviction(group), sorted(group.names)

    def _per_eviction(self, group: Group) -> float:
        moved = sum(self._disturbance[name] for name in group.names)
        return group.saving / max(moved, NEGLIGIBLE)

    def command(self, group: Group) -> Command:
        """Return the command that carries a group out."""
        replacements = group.replacements if group.whole else affordable(group, self._problem)
        assert replacements is not None
        evictions = sum(len(candidate.moving) for candidate in group.leaving)
        conceding, leaving = 0, group.leaving
        if self._conceded is not None:
            conceding = sum(map(self._conceded.number, leaving))
            leaving = self._conceded.restored(leaving)
        return Command(
            REASON,
            leaving,
            replacements=replacements,
            moves=group.moves,
            saving=group.saving,
            evictions=evictions,
            conceding=conceding,
            why=_why(group, evictions, conceding),
            part_of=self.command(group.whole) if group.whole is not None else None,
        )

    def verdicts(self, approved: Sequence[Group]) -> list[Verdict]:
        """Return what the pools say of these groups, and of the nodes that stay for them alone."""
        weighed = (*approved, *self._unbalanced)
        return [verdict for group in weighed for verdict in self._balance.verdicts(group)]

    def why_it_stays(self, candidate: Candidate) -> str:
        """Say what the node's own removal would come to."""
        if self._alone is None:
            return NOWHERE
        plan, worth_of = self._alone
        node, worth = plan.model.places[candidate.name], worth_of[candidate.name]
        moved = len(candidate.moving)
        if not plan.model.candidate[node]:
            return NOWHERE
        if worth >= candidate.price:
            return _nothing_cheaper(candidate, worth)
        if candidate.is_spot and not self._problem.settings.spot_to_spot:
            return SPOT_AGAIN
        before = plan.mark()
        plan.turn(node)
        cost = plan.price_of_bought()
        plan.undo(before)
        if not np.isfinite(cost):
            return NOWHERE
        saving = candidate.price - cost
        if saving <= NEGLIGIBLE:
            return _nothing_cheaper(candidate, cost)
        group = Group(leaving=(candidate,))
        if cost == 0.0 and not self._balance.approves(group):
            self._unbalanced.append(group)
            return f"the balance of NodePool {candidate.pool} is against it: it saves too little"
        if saving <= self._costs[candidate.name]:
            return (
                f"it would save {saving:.4f} $/h, less than moving {moved} pods costs "
                f"({self._costs[candidate.name]:.4f} $/h until it pays)"
            )
        return SPOT_AGAIN


def _homes(moves: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the node of each pod, by its key, given the pods that come to each node."""
    return {key: node for node, keys in moves.items() for key in keys}


def _nothing_cheaper(candidate: Candidate, cost: float) -> str:
    return (
        f"nothing cheaper was found: its {len(candidate.moving)} pods would cost "
        f"{cost:.4f} $/h elsewhere, the node costs {candidate.price:.4f} $/h"
    )


def _why(group: Group, evictions: int, conceding: int) -> str:
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
        + (f"; {conceding} of them do without what they prefer" if conceding else "")
        + (f"; {_follow(group, group.whole)}" if group.whole is not None else "")
    )


def _follow(first: Group, whole: Group) -> str:
    later = len(whole.leaving) - len(first.leaving)
    return f"as budgets let {later} more follow, which saves {whole.saving:.4f} $/h in all"
