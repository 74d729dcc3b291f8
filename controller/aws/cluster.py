"""What nodes must know of the cluster to join it, as EKS tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from controller.aws.session import Aws
from controller.options import Options

VERSION_PERIOD = 300.0
"""Seconds after which the Kubernetes version is asked for again: clusters are upgraded."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster: `version` as `1.36`, the CA as PEM in base64, `dns` as an address or empty."""

    name: str
    endpoint: str
    ca_bundle: str
    version: str
    arn: str = ""
    service_cidr: str = ""
    ipv6: bool = False
    dns: str = ""

    @property
    def minor(self) -> int:
        """The minor version, such as 36."""
        return int(self.version.split(".")[1])


class ClusterFacts:
    """Asks EKS once, and again for the version from time to time."""

    def __init__(
        self,
        aws: Aws,
        options: Options,
        *,
        dns: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws = aws
        self._options = options
        self._dns = dns
        self._clock = clock
        self._known: Cluster | None = None
        self._asked_at = 0.0

    async def get(self) -> Cluster:
        """Return the cluster; settings win over what EKS says."""
        if self._known is None or self._clock() - self._asked_at > VERSION_PERIOD:
            found = await self._ask()
            # Only the version may change under a running cluster; a CIDR never does.
            self._known = replace(self._known, version=found.version) if self._known else found
            self._asked_at = self._clock()
        return self._known

    async def _ask(self) -> Cluster:
        name = self._options.cluster_name
        cluster = (await self._aws.call("eks", "describe_cluster", name=name))["cluster"]
        network = cluster.get("kubernetesNetworkConfig") or {}
        return Cluster(
            name=name,
            endpoint=self._options.cluster_endpoint or cluster.get("endpoint", ""),
            ca_bundle=self._options.cluster_ca_bundle
            or (cluster.get("certificateAuthority") or {}).get("data", ""),
            version=cluster["version"],
            arn=cluster.get("arn", ""),
            service_cidr=network.get("serviceIpv4Cidr") or network.get("serviceIpv6Cidr") or "",
            ipv6=network.get("ipFamily") == "ipv6",
            dns=self._dns,
        )
