"""What nodes must know of the cluster to join it, as EKS tells."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from controller.aws.session import Aws
from controller.options import Options

VERSION_PERIOD = 300.0
"""Seconds after which the Kubernetes version is asked for again: clusters are upgraded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EksCluster:
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
    """What EKS said when it was first asked, with the version it told last."""

    def __init__(
        self,
        aws: Aws,
        options: Options,
        *,
        dns: str = "",
    ) -> None:
        self._aws = aws
        self._options = options
        self._dns = dns
        self._known: EksCluster | None = None
        self._asking = asyncio.Lock()

    async def get(self) -> EksCluster:
        """Return the cluster; settings win over what EKS says.

        Raises:
            CloudProviderError: EKS does not answer and never has.

        """
        if self._known is None:
            # Who comes meanwhile waits for the first one's answer.
            async with self._asking:
                if self._known is None:
                    self._known = await self._ask()
        return self._known

    async def refresh(self) -> None:
        """Ask for the version again; nobody who wants the cluster waits for it.

        Raises:
            CloudProviderError: EKS does not answer; what was known stays known.

        """
        before = await self.get()
        told = await self._ask()
        # Only the version may change under a running cluster; a CIDR never does, once it is told.
        self._known = replace(before, version=told.version) if before.service_cidr else told

    async def _ask(self) -> EksCluster:
        name = self._options.cluster_name
        cluster = (await self._aws.call("eks", "describe_cluster", name=name))["cluster"]
        network = cluster.get("kubernetesNetworkConfig") or {}
        return EksCluster(
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
