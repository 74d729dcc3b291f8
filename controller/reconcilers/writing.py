"""Writes of the reconcilers; the mirror receives each result at once.

A write has the resource version of the object on which it was decided. If the object has changed,
the write raises ConflictError and the reconciler runs again, so that no update is lost.

The name of a new object is chosen before the request. With `generateName` the caller could not find
out, after a lost response, whether the object exists.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import DISRUPTION_REASON, NodeClaim
from controller.apis.kinds import KIND_OF, NODE_CLAIM, Kind, T
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import KubernetesObject, OwnerReference, Wire, to_wire
from controller.apiserver.errors import ConflictError, NotFoundError, UnavailableError
from controller.apiserver.port import ApiServer
from controller.reconcilers.ports import Ports

ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Letters and digits that spell no words, as in names that the API server generates."""

SUFFIX = 5
LONGEST_PREFIX = 63 - SUFFIX

MESSAGE_LIMIT = 900
"""The maximum length of AWS's words in a condition or event: an event has at most 1,024 characters,
and the reason of a refusal is at the end of a message with long ARNs."""


def new_name(prefix: str) -> str:
    """Return a name with this prefix and a random suffix, as `generateName` would."""
    return prefix[:LONGEST_PREFIX] + "".join(random.choices(ALPHABET, k=SUFFIX))  # noqa: S311 - no secret


def owner_reference(owner: KubernetesObject) -> Any:
    """Return the JSON of a reference to the owner of an object."""
    kind, own = _kind_of(owner), owner.metadata
    reference = OwnerReference(
        api_version=kind.api_version,
        kind=kind.name,
        name=own.name,
        uid=own.uid,
        block_owner_deletion=True,
    )
    return to_wire(reference)


async def create_once(
    api: ApiServer, kind: Kind[T], body: Mapping[str, Any], *, is_repeated: bool = False
) -> T:
    """Create a cluster-wide object whose JSON has a name, and return it.

    If the response is lost, the request is repeated once. A request that is repeated, here or by
    the caller (`is_repeated`), returns the object that the earlier one created.

    Raises:
        ConflictError: another object has the name.
        UnavailableError: the object may exist; repeat the request with the same name.

    """
    try:
        return await api.create(kind, body)
    except ConflictError:
        if is_repeated:
            return await api.get(kind, body["metadata"]["name"])
        raise
    except UnavailableError:
        if is_repeated:
            raise
    return await create_once(api, kind, body, is_repeated=True)


async def apply_patch(
    ports: Ports, value: T, patch: Mapping[str, Any], *, subresource: str = ""
) -> T:
    """Apply a merge patch to an object as it was read, and return the result.

    Raises:
        ConflictError: the object changed. The mirror then has the new version, so that a retry does
            not have to wait for the watch.

    """
    own, kind = value.metadata, _kind_of(value)
    try:
        updated = await ports.api.patch(
            kind,
            own.name,
            patch,
            namespace=own.namespace,
            subresource=subresource,
            resource_version=own.resource_version,
        )
    except ConflictError:
        with contextlib.suppress(NotFoundError):
            ports.cluster.observe(kind, await ports.api.get(kind, own.name, own.namespace))
        raise
    ports.cluster.observe(kind, updated)
    return updated


def status_patch(before: Wire, after: Wire) -> dict[str, Any]:
    """Return the merge patch that replaces a status; it removes the fields that `after` lacks."""
    return {"status": {**dict.fromkeys(to_wire(before)), **to_wire(after)}}


async def with_conditions(
    ports: Ports, claim: NodeClaim, after: list[conditions.Condition]
) -> NodeClaim:
    """Write a NodeClaim's conditions if they changed; return the resulting NodeClaim.

    Raises:
        ConflictError: the NodeClaim changed, as for `apply_patch`.

    """
    if conditions.are_equal(claim.status.conditions, after):
        return claim
    status = {"status": {"conditions": to_wire(after)}}
    return await apply_patch(ports, claim, status, subresource="status")


async def with_condition(
    ports: Ports,
    claim: NodeClaim,
    kind: str,
    status: conditions.ConditionStatus,
    *,
    reason: str = "",
    message: str = "",
    ready_when: Sequence[str] = (),
) -> NodeClaim:
    """Set one condition of a NodeClaim, and return the resulting NodeClaim.

    The arguments are those of `changed_conditions`.

    Raises:
        ConflictError: the NodeClaim changed, as for `apply_patch`.

    """
    after = changed_conditions(
        ports, claim, kind, status, reason=reason, message=message, ready_when=ready_when
    )
    return await with_conditions(ports, claim, after)


def changed_conditions(
    ports: Ports,
    claim: NodeClaim,
    kind: str,
    status: conditions.ConditionStatus,
    *,
    reason: str = "",
    message: str = "",
    ready_when: Sequence[str] = (),
) -> list[conditions.Condition]:
    """Return the conditions of a NodeClaim with one of them set.

    `kind` is the type of the condition. If there are types in `ready_when`, the condition `Ready`
    is set from the conditions of these types.
    """
    now, generation = ports.clock(), claim.metadata.generation
    known = claim.status.conditions
    after = conditions.with_condition(
        known, kind, status, reason=reason, message=message, generation=generation, now=now
    )
    if ready_when:
        after = conditions.roll_up(after, ready_when, generation=generation, now=now)
    return after


async def delete(api: ApiServer, value: T) -> bool:
    """Delete this object; return False if it is deleted already or another one has its name.

    Raises:
        ConflictError: it changed at the same time. A retry can succeed.

    """
    own, kind = value.metadata, _kind_of(value)
    try:
        await api.delete(kind, own.name, namespace=own.namespace, uid=own.uid)
    except NotFoundError:
        return False
    except ConflictError:
        with contextlib.suppress(NotFoundError):
            if (await api.get(kind, own.name, own.namespace)).metadata.uid == own.uid:
                raise
        return False
    return True


def _kind_of(value: T) -> Kind[T]:
    return KIND_OF[type(value)]


def reason_for_end(claim: NodeClaim) -> str:
    """Return the reason of the condition `DisruptionReason`, or else "Forceful Termination"."""
    disrupted = conditions.find(claim.status.conditions, DISRUPTION_REASON)
    return disrupted.reason if disrupted is not None else "Forceful Termination"


async def with_drain_until(ports: Ports, claim: NodeClaim, end: datetime) -> NodeClaim:
    """Set a NodeClaim's termination timestamp, the end of its drain, to `end`.

    A timestamp that is earlier than `end` does not change. The write succeeds even if the NodeClaim
    changed meanwhile. Returns the resulting NodeClaim.

    Raises:
        NotFoundError: the NodeClaim is deleted.

    """
    before = claim.drain_deadline
    if before is not None and before <= end:
        return claim
    deadline = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    annotated = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: deadline}}}
    updated = await ports.api.patch(
        NODE_CLAIM, claim.metadata.name, annotated, uid=claim.metadata.uid
    )
    ports.cluster.observe(NODE_CLAIM, updated)
    return updated
