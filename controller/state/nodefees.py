"""The fee per node, as a part of the prices of instance types.

Software that is licensed per host, such as a monitoring agent, costs the same on every node. The
setting NODE_PRICE_PER_HOUR states it, and the annotation `joiner.dev/node-price-per-hour` of a
NodePool replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.cloudprovider.instancetypes import InstanceType, Surcharges


def fee_of(pool: NodePool, default: float) -> float:
    """Return the fee per node of a NodePool in $/h; a malformed annotation is ignored."""
    try:
        fee = float(pool.metadata.annotations.get(labels.NODE_PRICE_PER_HOUR, default))
    except ValueError:
        return default
    return fee if 0.0 <= fee < math.inf else default


def with_fee(types: Sequence[InstanceType], fee: float) -> Sequence[InstanceType]:
    """Return the instance types with the fee in every price; the same sequence if it is 0."""
    if not fee:
        return types
    with_fee_by_surcharges: dict[Surcharges, Surcharges] = {}
    return tuple(
        replace(
            instance_type,
            offerings=tuple(
                replace(
                    offering,
                    surcharges=with_fee_by_surcharges.setdefault(
                        offering.surcharges, replace(offering.surcharges, fee=fee)
                    ),
                )
                for offering in instance_type.offerings
            ),
        )
        for instance_type in types
    )
