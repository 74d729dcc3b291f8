"""Zones that traffic has been shifted away from.

No new node is put there, and no instance there is ended or changed: EC2's own answers about
an impaired zone are not to be trusted, and what runs there may be well again soon.
"""

from __future__ import annotations

import logging

from controller.aws.cluster import ClusterFacts
from controller.aws.errors import AwsError
from controller.aws.session import Aws
from controller.aws.subnets import Subnets

PERIOD = 30.0
"""Seconds between two questions to ARC."""

log = logging.getLogger(__name__)


class ZonalShift:
    """Asks ARC; `away` holds the ids of the zones, such as `usw2-az1`."""

    def __init__(self, aws: Aws, cluster: ClusterFacts, subnets: Subnets) -> None:
        self._aws = aws
        self._cluster = cluster
        self._subnets = subnets
        self.away: frozenset[str] = frozenset()

    def covers(self, zone: str) -> bool:
        """Whether traffic is shifted away from a zone, such as `us-west-2a`."""
        return bool(self.away) and self._subnets.zone_id(zone) in self.away

    async def refresh(self) -> None:
        """Ask which shifts apply now.

        Raises:
            CloudProviderError: ARC cannot be asked, or does not manage the cluster.

        """
        arn = (await self._cluster.get()).arn
        try:
            answer = await self._aws.call(
                "arc-zonal-shift", "get_managed_resource", resourceIdentifier=arn
            )
        except AwsError as exc:
            if exc.is_not_found:
                raise AwsError(
                    "ENABLE_ZONAL_SHIFT=true, but the cluster is not registered with ARC: enable "
                    f"zonal shift for it, or switch the setting off ({exc})",
                    code=exc.code,
                    operation=exc.operation,
                ) from exc
            raise
        shifts = [*answer.get("zonalShifts", []), *answer.get("autoshifts", [])]
        away = frozenset(s["awayFrom"] for s in shifts if s.get("appliedStatus") == "APPLIED")
        if away != self.away:
            log.warning("zones to keep out of", extra={"zones": sorted(away)})
        self.away = away
