"""A client of the control plane that a module's `cluster` fixture starts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.region.cluster import Cluster


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(Kubeconfig.read(cluster.kubeconfig)) as client:
        yield client
