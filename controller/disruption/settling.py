"""Which nodes are settling still: pods, or the node itself, came less than `consolidateAfter` ago.

No pod is moved there to save: who has just come may go again, and whoever is moved there sets the
node's own clock back. What was made in the place of other nodes is open: of a plan that is carried
out in steps the pods of some of those nodes are to follow.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from controller.apis import conditions, durations, labels
from controller.apis.nodeclaim import CONSOLIDATABLE, INITIALIZED, NodeClaim
from controller.disruption.problem import DisruptionProblem


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
    waits = {
        name: _wait(pool.spec.disruption.consolidate_after)
        for name, pool in problem.node_pools.items()
    }
    return frozenset(
        state.name
        for state in problem.snapshot.nodes
        if state.claim is not None
        and not conditions.is_true(state.claim.status.conditions, CONSOLIDATABLE)
        and labels.REPLACES not in state.claim.metadata.annotations
        and (wait := waits.get(state.node_pool))
        and (since := quiet_since(state.claim)) is not None
        # A clock that ran ahead has written what is still to come: nothing to wait for.
        and timedelta(0) <= problem.now - since < wait
    )


def _wait(consolidate_after: str) -> timedelta | None:
    """Return for how long; None for ever, or where it cannot be read: those nodes never go, and
    pods are at rest there.
    """
    try:
        return durations.parse(consolidate_after)
    except ValueError:
        return None
