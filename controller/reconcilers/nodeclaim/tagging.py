"""Tags the EC2 instances of NodeClaims, and adopts instances that another controller launched.

The tags name the node, the NodeClaim and the installation. Existing tags of an instance do not
change. If a NodeClaim is lost, Joiner terminates its instance only if it has the tag of the
installation.

Joiner adopts an instance of another controller in two cases: its NodeClaim named it when this
process became leader, as after Karpenter released the Lease, or the NodeClaim has the annotation
`joiner.dev/adopt: "true"`. Otherwise, Joiner does not change the NodeClaim, node and instance.

If the instance that the NodeClaim's status names does not exist, no other controller needs the
NodeClaim, and pending pods could wait for its capacity in vain. Joiner manages such a NodeClaim,
and garbage collection deletes it, in two cases: Joiner launched an instance for it, or it has no
Node either and Joiner has never declined to adopt it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import LAUNCHED, REGISTERED, NodeClaim
from controller.apis.kinds import NODE, NODE_CLAIM
from controller.apis.kubernetes import conditions
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.reconcilers.clock import first_past
from controller.reconcilers.nodeclaim.garbagecollection import STARTING
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import apply_patch

TAGGED = {labels.TAGGED: "true", labels.CLUSTER_NAME_TAGGED: "true"}
"""The annotations of a NodeClaim whose instance is tagged, as in Karpenter."""

UNKNOWN_OWNER = timedelta(minutes=1)
"""How soon to read an instance again if the AWS call failed."""

REGISTERING = timedelta(minutes=15)
"""How long a controller waits for the Node of an instance, as Karpenter does."""


@dataclass(frozen=True, slots=True)
class Tagging(PortUser):
    """Tags and adopts the EC2 instance of every launched NodeClaim, once."""

    ports: Ports
    cluster_name: str
    installation: str
    _inherited: set[str] = field(default_factory=set)
    """UIDs of the claims that named an instance when this process became leader."""
    _missing_since: dict[tuple[str, str], float] = field(default_factory=dict)
    """When EC2 first did not list an instance, in the event loop's seconds, by the claim's UID and
    the provider ID."""

    def inherit(self, claims: Iterable[NodeClaim]) -> None:
        """Allow `reconcile` to adopt the instances of these claims.

        Claims without an instance are left out: if another controller launches an instance for one
        of them later, that controller is still running.
        """
        self._inherited.update(claim.metadata.uid for claim in claims if claim.status.provider_id)

    async def reconcile(self, name: str) -> timedelta | None:
        """Adopt the NodeClaim's instance if allowed, and tag it once its node has a name."""
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or not claim.status.provider_id:
            return None
        if not self.cluster.is_adopted(claim):
            return await self._adopt(claim)
        if claim.metadata.is_deleting or not claim.status.node_name:
            return None
        # Karpenter writes the same annotations, but its tags are not all of Joiner's.
        done = {**TAGGED, labels.TAG_INSTALLATION: self.installation}
        if done.items() <= claim.metadata.annotations.items():
            return None
        try:
            await self._tag(
                claim,
                {
                    "Name": claim.status.node_name,
                    labels.TAG_NODECLAIM: claim.metadata.name,
                    labels.TAG_CLUSTER_NAME: self.cluster_name,
                    **self._ours,
                },
            )
        except NodeClaimNotFoundError:
            return None  # garbage collection deletes the NodeClaim
        await self._annotate(claim, done)
        return None

    @property
    def _ours(self) -> Mapping[str, str]:
        return {labels.TAG_INSTALLATION: self.installation} if self.installation else {}

    async def _adopt(self, claim: NodeClaim) -> timedelta | None:
        """Adopt the NodeClaim's instance, or publish why Joiner does not."""
        wish = claim.metadata.annotations.get(labels.ADOPT)
        is_inherited = wish is None and claim.metadata.uid in self._inherited
        is_wanted = wish == "true" or is_inherited
        try:
            owner = await self._owner(claim)
            if owner not in ("", self.installation):
                await self._report(
                    claim,
                    f"Joiner installation {owner!r} launched its instance; to let this "
                    f"installation manage it, remove tag {labels.TAG_INSTALLATION} from the "
                    f"instance, and annotate the NodeClaim with {labels.ADOPT}=true",
                )
                return None
            if not owner and not is_wanted:
                await self._decline(claim)
                return None
            await self._tag(claim, self._ours)
        except NodeClaimNotFoundError:
            if not is_wanted and wish == "false":
                return None
            wait = timedelta(0)
            if wish != "true":
                wait = await self._until_abandoned(claim, is_inherited=is_inherited)
            if wait > timedelta(0):
                return wait
        except CloudProviderError as error:
            await self._report(claim, str(error))
            return UNKNOWN_OWNER
        await self._annotate(claim, {**self._ours, labels.OWN_INSTANCE: claim.status.provider_id})
        return None

    async def _until_abandoned(self, claim: NodeClaim, *, is_inherited: bool) -> timedelta:
        """Return how long a NodeClaim without instance may still belong to another controller.

        EC2 may omit an instance that was just launched. Another controller deletes its NodeClaim
        itself if the instance ends, or if no Node joins in time. The controller of an inherited
        NodeClaim has probably ended, so a Node does not prove that it is at work. The time of the
        launch is by the clock of another process, so EC2 must also omit the instance, by the clock
        of this process, for as long as it may omit a new one.
        """
        marks = claim.metadata.annotations
        is_abandoned = is_inherited or marks.get(labels.TAG_INSTALLATION) == self.installation
        is_registered = conditions.is_true(claim.status.conditions, REGISTERED)
        limit = STARTING if is_abandoned or is_registered else REGISTERING
        now, launched = self.clock(), conditions.find(claim.status.conditions, LAUNCHED)
        since = launched.last_transition_time if launched and launched.is_true else None
        recorded = first_past(now, since, claim.metadata.creation_timestamp)
        seconds = asyncio.get_running_loop().time()
        key = claim.metadata.uid, claim.status.provider_id
        missing = timedelta(seconds=seconds - self._missing_since.setdefault(key, seconds))
        wait = max(recorded + limit - now, STARTING - missing)
        if wait > timedelta(0) or is_abandoned or not await self._has_node(claim):
            return wait
        return STARTING

    async def _has_node(self, claim: NodeClaim) -> bool:
        """Whether a Node has the NodeClaim's provider ID; the mirror may be out of date."""
        if self.cluster.nodes_of(claim):
            return True
        nodes = await self.api.list(NODE)
        return any(node.spec.provider_id == claim.status.provider_id for node in nodes)

    async def _owner(self, claim: NodeClaim) -> str:
        """Return the installation that launched the instance; empty if its tags name none."""
        instance = await self.cloud.get(claim.status.provider_id)
        known = instance.tags.get(labels.TAG_INSTALLATION, "")
        return self.installation if instance.is_ours else known

    async def _decline(self, claim: NodeClaim) -> None:
        await self._report(
            claim,
            "another controller launched its instance; to let Joiner manage it, annotate the "
            f"NodeClaim with {labels.ADOPT}=true",
        )
        if labels.ADOPT not in claim.metadata.annotations:
            await self._annotate(claim, {labels.ADOPT: "false"})

    async def _report(self, claim: NodeClaim, why: str) -> None:
        message = f"Joiner does not manage this NodeClaim: {why}"
        await self.recorder.publish(claim, "Warning", "NotAdopted", message)

    async def _tag(self, claim: NodeClaim, tags: Mapping[str, str]) -> None:
        instance = await self.cloud.get(claim.status.provider_id)
        missing = {key: value for key, value in tags.items() if key not in instance.tags}
        if missing:
            await self.cloud.tag(claim.status.provider_id, missing)

    async def _annotate(self, claim: NodeClaim, annotations: Mapping[str, str]) -> None:
        metadata = {"metadata": {"annotations": dict(annotations)}}
        await apply_patch(self.ports, claim, metadata)
