"""The test cloud as a component: start, serve, stop."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from testbed.cloud import profiles, queues, seeds, tagging, zonalshift
from testbed.cloud.ec2 import fleets as _fleets
from testbed.cloud.ec2 import interfaces, prices, reservations, spotrequests, volumes
from testbed.cloud.eks import accessentries, clusters
from testbed.cloud.front import Front
from testbed.cloud.protocol import backends
from testbed.cloud.state.inventory import Clusters
from testbed.cloud.state.tokens import ClaimsReviewer, ClusterReviewer, TokenReviewer
from testbed.cloud.state.world import ClusterFacts, Settings, World

ANSWERING = (
    accessentries,
    clusters,
    _fleets,
    interfaces,
    prices,
    profiles,
    reservations,
    spotrequests,
    tagging,
    volumes,
    zonalshift,
)
"""Modules with operations: importing a module registers them. Other modules import the rest."""

STOP_CHECK = 0.05
"""Interval between the server's checks for shutdown, in seconds."""

_one_at_a_time = threading.Lock()
"""Held by the running cloud: moto's state is per process, so a process runs one cloud at a time."""


class QuietHandler(WSGIRequestHandler):
    """Request handler that keeps connections open between calls and logs no successful request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing for a successful request; the call log counts calls."""


@dataclass(kw_only=True)
class Cloud:
    """One AWS region, served on one loopback port."""

    region: str = "us-west-2"
    port: int = 0
    """The port to listen on; 0 selects a free port."""

    cluster_name: str = "joiner"
    cluster_endpoint: str = "https://127.0.0.1:6443"
    cluster_ca: str = "dGVzdGJlZA=="
    kubernetes_version: str = "1.37"
    oidc_issuer: str = "https://oidc.testbed.local/id/JOINER"
    has_cluster: bool = True
    """Whether the account has a network and a cluster at the start; False is an empty account."""

    kubeconfig: Path | None = None
    """Kubeconfig of the cluster that reviews tokens. None trusts the claims of a token."""

    settings: Settings = field(default_factory=Settings)
    _world: World | None = field(default=None, init=False)
    _server: BaseWSGIServer | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """The endpoint of every AWS API and of the control API."""
        assert self._server is not None, "the cloud has not been started"
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def world(self) -> World:
        """The state of the region, for tests in the same process."""
        assert self._world is not None, "the cloud has not been started"
        return self._world

    def start(self) -> None:
        """Create the region and start serving.

        Raises RuntimeError if this process already runs a cloud.
        """
        if not _one_at_a_time.acquire(blocking=False):
            raise RuntimeError("there is already a cloud in this process")
        try:
            self._start()
        except BaseException:
            _one_at_a_time.release()
            raise

    def _start(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        backends.reset()
        backends.warm(self.region)
        self._world = World(
            region=self.region,
            cluster=ClusterFacts(
                name=self.cluster_name,
                endpoint=self.cluster_endpoint,
                certificate_authority=self.cluster_ca,
                version=self.kubernetes_version,
                oidc_issuer=self.oidc_issuer,
            ),
            clusters=Clusters(),
            token_reviewer=self._reviewer(),
            settings=self.settings,
        )
        world = self._world
        seeds.create_initial_resources(world, with_cluster=self.has_cluster)
        backends.guard_deliveries(
            lambda queue, rule: queues.may_deliver(world, queue_name=queue, rule_arn=rule)
        )
        self._world.timers.start()
        self._server = make_server(
            "127.0.0.1",
            self.port,
            Front(self._world),
            threaded=True,
            request_handler=QuietHandler,
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(STOP_CHECK,),
            name="cloud-server",
            daemon=True,
        )
        self._thread.start()

    def _reviewer(self) -> TokenReviewer:
        return ClusterReviewer(self.kubeconfig) if self.kubeconfig else ClaimsReviewer()

    def stop(self) -> None:
        """Stop serving and discard the region. Does nothing if the cloud is not running."""
        if self._server is None or self._thread is None or self._world is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._world.timers.stop()
        self._server = None
        backends.guard_deliveries(None)
        _one_at_a_time.release()

    def __enter__(self) -> Cloud:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
