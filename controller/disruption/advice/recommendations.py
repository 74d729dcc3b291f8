"""Recommends changes after which a node that stays would be disrupted.

Each recommendation is verified first: the change is applied to a copy of the cluster, and the node
is evaluated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE, DRIFTED
from controller.apis.karpenter.nodepool import WHEN_EMPTY, Budget, DisruptionPolicy, NodePool
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Pod
from controller.apis.wording import first_three
from controller.disruption.budgets import budgets_of
from controller.disruption.commands import Command, Decision, Reason
from controller.disruption.consolidateafter import quiet_since
from controller.disruption.costs import HOUR, SavingDurations
from controller.disruption.methods.consolidation.balance import BALANCED
from controller.disruption.methods.consolidation.method import LATER
from controller.disruption.methods.consolidation.preferenceprices import without_preferences
from controller.disruption.methods.order import decide
from controller.disruption.pods import is_soon_gone
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.scheduler import never
from controller.scheduling.settings import IGNORE
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable

BELOW = 1.0 - 1e-6
"""The share of a price that is tried for "below" that price."""

SHARES = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.1)
"""The shares of the highest possible price that are tried, in order."""

WAITS = tuple(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120))
"""The waiting times that are tried for an unchanged cluster, in order."""

ANY_NUMBER = [Budget(nodes="100%")]

OTHERS = "Another node is evaluated"

Made = Callable[[DisruptionProblem], DisruptionProblem]


@dataclass(frozen=True, slots=True)
class Change:
    """A possible change: its text, and a function that applies it to the cluster."""

    text: str
    made: Made


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A node that stays, and its explanation so far; prices are in $/h.

    `held` are the keys of its pods that are blocked or not schedulable elsewhere. `alternative`
    is the cost of capacity for its pods elsewhere, None if unknown; `without_preferences` is the
    same cost when the pods' preferences are ignored. `expired` returns true when the time limit is
    reached.
    """

    problem: DisruptionProblem
    state: StateNode
    pods: Sequence[Pod]
    held: Collection[str]
    price: float | None
    alternative: float | None
    without_preferences: float | None
    expired: Callable[[], bool] = never

    @property
    def name(self) -> str:
        """The node's name."""
        return self.state.name

    @property
    def pool(self) -> NodePool:
        """The node's NodePool."""
        return self.problem.node_pools[self.state.node_pool]

    @property
    def moving(self) -> list[Pod]:
        """The node's pods that would move."""
        return [pod for pod in self.pods if is_reschedulable(pod)]

    @property
    def is_drifted(self) -> bool:
        """Whether the node has drifted, so that it is disrupted whatever the replacement costs."""
        claim = self.state.claim
        return claim is not None and conditions.is_true(claim.status.conditions, DRIFTED)


def recommendations(question: Question) -> tuple[str, ...]:
    """Return the changes after each of which the node would be disrupted now.

    Empty if none was found, or if the node belongs to no NodePool of Joiner's.
    """
    problem, state = question.problem, question.state
    if state.claim is None or state.node is None or state.node_pool not in problem.node_pools:
        return ()
    if question.pool.spec.replicas is not None and not question.is_drifted:
        return (f"reduce spec.replicas of NodePool {state.node_pool}",)
    needed = list(_needed_changes(question))
    lifted = _all(change.made for change in needed)(problem)
    texts = [change.text for change in needed]
    if _is_disrupted(question, lifted):
        return ("; and ".join(texts),) if texts else ()
    ways = () if question.is_drifted else _sufficient_changes(question, lifted)
    found = [way.text for way in ways if _is_disrupted(question, way.made(lifted))]
    if not found and not question.is_drifted:
        way = _moving_pods_away(question)
        found = [way.text] if _is_disrupted(question, way.made(lifted)) else []
    return tuple("; and ".join((*texts, text)) for text in found)


def _is_disrupted(question: Question, problem: DisruptionProblem) -> bool:
    """Return whether the node would be disrupted now if it were the only candidate."""
    if question.expired():
        return False
    command, why = verdict(problem, question.name, question.expired)
    if command is None and why == LATER:
        command, _ = _alone(problem, question.name, question.expired)
    return command is not None


def verdict(
    problem: DisruptionProblem, name: str, expired: Callable[[], bool]
) -> tuple[Command | None, str]:
    """Return the command that disrupts the node now, or None and the reason why it stays."""
    decision = decide(problem, expired=expired)
    command = _command(decision, name)
    if command is None and name not in decision.blocked:
        # Another method returned commands before this node was evaluated: evaluate it alone.
        return _alone(problem, name, expired)
    return command, decision.blocked.get(name, "")


def _alone(
    problem: DisruptionProblem, name: str, expired: Callable[[], bool]
) -> tuple[Command | None, str]:
    others = {node.name: OTHERS for node in problem.snapshot.nodes if node.name != name}
    decision = decide(replace(problem, kept={**problem.kept, **others}), expired=expired)
    return _command(decision, name), decision.blocked.get(name, "")


def _command(decision: Decision, name: str) -> Command | None:
    return next((command for command in decision.commands if name in command.names), None)


def _all(changes: Iterator[Made]) -> Made:
    some = list(changes)

    def make_all(problem: DisruptionProblem) -> DisruptionProblem:
        for change in some:
            problem = change(problem)
        return problem

    return make_all


# Changes without which no other change helps.


def _needed_changes(question: Question) -> Iterator[Change]:
    """Yield the changes without which no other change helps: blocked nodes, pods and budgets."""
    state, name = question.state, question.name
    assert state.node is not None
    if state.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
        yield Change(
            f"remove the annotation {labels.DO_NOT_DISRUPT} from the node",
            lambda problem: _with_node(problem, name, _without_annotations),
        )
    if question.held:
        yield Change(
            f"unblock {first_three(sorted(question.held))} (see the pod)",
            lambda problem: _without_pods(problem, question.held),
        )
    reason = Reason.EMPTY if not question.moving else Reason.UNDERUTILIZED
    reason = Reason.DRIFTED if question.is_drifted else reason
    budgets = budgets_of(question.problem, reason)
    if not budgets.allows(state.node_pool, state.node):
        stuck = first_three(budgets.stuck(state.node_pool))
        yield Change(
            f"{f'unblock {stuck}, or ' if stuck else ''}"
            f"allow a disruption for reason {reason.value} in the budgets of NodePool "
            f"{state.node_pool}",
            lambda problem: _with_policy(problem, state.node_pool, budgets=ANY_NUMBER),
        )
    if not question.is_drifted:
        yield from _needed_to_consolidate(question)


def _needed_to_consolidate(question: Question) -> Iterator[Change]:
    """Yield the changes without which consolidation does not evaluate the node."""
    pool, disruption = question.state.node_pool, question.pool.spec.disruption
    if disruption.consolidation_policy == WHEN_EMPTY and question.moving:
        yield Change(
            "set consolidationPolicy to WhenEmptyOrUnderutilized, or move its pods away",
            lambda problem: _with_policy(
                problem, pool, consolidation_policy="WhenEmptyOrUnderutilized"
            ),
        )
    never_consolidated = disruption.consolidate_after == "Never"
    if never_consolidated:
        yield Change(
            "set consolidateAfter to a duration instead of Never",
            lambda problem: _as_consolidatable(
                _with_policy(problem, pool, consolidate_after="0s"), question.name
            ),
        )
    claim = question.state.claim
    assert claim is not None
    if not never_consolidated and not conditions.is_true(claim.status.conditions, CONSOLIDATABLE):
        yield Change(
            f"wait for {disruption.consolidate_after} without pod changes"
            f"{_when_quiet(question, disruption)}",
            lambda problem: _as_consolidatable(problem, question.name),
        )
    ending = [pod.key for pod in question.pods if is_soon_gone(pod, question.problem.now)]
    if ending:
        yield Change(
            f"wait until {first_three(ending)} {'has' if len(ending) == 1 else 'have'} terminated",
            lambda problem: _without_pods(problem, ending),
        )


def _when_quiet(question: Question, disruption: DisruptionPolicy) -> str:
    assert question.state.claim is not None
    since, wait = quiet_since(question.state.claim), durations.parse(disruption.consolidate_after)
    if since is None or wait is None:
        return ""
    left = min(since, question.problem.now) + wait - question.problem.now
    return f": consolidatable {in_about(left)} if its pods do not change"


def in_about(left: timedelta) -> str:
    """Return a duration in words, such as "in about 4 min"."""
    seconds = left.total_seconds()
    if seconds <= 0:
        return "in a moment"
    if seconds < 60:
        return f"in about {math.ceil(seconds)} s"
    if seconds < 2 * 3600:
        return f"in about {math.ceil(seconds / 60)} min"
    return f"in about {math.ceil(seconds / 3600)} h"


# Changes that may help, each by itself.


def _sufficient_changes(question: Question, lifted: DisruptionProblem) -> Iterator[Change]:
    """Yield changes of the policy, the feature gates and the prices that may each suffice."""
    if question.pool.spec.disruption.consolidation_policy == BALANCED:
        yield Change(
            "set consolidationPolicy to WhenEmptyOrUnderutilized instead of Balanced in NodePool "
            f"{question.state.node_pool}",
            lambda problem: _with_policy(
                problem,
                question.state.node_pool,
                consolidation_policy="WhenEmptyOrUnderutilized",
            ),
        )
    if not question.problem.settings.spot_to_spot:
        yield Change(
            "set SpotToSpotConsolidation=true in FEATURE_GATES",
            lambda problem: replace(problem, settings=replace(problem.settings, spot_to_spot=True)),
        )
    yield from _prices(question, lifted)
    yield from _preferences(question, lifted)


def _prices(question: Question, lifted: DisruptionProblem) -> Iterator[Change]:
    """Yield the changes that make evicting the node's pods cost less than the saving."""
    settings = lifted.settings
    moves = _eviction_cost(question, lifted)
    if question.price is None or question.alternative is None or not settings.eviction_price:
        return
    saving = question.price - question.alternative
    if saving <= 0 or moves <= 0:
        return
    lower = _highest_price(
        question, lifted, settings.eviction_price * min(saving / moves, 1.0), _at_eviction_price
    )
    if lower:
        yield Change(
            f"set DISRUPTION_EVICTION_PRICE below {lower:.4f}",
            partial(_at_eviction_price, price=lower * BELOW),
        )
    else:
        yield Change("set DISRUPTION_EVICTION_PRICE=0", partial(_at_eviction_price, price=0.0))
    longer = timedelta(hours=math.ceil(settings.horizon * (moves / saving) / HOUR + 1e-9))
    yield Change(
        f"set DISRUPTION_HORIZON={longer // HOUR}h",
        lambda problem: replace(problem, settings=replace(problem.settings, horizon=longer)),
    )
    for wait in WAITS:
        later = _later(lifted, wait)
        if _eviction_cost(question, later) < saving and _is_disrupted(question, later):
            yield Change(
                f"wait: disrupted {in_about(wait)} if no pod of the cluster is replaced",
                partial(_later, wait=wait),
            )
            return


def _at_eviction_price(problem: DisruptionProblem, price: float) -> DisruptionProblem:
    return replace(problem, settings=replace(problem.settings, eviction_price=price))


def _highest_price(
    question: Question,
    lifted: DisruptionProblem,
    most: float,
    at: Callable[[DisruptionProblem, float], DisruptionProblem],
) -> float:
    """Return a price, close to the highest, below which the node is disrupted; 0 if none is."""
    for share in SHARES:
        price = math.floor(most * share * 1e4 + 1e-6) / 1e4
        if price > 0 and _is_disrupted(question, at(lifted, price * BELOW)):
            return price
    return 0.0


def _eviction_cost(question: Question, problem: DisruptionProblem) -> float:
    """Return the cost of evicting the node's pods, in $/h while the saving lasts."""
    lives = SavingDurations(problem)
    return sum(map(lives.hourly_price, question.moving))


def _later(problem: DisruptionProblem, wait: timedelta) -> DisruptionProblem:
    return replace(problem, now=problem.now + wait)


def _preferences(question: Question, lifted: DisruptionProblem) -> Iterator[Change]:
    """Yield the preference price at which the node could be disrupted."""
    demanding = [pod for pod in question.moving if without_preferences(pod) is not pod]
    least = question.without_preferences
    if question.problem.scheduling.preference_policy == IGNORE or not demanding:
        return
    if question.price is None or least is None or question.alternative in (0.0, least):
        return
    keys = {pod.key for pod in demanding}

    def at(problem: DisruptionProblem, price: float) -> DisruptionProblem:
        return problem.with_pods(
            keys, lambda pod: _with_annotation(pod, labels.PREFERENCE_PRICE, price)
        )

    most = (question.price - least - _eviction_cost(question, lifted)) / len(demanding)
    if (worth := _highest_price(question, lifted, most, at)) > 0:
        yield Change(
            f"set {labels.PREFERENCE_PRICE} below {worth:.4f} on its pods: only their preferences "
            "keep the node",
            partial(at, price=worth * BELOW),
        )


def _moving_pods_away(question: Question) -> Change:
    """Return the last recommendation: to move the pods away from the node."""
    why = ""
    dear = question.alternative
    if question.price is not None and dear is not None and dear >= question.price:
        why = (
            f", or provide cheaper capacity for them: it costs {dear:.4f} $/h elsewhere, the node "
            f"costs {question.price:.4f} $/h"
        )
    keys = {pod.key for pod in question.moving}
    return Change(f"move its pods away{why}", lambda problem: _without_pods(problem, keys))


# Changed clusters.


def _with_policy(problem: DisruptionProblem, name: str, **fields: object) -> DisruptionProblem:
    changed = with_fields(problem.node_pools[name], "spec.disruption", **fields)
    snapshot = replace(
        problem.snapshot,
        node_pools=tuple(
            changed if other.metadata.name == name else other
            for other in problem.snapshot.node_pools
        ),
    )
    return replace(problem, snapshot=snapshot, node_pools={**problem.node_pools, name: changed})


def _with_node(
    problem: DisruptionProblem, name: str, changed: Callable[[StateNode], StateNode]
) -> DisruptionProblem:
    nodes = tuple(changed(node) if node.name == name else node for node in problem.snapshot.nodes)
    return replace(problem, snapshot=replace(problem.snapshot, nodes=nodes))


def _without_annotations(state: StateNode) -> StateNode:
    assert state.node is not None
    return replace(state, node=with_fields(state.node, "metadata", annotations={}))


def _as_consolidatable(problem: DisruptionProblem, name: str) -> DisruptionProblem:
    def quiet(state: StateNode) -> StateNode:
        assert state.claim is not None
        there = conditions.with_condition(
            state.claim.status.conditions, CONSOLIDATABLE, "True", generation=0, now=problem.now
        )
        return replace(state, claim=with_fields(state.claim, "status", conditions=there))

    return _with_node(problem, name, quiet)


def _without_pods(problem: DisruptionProblem, keys: Collection[str] = ()) -> DisruptionProblem:
    pods = tuple(pod for pod in problem.snapshot.pods if pod.key not in keys)
    return replace(problem, snapshot=replace(problem.snapshot, pods=pods))


def _with_annotation(pod: Pod, name: str, value: float) -> Pod:
    annotations = {**pod.metadata.annotations, name: str(value)}
    return with_fields(pod, "metadata", annotations=annotations)
