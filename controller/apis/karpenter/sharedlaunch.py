"""The CreateFleet call that launches the instances of several equal NodeClaims.

Each NodeClaim records the call in an annotation when it is created, so before the call: the token,
the number of instances, and which of them is its own. The instances are in the order of
`cheapest_first`. So the token alone tells, after a crash, which instance belongs to which
NodeClaim.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim

MOST = 1000
"""The greatest number of instances that EC2 launches by one call."""

_WRITTEN = re.compile(r"(?P<began>[0-9]{1,12})-(?P<name>[0-9a-f]{8,32})/(?P<rest>[0-9]+/[0-9]+)")

_WRITING = timedelta(minutes=5)
"""How long creating the NodeClaims of a call can take. A NodeClaim that was created later is a
copy, for example of a backup, and has no part in the call."""


@dataclass(frozen=True, slots=True)
class SharedLaunch:
    """A NodeClaim's part in a CreateFleet call: `position` of `size` instances, from 0."""

    token: str
    position: int
    size: int

    @property
    def written(self) -> str:
        """The value of the annotation."""
        return f"{self.token}/{self.position}/{self.size}"


def new_token(now: datetime, name: str) -> str:
    """Return the token of a call that begins now; `name` is a random hexadecimal text."""
    return f"{int(now.timestamp())}-{name}"


def shared_launch(claim: NodeClaim) -> SharedLaunch | None:
    """Return the call that launches a NodeClaim with others; None if it is launched alone."""
    found = _WRITTEN.fullmatch(claim.metadata.annotations.get(labels.SHARED_LAUNCH, ""))
    created = claim.metadata.creation_timestamp
    if found is None or created is None:
        return None
    position, size = map(int, found["rest"].split("/"))
    is_late = created.timestamp() - int(found["began"]) > _WRITING.total_seconds()
    if is_late or not position < size <= MOST:
        return None
    return SharedLaunch(f"{found['began']}-{found['name']}", position, size)


def cheapest_first(claim: NodeClaim) -> Callable[[str, str], tuple[int, str]]:
    """Return the order of the instances of a NodeClaim's call: the sort key of a type and an ID.

    The NodeClaim lists its instance types cheapest first. That order is recorded, so it is the same
    after a crash, and current prices may not be. Instances of one type are in the order of IDs.
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
