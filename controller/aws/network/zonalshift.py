"""Zones with a zonal shift of ARC, AWS's Application Recovery Controller.

Joiner launches no nodes there, and terminates or changes no instance there: EC2's responses about
an impaired zone are unreliable, and its nodes may recover soon.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from controller.aws.cluster import ClusterFacts
from controller.aws.errors import AwsError
from controller.aws.network.subnets import Subnets
from controller.aws.session import Aws

PERIOD = 30.0
"""Seconds between two calls of ARC."""

log = logging.getLogger(__name__)


@dataclass
class ZonalShift:
    """Queries ARC for zonal shifts and EC2 for zone names (ARC uses IDs such as `usw2-az1`)."""

    aws: Aws
    cluster: ClusterFacts
    subnets: Subnets
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _until: Mapping[str, datetime | None] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    @property
    def away(self) -> frozenset[str]:
        """The IDs of the shifted zones; a shift ends at its expiry even if ARC does not respond."""
        return frozenset(z for z, end in self._until.items() if end is None or end > self.now())

    def covers(self, zone: str) -> bool:
        """Whether traffic is shifted away from a zone, such as `us-west-2a`."""
        return any(self._names.get(zone_id) == zone for zone_id in self.away)

    async def refresh(self) -> None:
        """Update the zonal shifts that are applied.

        Raises:
            CloudProviderError: ARC did not respond or does not manage the cluster, or EC2 did not
                return the zone names.

        """
        before, self._until = self.away, await self._applied_shifts()
        if self.away != before:
            log.warning(
                "ARC zonal shifts changed; launching and terminating no instances in zones-away",
                extra={"zones-away": sorted(self.away)},
            )
        unnamed = self.away - self._names.keys()
        if unnamed:
            self._names |= await self.subnets.zone_names(unnamed)

    async def _applied_shifts(self) -> Mapping[str, datetime | None]:
        arn = (await self.cluster.get()).arn
        try:
            response = await self.aws.call(
                "arc-zonal-shift", "get_managed_resource", resourceIdentifier=arn
            )
        except AwsError as exc:
            if exc.is_not_found:
                raise AwsError(
                    "ENABLE_ZONAL_SHIFT=true, but the cluster is not registered with ARC: enable "
                    f"zonal shift for the EKS cluster, or set ENABLE_ZONAL_SHIFT=false ({exc})",
                    code=exc.code,
                    operation=exc.operation,
                ) from exc
            raise
        # Zonal autoshifts have no expiry time.
        shifts = [*response.get("zonalShifts", []), *response.get("autoshifts", [])]
        applied = (s for s in shifts if s.get("appliedStatus") == "APPLIED")
        return {s["awayFrom"]: s.get("expiryTime") for s in applied}
