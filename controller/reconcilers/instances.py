"""Terminates the instances of NodeClaims, and reports what refuses it."""

from __future__ import annotations

from controller.apis.karpenter.nodeclaim import INSTANCE_TERMINATING, NodeClaim
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClaimNotFoundError,
    ThrottledError,
)
from controller.reconcilers.ports import Ports
from controller.reconcilers.writing import MESSAGE_LIMIT, with_condition


async def terminate(ports: Ports, claim: NodeClaim, provider_id: str) -> bool:
    """Terminate the instance of a NodeClaim; returns whether it is gone.

    The condition `InstanceTerminating` says that it was requested, or why the cloud refuses it.

    Raises:
        CloudProviderError: the cloud refused it; an event says why, unless it throttles.

    """
    try:
        await ports.cloud.terminate(provider_id)
    except NodeClaimNotFoundError:
        return True
    except CloudProviderError as error:
        if not isinstance(error, ThrottledError):
            message = f"cannot terminate {provider_id}: {error}"[:MESSAGE_LIMIT]
            await ports.recorder.publish_all(
                (claim, ports.cluster.node_of(claim)), "Warning", "TerminationFailed", message
            )
            await with_condition(
                ports, claim, INSTANCE_TERMINATING, "False", reason=error.reason, message=message
            )
        raise
    await with_condition(ports, claim, INSTANCE_TERMINATING, "True")
    return False
