"""One control plane that the tests of the testbed share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.region.cluster import Cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a real control plane that these folders share; each test uses names of its own."""
    with Cluster(directory=tmp_path_factory.mktemp("testbed") / "cluster") as running:
        yield running


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """Yield a client of that control plane with administrator rights."""
    async with KubeClient(Kubeconfig.read(cluster.kubeconfig)) as client:
        yield client
