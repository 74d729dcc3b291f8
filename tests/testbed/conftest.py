"""What the tests of the testbed share: one control plane for all that need one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.region.cluster import Cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real control plane, shared by these folders; each test keeps to names of its own."""
    with Cluster(directory=tmp_path_factory.mktemp("testbed") / "cluster") as running:
        yield running


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """A client of that control plane, as its administrator."""
    async with KubeClient(Kubeconfig.read(cluster.kubeconfig)) as client:
        yield client
