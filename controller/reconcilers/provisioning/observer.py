"""The provisioning loop of a controller in the mode `observe`, which creates no nodes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from controller.apis.kinds import NODE_POOL
from controller.reconcilers.newnodes.supply import ready_pools, supply
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.provisioning.batchwindow import BatchWindow, ExpectedPods
from controller.reconcilers.provisioning.provisioner import PERIOD, UNSYNCED, Solve, log_fields
from controller.scheduling.buffers import split_fills

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ProvisioningObserver(PortUser, ExpectedPods):
    """Schedules batches as the provisioner does, and reports the result in the log and the metrics.

    If another controller creates nodes meanwhile, the next round sees them.
    """

    ports: Ports
    solve: Solve
    batch_window: BatchWindow

    async def run_once(self) -> timedelta:
        """Wait for a batch and schedule it; returns when to run again."""
        try:
            await self.batch_window.wait(PERIOD, self)
        except TimeoutError:
            fields = {"waiting": len(self.cluster.pending_pods())}
            log.debug("no new pods; scheduling pending pods again", extra=fields)
        if not self.cluster.synced:
            return UNSYNCED
        await self._round()
        return timedelta(0)

    def expects_more(self) -> bool:
        """Whether kube-scheduler is about to find more pods unschedulable."""
        return self.cluster.has_undecided_pods(self.clock())

    async def _round(self) -> None:
        now = self.clock()
        pods = [*self.cluster.pending_pods(), *self.cluster.reschedulable_pods(now)]
        virtual = self.cluster.buffer_pods()
        if not pods and not virtual:
            return
        pools = ready_pools(self.cluster.list(NODE_POOL))
        types = (await supply(self.cloud, self.cluster, pools)).types
        snapshot = self.cluster.snapshot(types, pools, now=now)
        with self.metrics.scheduling():
            solved = await self.solve([*pods, *virtual], snapshot)
        results, _ = split_fills(solved, virtual)
        self.metrics.record_solve(results)
        log.info(
            "would create nodeclaims for pods; DISRUPTION_MODE=observe creates none",
            extra={
                **log_fields(pods, results),
                "cheapest": [node.instance_types[0] for node in results.new_nodes[:10]],
            },
        )
