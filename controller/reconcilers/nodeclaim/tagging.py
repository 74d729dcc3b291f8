"""Tells in EC2 which node and which claim an instance is, once its node has a name.

What an instance has been told already, by its class or by whoever launched it, is left as it is.
An instance that was brought here by another controller becomes ours this way: without our tag
nothing of ours would end it when its claim is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from controller.apis import labels
from controller.apis.kinds import NODE_CLAIM
from controller.apis.nodeclaim import NodeClaim
from controller.apiserver.port import ApiServer
from controller.cloudprovider.errors import NodeClaimNotFoundError
from controller.cloudprovider.provider import CloudProvider
from controller.reconcilers.writing import patched
from controller.state.cluster import Cluster

DONE = {labels.TAGGED: "true", labels.CLUSTER_NAME_TAGGED: "true"}
"""What a claim says whose instance has its tags, as Karpenter's do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagging:
    """Tags the instances of claims, each once."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    cluster_name: str
    installation: str

    async def reconcile(self, name: str) -> timedelta | None:
        """Tag the claim's instance, if its node has a name and nobody has done it."""
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting or not claim.status.node_name:
            return None
        # Karpenter says the same of what it has tagged, and its tags are not all of ours.
        done = {**DONE, labels.TAG_INSTALLATION: self.installation}
        if done.items() <= claim.metadata.annotations.items():
            return None
        try:
            await self._tag(claim)
        except NodeClaimNotFoundError:
            return None  # what has gone is for others to find
        await patched(
            self.api, self.cluster, NODE_CLAIM, claim, {"metadata": {"annotations": done}}
        )
        return None

    async def _tag(self, claim: NodeClaim) -> None:
        tags = {
            "Name": claim.status.node_name,
            labels.TAG_NODECLAIM: claim.metadata.name,
            labels.TAG_CLUSTER_NAME: self.cluster_name,
        }
        if self.installation:
            tags[labels.TAG_INSTALLATION] = self.installation
        instance = await self.cloud.get(claim.status.provider_id)
        missing = {key: value for key, value in tags.items() if key not in instance.tags}
        if missing:
            await self.cloud.tag(claim.status.provider_id, missing)
