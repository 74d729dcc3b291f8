"""The interfaces that termination and reboot of a node share."""

from __future__ import annotations

from dataclasses import dataclass

from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider
from controller.reconcilers.clock import Clock
from controller.reconcilers.termination.eviction import Eviction
from controller.state.cluster import Cluster
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics


@dataclass(slots=True, kw_only=True)
class DrainPorts:
    """What a reconciler needs to drain a node and to act on its instance."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    eviction: Eviction
