"""Nodes that are not yet consolidatable: `consolidateAfter` has not elapsed since a pod change.

Consolidation moves no pods to such nodes: their pods may end soon, and each pod that moves there
restarts `consolidateAfter`. Replacements are exempt, because pods of later steps of a plan move to
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE, INITIALIZED, NodeClaim
from controller.apis.karpenter.nodepool import WHEN_EMPTY, NodePool
from controller.apis.kubernetes import conditions
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode


def quiet_since(claim: NodeClaim) -> datetime | None:
    """Return when a pod was last added or removed, or else when the node was initialized.

    None if the node is not initialized or the time is not recorded.
    """
    initialized = conditions.find(claim.status.conditions, INITIALIZED)
    if initialized is None or not initialized.is_true:
        return None
    return claim.status.last_pod_event_time or initialized.last_transition_time


def not_yet_consolidatable(problem: DisruptionProblem) -> frozenset[str]:
    """Return the names of the nodes that are not yet consolidatable."""
    return frozenset(state.name for state, _ in _not_yet(problem))


def _not_yet(problem: DisruptionProblem) -> Iterator[tuple[StateNode, datetime]]:
    """Yield the nodes that are not yet consolidatable, and when each becomes consolidatable."""
    waits = {
        name: _wait(pool.spec.disruption.consolidate_after)
        for name, pool in problem.node_pools.items()
    }
    for state in problem.snapshot.nodes:
        if (
            state.claim is not None
            and not conditions.is_true(state.claim.status.conditions, CONSOLIDATABLE)
            and labels.REPLACES not in state.claim.metadata.annotations
            and (wait := waits.get(state.node_pool))
            and (since := quiet_since(state.claim)) is not None
            # A time in the future comes from a clock that ran ahead: do not wait for it.
            and timedelta(0) <= problem.now - since < wait
        ):
            yield state, since + wait


def _wait(consolidate_after: str) -> timedelta | None:
    """Return the duration, or None for Never or a malformed value.

    Such nodes are never consolidated, so pods may move there.
    """
    try:
        return durations.parse(consolidate_after)
    except ValueError:
        return None


def _moves_pods(pool: NodePool) -> bool:
    """Whether the NodePool's policy allows consolidation to move pods."""
    return pool.spec.replicas is None and pool.spec.disruption.consolidation_policy != WHEN_EMPTY


@dataclass(slots=True)
class ConsolidationDelay:
    """Delays consolidation while more nodes become consolidatable soon.

    When many pods end at once, nodes become consolidatable within seconds of one another. A plan
    for only the first of them would move pods to nodes that a plan for all of them removes.
    """

    longest: timedelta
    """The longest delay, from the first time that there was something to save."""

    _since: datetime | None = None

    def remaining_delay(self, problem: DisruptionProblem) -> timedelta:
        """Return how long to delay consolidation; zero if it may begin."""
        self._since = min(self._since or problem.now, problem.now)
        until = self._since + self.longest
        coming = [
            at
            for state, at in _not_yet(problem)
            if at <= until and _moves_pods(problem.node_pools[state.node_pool])
        ]
        if coming:
            return max(coming) - problem.now
        self.end()
        return timedelta(0)

    def end(self) -> None:
        """End the delay, because nothing can be saved now: the next one has its full length."""
        self._since = None
