"""The cluster's properties that nodes need to join it, as EKS returns them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from controller.aws.session import Aws
from controller.options import Options

VERSION_PERIOD = 300.0
"""Seconds between two updates of the Kubernetes version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EksCluster:
    """An EKS cluster.

    `version` is like `1.37`, and `ca_bundle` is PEM in base64. `dns` is the IP address of the
    cluster's DNS service, empty if unknown.
    """

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
        """The minor version of Kubernetes, such as 36."""
        return int(self.version.split(".")[1])


@dataclass
class ClusterFacts:
    """Caches the cluster's description, and updates its Kubernetes version."""

    aws: Aws
    options: Options
    dns: str = ""
    _known: EksCluster | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_ipv6(self) -> bool:
        """Whether pods have IPv6 addresses; False until EKS has returned the cluster."""
        return self._known is not None and self._known.ipv6

    async def get(self) -> EksCluster:
        """Return the cluster; settings override what EKS returns.

        Raises:
            CloudProviderError: EKS does not respond and never has.

        """
        if self._known is None:
            # Concurrent callers wait for the response to the first.
            async with self._lock:
                if self._known is None:
                    self._known = await self._describe()
        return self._known

    async def refresh(self) -> None:
        """Update the Kubernetes version; meanwhile, `get` returns the known one.

        Raises:
            CloudProviderError: EKS does not respond; the known values are kept.

        """
        before = await self.get()
        response = await self._describe()
        # Only the version of a running cluster changes; the service CIDR does not, once EKS
        # returned it.
        self._known = replace(before, version=response.version) if before.service_cidr else response

    async def _describe(self) -> EksCluster:
        name = self.options.cluster_name
        cluster = (await self.aws.call("eks", "describe_cluster", name=name))["cluster"]
        network = cluster.get("kubernetesNetworkConfig") or {}
        return EksCluster(
            name=name,
            endpoint=self.options.cluster_endpoint or cluster.get("endpoint", ""),
            ca_bundle=self.options.cluster_ca_bundle
            or (cluster.get("certificateAuthority") or {}).get("data", ""),
            version=cluster["version"],
            arn=cluster.get("arn", ""),
            service_cidr=network.get("serviceIpv4Cidr") or network.get("serviceIpv6Cidr") or "",
            ipv6=network.get("ipFamily") == "ipv6",
            dns=self.dns,
        )
