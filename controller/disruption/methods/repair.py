"""Repair: replaces nodes that have been unhealthy for longer than their condition is tolerated.

Karpenter 1.15 repairs the same way: within the budgets of the reason Unhealthy, and replacement
first. `karpenter.sh/do-not-disrupt` on the node does not prevent it, `karpenter.sh/do-not-repair`
does. If many nodes of a NodePool are unhealthy at once, the cause is probably not the nodes: the
network, an AMI or the monitoring. Then none of the NodePool's nodes is repaired.

A gang that runs on an unhealthy node restarts as a whole: its pods on other nodes are evicted, too,
and their nodes stay. Budgets count the unhealthy node alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import REBOOTING, NodeClaim
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.wording import with_count
from controller.cloudprovider.provider import RepairPolicy
from controller.disruption import candidates
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate, Command, Confirmation, Reason
from controller.disruption.costs import rescheduling_cost
from controller.disruption.gangs import restarting_pods
from controller.disruption.methods.drift import confirm_each, is_static, with_replacements
from controller.disruption.methods.method import Context, Method, Proposal
from controller.disruption.methods.staticdrift import means_of
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.state.nodes import is_initialized

MOST_REBOOTS, REBOOT_WINDOW = 2, timedelta(hours=24)
"""How often a node is rebooted for repair within this time, before it is replaced instead."""

MOST_UNHEALTHY = 0.2
"""The share of a NodePool's nodes, rounded up, up to which unhealthy nodes are repaired."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An unhealthy condition of a node, and the policy for it."""

    condition: Condition
    policy: RepairPolicy
    since: datetime | None
    """When the node was created, or last rebooted for repair."""

    @property
    def due(self) -> datetime | None:
        """The time from which the condition is not tolerated; None if its start is unknown.

        A condition cannot be older than the boot of its node.
        """
        known = [at for at in (self.condition.last_transition_time, self.since) if at is not None]
        return max(known) + self.policy.toleration if known else None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why and how a node is repaired.

    `condition` is the unhealthy condition that was due first. If some of them require a
    replacement, it is the first of those. `due` is the time from which the first of all unhealthy
    conditions was not tolerated. `drain_bound` is the shortest time that a policy gives the drain,
    None if no policy limits it. `reboots`: the node is rebooted, and replaced only if the reboot
    fails.
    """

    condition: Condition
    due: datetime
    drain_bound: timedelta | None
    reboots: bool = False


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """The nodes to repair, the most urgent first, and why other unhealthy nodes are not repaired.

    `blocked` and `suspended` map node names to reasons. `suspended` has the nodes of NodePools with
    too many unhealthy nodes.
    """

    due: tuple[tuple[Candidate, Diagnosis], ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)
    suspended: Mapping[str, str] = field(default_factory=dict)


def faults(
    node: Node, policies: Iterable[RepairPolicy], claim: NodeClaim | None = None
) -> Iterator[Fault]:
    """Yield the unhealthy conditions of a node, regardless of their age.

    `claim` is the node's NodeClaim, which records the last reboot for repair.

    A policy without reasons applies if no other policy for the condition names its reason.
    """
    by_condition: dict[tuple[str, str], list[RepairPolicy]] = {}
    for policy in policies:
        by_condition.setdefault((policy.condition, policy.status), []).append(policy)
    for condition in node.status.conditions:
        every = by_condition.get((condition.type, condition.status), [])
        named = [p for p in every if p.reasons and re.search(p.reasons, condition.reason or "")]
        for policy in named or [policy for policy in every if not policy.reasons]:
            yield Fault(condition, policy, _since(node, claim))


def _since(node: Node, claim: NodeClaim | None) -> datetime | None:
    """Return when a node was created, or when its last reboot ended."""
    ended = conditions.find(claim.status.conditions, REBOOTING) if claim is not None else None
    if ended is not None and ended.status == "False":
        return ended.last_transition_time
    return node.metadata.creation_timestamp


def reboots(claim: NodeClaim, now: datetime) -> list[datetime]:
    """Return when a node was rebooted for repair within `REBOOT_WINDOW`."""
    named = claim.metadata.annotations.get(labels.REBOOTED_AT, "")
    times = map(_time, filter(None, named.split(",")))
    return [at for at in times if at is not None and at > now - REBOOT_WINDOW]


def _time(text: str) -> datetime | None:
    """Return the time in an annotation; None if it is not a time with a time zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def diagnosis(
    node: Node, policies: Iterable[RepairPolicy], now: datetime, claim: NodeClaim | None = None
) -> Diagnosis | None:
    """Return why a node must be repaired now, or None if it must not."""
    found = [
        (at, fault)
        for fault in faults(node, policies, claim)
        if (at := fault.due) is not None and at <= now
    ]
    if not found:
        return None
    # A reboot does not clear a fault for which the node must be replaced.
    replacing = [one for one in found if not one[1].policy.reboots]
    _, cause = min(replacing or found, key=lambda one: (one[0], one[1].condition.type))
    bounds = (fault.policy.drain_bound for _, fault in found)
    return Diagnosis(
        cause.condition,
        min(due for due, _ in found),
        min((each for each in bounds if each is not None), default=None),
        not replacing and (claim is None or len(reboots(claim, now)) < MOST_REBOOTS),
    )


def unhealthy(problem: DisruptionProblem) -> Unhealthy:
    """Return the nodes to repair, and why other unhealthy nodes are not repaired now."""
    policies = problem.repair_policies
    if not policies:
        return Unhealthy()
    due: list[tuple[Candidate, Diagnosis]] = []
    blocked: dict[str, str] = {}
    for state, candidate in candidates.registered_nodes(problem):
        found = diagnosis(candidate.node, policies, problem.now, candidate.claim)
        if found is None:
            continue
        obstacle = candidates.pause(state, problem) or _veto(candidate, found, problem)
        if obstacle is None:
            due.append((candidate, found))
        else:
            blocked[candidate.name] = obstacle
    closed = _closed_pools(problem) if due else frozenset[str]()
    due.sort(
        key=lambda one: (
            one[1].due,
            rescheduling_cost(one[0].moving, problem.settings),
            one[0].name,
        ),
    )
    return Unhealthy(
        tuple(one for one in due if one[0].pool not in closed),
        blocked,
        {
            candidate.name: f"more than {MOST_UNHEALTHY:.0%} of nodes in nodepool "
            f'"{candidate.pool}" are unhealthy'
            for candidate, _ in due
            if candidate.pool in closed
        },
    )


def _veto(candidate: Candidate, found: Diagnosis, problem: DisruptionProblem) -> str | None:
    for owned in (candidate.node.metadata, candidate.claim.metadata):
        if owned.annotations.get(labels.DO_NOT_REPAIR) == "true":
            return f'repair is blocked through the "{labels.DO_NOT_REPAIR}" annotation'
    if _drain_bound(candidate, found) is None and candidates.pods_block(candidate, problem):
        return "repair requires a termination grace period to bypass blocking pods"
    return None


def _drain_bound(candidate: Candidate, found: Diagnosis) -> timedelta | None:
    """Return how long the drain of a node may take, by its policy or its NodeClaim."""
    own = durations.parse(candidate.claim.spec.termination_grace_period)
    return min((each for each in (own, found.drain_bound) if each is not None), default=None)


def with_cause(command: Command, problem: DisruptionProblem) -> Command:
    """Return the repair command with the node's present condition and drain bound."""
    (candidate,) = command.candidates
    found = diagnosis(candidate.node, problem.repair_policies, problem.now, candidate.claim)
    if found is None:
        return command
    return replace(
        command,
        condition=found.condition.type,
        drain_bound=_drain_bound(candidate, found),
        reboots=found.reboots,
    )


def _closed_pools(problem: DisruptionProblem) -> frozenset[str]:
    """Return the NodePools with too many unhealthy nodes, including tolerated conditions."""
    total: Counter[str] = Counter()
    unhealthy_nodes: Counter[str] = Counter()
    for state in problem.snapshot.nodes:
        if state.node is not None and state.node_pool:
            total[state.node_pool] += 1
            unhealthy_nodes[state.node_pool] += any(
                True for _ in faults(state.node, problem.repair_policies)
            )
    return frozenset(
        pool
        for pool, count in total.items()
        if unhealthy_nodes[pool] > math.ceil(MOST_UNHEALTHY * count)
    )


class Repair(Method):
    """Replaces unhealthy nodes, one command at a time."""

    reason = Reason.UNHEALTHY

    def eligible(self, context: Context) -> list[Candidate]:
        """Return the nodes to repair, whatever budgets allow."""
        return [candidate for candidate, _ in unhealthy(context.problem).due]

    def propose(self, context: Context) -> Proposal:
        """Return the command for the most urgent node that can be repaired now."""
        found = unhealthy(context.problem)
        return _next(context, found.due, context.budgets(self.reason)) if found.due else Proposal()

    def validate(self, context: Context, commands: Sequence[Command]) -> Confirmation:
        """Return the commands that are proposed again, each by itself."""
        budgets = context.budgets(self.reason)
        diagnoses = {candidate.name: found for candidate, found in unhealthy(context.problem).due}

        def propose(mine: Sequence[Candidate]) -> Proposal:
            return _next(context, [(one, diagnoses[one.name]) for one in mine], budgets)

        return confirm_each(
            self.eligible(context), commands, propose, otherwise="Node is no longer unhealthy"
        )


def _next(
    context: Context, due: Sequence[tuple[Candidate, Diagnosis]], budgets: Budgets
) -> Proposal:
    """Return the command for the first node that can be repaired; consumes the budgets."""
    simulation = context.simulate([candidate for candidate, _ in due])
    blocked: dict[str, str] = {}
    kept: set[str] = set()
    for candidate, found in due:
        # Budgets count initialized nodes: a node that is not initialized runs no workload.
        if is_initialized(candidate.node) and not budgets.allows(candidate.pool, candidate.node):
            blocked[candidate.name] = budgets.held_back(candidate.pool)
            kept.add(candidate.name)
            continue
        others = restarting_pods(candidate, context.problem)
        command = Command(
            Reason.UNHEALTHY,
            (candidate,),
            evictions=len(candidate.moving) + len(others),
            why=_why(candidate, found, others),
            condition=found.condition.type,
            drain_bound=_drain_bound(candidate, found),
            reboots=found.reboots,
        )
        repaired = (
            command
            if found.reboots
            else _with_replacements(command, context.problem, simulation, others)
        )
        if isinstance(repaired, Command):
            budgets.admit(repaired.candidates)
            return Proposal((repaired,), blocked, frozenset(kept))
        blocked[candidate.name] = f"Unhealthy, but {repaired}"
    return Proposal((), blocked, frozenset(kept))


def _why(candidate: Candidate, found: Diagnosis, others: Sequence[Pod]) -> str:
    text = f"node {candidate.name} is unhealthy: {_condition_text(found.condition)}"
    if not others:
        return text
    return f"{text}; its gangs restart with {with_count(len(others), 'pod')} on other nodes"


def _with_replacements(
    command: Command,
    problem: DisruptionProblem,
    simulation: Simulation,
    others: Sequence[Pod],
) -> Command | str:
    """Return the command with its replacements, or why the node cannot be replaced now."""
    (candidate,) = command.candidates
    terminate_first = problem.settings.terminate_first_repair
    if not is_static(candidate):
        dynamic = with_replacements(
            command, simulation, terminate_first=terminate_first, restarting=others
        )
        return dynamic or "not all pods would schedule elsewhere"
    means = means_of(problem, candidate.node_pool)
    if means.surge > 0 or (terminate_first and means.frees(candidate)):
        return means.with_replacement(command, candidate)
    return means.why_none


def _condition_text(condition: Condition) -> str:
    reason = f" ({condition.reason})" if condition.reason else ""
    return f"{condition.type} is {condition.status}{reason}"
