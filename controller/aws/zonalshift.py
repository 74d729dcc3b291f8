"""Zones that traffic has been shifted away from.

No new node is put there, and no instance there is ended or changed: EC2's own answers about
an impaired zone are not to be trusted, and what runs there may be well again soon.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from controller.aws.cluster import ClusterFacts
from controller.aws.errors import AwsError
from controller.aws.session import Aws
from controller.aws.subnets import Subnets

PERIOD = 30.0
"""Seconds between two questions to ARC."""

log = logging.getLogger(__name__)


class ZonalShift:
    """Asks ARC, and EC2 for what zones are called: ARC knows them by ids such as `usw2-az1`."""

    def __init__(
        self,
        aws: Aws,
        cluster: ClusterFacts,
        subnets: Subnets,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._aws = aws
        self._cluster = cluster
        self._subnets = subnets
        self._now = now
        self._until: Mapping[str, datetime | None] = {}
        self._names: dict[str, str] = {}

    @property
    def away(self) -> frozenset[str]:
        """The ids of the zones; a shift whose time is over ends also if ARC does not answer."""
        return frozenset(z for z, end in self._until.items() if end is None or end > self._now())

    def covers(self, zone: str) -> bool:
        """Whether traffic is shifted away from a zone, such as `us-west-2a`."""
        return any(self._names.get(zone_id) == zone for zone_id in self.away)

    async def refresh(self) -> None:
        """Ask which shifts apply now.

        Raises:
            CloudProviderError: ARC cannot be asked, or does not manage the cluster; or EC2 does
                not tell what the zones are called.

        """
        before, self._until = self.away, await self._applied()
        if self.away != before:
            log.warning("zones to keep out of", extra={"zones": sorted(self.away)})
        unnamed = self.away - self._names.keys()
        if unnamed:
            self._names |= await self._subnets.zone_names(unnamed)

    async def _applied(self) -> Mapping[str, datetime | None]:
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
        # Those that ARC starts by itself have no end that is known before.
        shifts = [*answer.get("zonalShifts", []), *answer.get("autoshifts", [])]
        applied = (s for s in shifts if s.get("appliedStatus") == "APPLIED")
        return {s["awayFrom"]: s.get("expiryTime") for s in applied}
