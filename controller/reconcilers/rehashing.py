"""Carries a new way of hashing over to claims, so that it makes none of them look drifted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from controller.apis import conditions
from controller.apis.kinds import NODE_CLAIM
from controller.apis.nodeclaim import DRIFTED, NodeClaim
from controller.apiserver.errors import NotFoundError
from controller.apiserver.port import ApiServer
from controller.state.cluster import Cluster


async def rehashed(
    api: ApiServer,
    cluster: Cluster,
    claims: Iterable[NodeClaim],
    wanted: Mapping[str, str],
    *,
    version: str,
) -> None:
    """Give claims hashed in another version the present hash.

    A claim that has drifted already keeps its old hash, so that it stays drifted.

    Args:
        api: where claims are written.
        cluster: the mirror that sees each outcome.
        claims: those made from the pool or class that was hashed anew.
        wanted: the annotations of that pool or class: its hash, and the hash's version.
        version: which of them is the version.

    """
    for claim in claims:
        if claim.metadata.annotations.get(version) == wanted[version]:
            continue
        drifted = conditions.is_true(claim.status.conditions, DRIFTED)
        annotations = {version: wanted[version]} if drifted else dict(wanted)
        with suppress(NotFoundError):
            updated = await api.patch(
                NODE_CLAIM, claim.metadata.name, {"metadata": {"annotations": annotations}}
            )
            cluster.observe(NODE_CLAIM, updated)
