"""The CreateFleet call that launches the instances of several equal NodeClaims.

Each NodeClaim has an annotation from its creation, which is before the call, with the token of the
call, the number of instances, and the position of its own instance in the order of
`cheapest_first`. So after a crash the controller finds the instance of each NodeClaim by the token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim

MAX_INSTANCES = 1000
"""The greatest number of instances that EC2 launches by one call."""

_ANNOTATION = re.compile(r"(?P<began>[0-9]{1,12})-(?P<name>[0-9a-f]{8,32})/(?P<rest>[0-9]+/[0-9]+)")

_CREATION_TIME = timedelta(minutes=5)
"""The maximum time for the creation of a call's NodeClaims. A NodeClaim that was created later is a
copy, for example from a backup, and has no instance of the call."""


@dataclass(frozen=True, slots=True)
class SharedLaunch:
    """A CreateFleet call for several NodeClaims, and the position of one of them, from 0."""

    token: str
    position: int
    size: int

    @property
    def annotation(self) -> str:
        """The value of the annotation `joiner.dev/shared-launch`."""
        return f"{self.token}/{self.position}/{self.size}"


def new_token(now: datetime, name: str) -> str:
    """Return the token of a call that begins now; `name` is a random hexadecimal text."""
    return f"{int(now.timestamp())}-{name}"


def shared_launch(claim: NodeClaim) -> SharedLaunch | None:
    """Return the call that launches a NodeClaim with others; None if it is launched alone.

    None also if the annotation is invalid, or if the NodeClaim is a copy: it was created later than
    `_CREATION_TIME` after the call began.
    """
    found = _ANNOTATION.fullmatch(claim.metadata.annotations.get(labels.SHARED_LAUNCH, ""))
    created = claim.metadata.creation_timestamp
    if found is None or created is None:
        return None
    position, size = map(int, found["rest"].split("/"))
    is_late = created.timestamp() - int(found["began"]) > _CREATION_TIME.total_seconds()
    if is_late or not position < size <= MAX_INSTANCES:
        return None
    return SharedLaunch(f"{found['began']}-{found['name']}", position, size)


def cheapest_first(claim: NodeClaim) -> Callable[[str, str], tuple[int, str]]:
    """Return a function from an instance's type and ID to its sort key in the NodeClaim's call.

    The order of types is the order in the NodeClaim, cheapest first. Unlike an order by current
    prices, it is the same after a crash. Instances of one type are ordered by ID.
    """
    listed = next(
        (
            requirement.values
            for requirement in claim.spec.requirements
            if requirement.key == labels.INSTANCE_TYPE and requirement.operator == "In"
        ),
        (),
    )
    ranks = {name: rank for rank, name in enumerate(listed)}
    return lambda instance_type, instance_id: (ranks.get(instance_type, len(ranks)), instance_id)
