"""Writes of the reconcilers: each lets the mirror see its outcome at once.

A write carries the resource version it was decided on. A mirror that was stale makes
it a conflict and another try, never a lost update.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from controller.apis import conditions, labels
from controller.apis.kinds import NODE_CLAIM, Kind, T
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import NodeClaim
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.state.cluster import Cluster


async def patched(
    api: ApiServer,
    cluster: Cluster,
    kind: Kind[T],
    value: T,
    patch: Mapping[str, Any],
    *,
    subresource: str = "",
) -> T:
    """Merge a patch into an object as it was read, and return what became of it.

    Raises:
        ConflictError: it is another by now. The mirror has been shown which, so that whoever
            tries again need not wait for a watch that is behind.

    """
    own = value.metadata
    try:
        updated = await api.patch(
            kind,
            own.name,
            patch,
            namespace=own.namespace,
            subresource=subresource,
            resource_version=own.resource_version,
        )
    except ConflictError:
        with contextlib.suppress(NotFoundError):
            cluster.observe(kind, await api.get(kind, own.name, own.namespace))
        raise
    cluster.observe(kind, updated)
    return updated


async def with_conditions(
    api: ApiServer, cluster: Cluster, claim: NodeClaim, after: list[conditions.Condition]
) -> NodeClaim:
    """Write a claim's conditions, if they say something else than before."""
    if conditions.unchanged(claim.status.conditions, after):
        return claim
    status = {"status": {"conditions": to_wire(after)}}
    return await patched(api, cluster, NODE_CLAIM, claim, status, subresource="status")


async def with_condition(
    api: ApiServer,
    cluster: Cluster,
    claim: NodeClaim,
    kind: str,
    status: conditions.ConditionStatus,
    *,
    reason: str = "",
    message: str = "",
    ready_when: Sequence[str] = (),
    now: datetime,
) -> NodeClaim:
    """Set one condition of a claim, and `Ready` by those that it stands for (`ready_when`)."""
    after = conditions.with_condition(
        claim.status.conditions,
        kind,
        status,
        reason=reason,
        message=message,
        generation=claim.metadata.generation,
        now=now,
    )
    if ready_when:
        generation = claim.metadata.generation
        after = conditions.rolled_up(after, ready_when, generation=generation, now=now)
    return await with_conditions(api, cluster, claim, after)


async def with_drain_over(
    api: ApiServer, cluster: Cluster, claim: NodeClaim, now: datetime
) -> NodeClaim:
    """Say of a claim that the time of its drain is up, unless it was before.

    Whatever else has become of the claim meanwhile, this holds, so that nothing is a conflict but
    another claim of the same name.

    Raises:
        NotFoundError: it has gone.

    """
    before = claim.drain_deadline
    if before is not None and before <= now:
        return claim
    deadline = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    annotated = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: deadline}}}
    updated = await api.patch(NODE_CLAIM, claim.metadata.name, annotated, uid=claim.metadata.uid)
    cluster.observe(NODE_CLAIM, updated)
    return updated
