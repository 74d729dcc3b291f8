"""The interfaces that all reconcilers use, passed as one object."""

from __future__ import annotations

from dataclasses import dataclass

from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider
from controller.reconcilers.clock import Clock
from controller.state.cluster import Cluster
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The mirror, the clock, and the interfaces to Kubernetes, the cloud, events and metrics."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock


class PortUser:
    """Base of every class that has `Ports`: each port is an attribute of its instances."""

    __slots__ = ()

    ports: Ports

    @property
    def api(self) -> ApiServer:
        """The Kubernetes API server."""
        return self.ports.api

    @property
    def cloud(self) -> CloudProvider:
        """The cloud that launches and terminates instances."""
        return self.ports.cloud

    @property
    def cluster(self) -> Cluster:
        """The objects of the cluster, as the watches last reported them."""
        return self.ports.cluster

    @property
    def recorder(self) -> Recorder:
        """The publisher of events."""
        return self.ports.recorder

    @property
    def metrics(self) -> Metrics:
        """The metrics of this process."""
        return self.ports.metrics

    @property
    def clock(self) -> Clock:
        """The clock, in UTC."""
        return self.ports.clock
