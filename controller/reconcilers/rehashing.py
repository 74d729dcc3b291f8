"""Migrates hash annotations to a new hash version, so that the new version causes no drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from controller.apis.karpenter.nodeclaim import DRIFTED, NodeClaim
from controller.apis.kinds import NODE_CLAIM
from controller.apis.kubernetes import conditions
from controller.apiserver.errors import NotFoundError
from controller.reconcilers.ports import Ports


async def update_hashes(
    ports: Ports, claims: Iterable[NodeClaim], wanted: Mapping[str, str], *, version: str
) -> None:
    """Write the current hash to NodeClaims with a hash of another version.

    A NodeClaim that drifted already keeps its old hash, so that it stays drifted.

    Args:
        ports: the API server, and the mirror, which receives each result.
        claims: the NodeClaims of the NodePool or EC2NodeClass with the new hash.
        wanted: that object's annotations with its hash and the hash's version.
        version: the key of the version among `wanted`.

    """
    for claim in claims:
        if claim.metadata.annotations.get(version) == wanted[version]:
            continue
        drifted = conditions.is_true(claim.status.conditions, DRIFTED)
        annotations = {version: wanted[version]} if drifted else dict(wanted)
        with suppress(NotFoundError):
            updated = await ports.api.patch(
                NODE_CLAIM, claim.metadata.name, {"metadata": {"annotations": annotations}}
            )
            ports.cluster.observe(NODE_CLAIM, updated)
