"""Which nodes are settling still: pods, or the node itself, came less than `consolidateAfter` ago.

No pod is moved there to save: who has just come may go again, and whoever is moved there sets the
node's own clock back. What was made in the place of other nodes is open: of a plan that is carried
out in steps the pods of some of those nodes are to follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.apis import conditions, durations, labels
from controller.apis.nodeclaim import CONSOLIDATABLE, INITIALIZED, NodeClaim
from controller.apis.nodepool import WHEN_EMPTY, NodePool
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode


def quiet_since(claim: NodeClaim) -> datetime | None:
    """Return when a pod last came or went, or else when the node was initialized; None where it is
    not, or nobody has written that down.
    """
    initialized = conditions.find(claim.status.conditions, INITIALIZED)
    if initialized is None or not initialized.is_true:
        return None
    return claim.status.last_pod_event_time or initialized.last_transition_time


def settling(problem: DisruptionProblem) -> frozenset[str]:
    """Return the names of the nodes that are settling now."""
    return frozenset(state.name for state, _ in _unsettled(problem))


def _unsettled(problem: DisruptionProblem) -> Iterator[tuple[StateNode, datetime]]:
    """Yield the nodes that are settling now, and when each will have settled."""
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
            # A clock that ran ahead has written what is still to come: nothing to wait for.
            and timedelta(0) <= problem.now - since < wait
        ):
            yield state, since + wait


def _wait(consolidate_after: str) -> timedelta | None:
    """Return for how long; None for ever, or where it cannot be read: those nodes never go, and
    pods are at rest there.
    """
    try:
        return durations.parse(consolidate_after)
    except ValueError:
        return None


def _moves_pods(pool: NodePool) -> bool:
    """Whether a pool's policy lets pods of its nodes be moved to save."""
    return pool.spec.replicas is None and pool.spec.disruption.consolidation_policy != WHEN_EMPTY


@dataclass(slots=True)
class Gathering:
    """Puts off what would move pods to save, for nodes that will have settled in a moment.

    When many pods go at once, nodes become quiet within seconds of one another. A plan for the
    first of them moves pods to where a plan for all would have none.
    """

    longest: timedelta
    """For how long at most, from when there was something to save."""

    _since: datetime | None = None

    def left(self, problem: DisruptionProblem) -> timedelta:
        """Return how long to put off what there is to save; zero when it may begin."""
        self._since = min(self._since or problem.now, problem.now)
        until = self._since + self.longest
        coming = [
            at
            for state, at in _unsettled(problem)
            if at <= until and _moves_pods(problem.node_pools[state.node_pool])
        ]
        if coming:
            return max(coming) - problem.now
        self.end()
        return timedelta(0)

    def end(self) -> None:
        """Take note that there is nothing to save."""
        self._since = None
