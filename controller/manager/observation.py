"""The assembly of the disruption mode `observe`: it evaluates the cluster and changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.disruption.modes import Mode
from controller.manager.assembly import ReconcilerPorts
from controller.manager.loops import Singleton
from controller.options import Options
from controller.reconcilers.disruption.advising import Advice, Advisor
from controller.reconcilers.disruption.observer import DisruptionObserver
from controller.reconcilers.provisioning.batchwindow import BatchWindow
from controller.reconcilers.provisioning.observer import ProvisioningObserver


class ObservingAssembly:
    """The observers of one controller; they are active while `run` runs."""

    def __init__(self, ports: ReconcilerPorts, options: Options) -> None:
        self._cloud, self._cluster, self._metrics = ports.cloud, ports.cluster, ports.metrics
        self._batch_window = BatchWindow(options.batch_idle_duration, options.batch_max_duration)
        provisioning = ProvisioningObserver(
            ports=ports, solve=ports.solve, batch_window=self._batch_window
        )
        advice = Advice(ports, ports.engine, Mode.OBSERVE)
        disruption = DisruptionObserver(ports, ports.engine, Advisor(advice))
        self._singletons = [
            Singleton("provisioner", provisioning, ports.metrics),
            Singleton("disruption", disruption, ports.metrics),
        ]

    async def run(self) -> None:
        """Start the cloud provider, then evaluate all objects and every change, until cancelled."""
        try:
            await self._cloud.start()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._cloud.run())
                for singleton in self._singletons:
                    tasks.create_task(singleton.run())
                for pod in self._cluster.pending_pods():
                    self._batch_window.nudge(pod.metadata.uid)
        finally:
            await self._cloud.shutdown()

    def notify(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Update the pod metrics, and start a batch if the pod has become pending.

        `before` is None for a created object, `after` for a deleted one.
        """
        if kind != kinds.POD or after is None:
            return
        self._metrics.record_pod_change(before, after)
        if self._cluster.becomes_pending(before, after):
            self._batch_window.nudge(after.metadata.uid)
