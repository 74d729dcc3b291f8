"""A real control plane with Joiner's custom resources, and the client under test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.apis.kinds import Kind
from controller.apiserver.errors import NotFoundError
from controller.kube.access import from_kubeconfig
from controller.kube.client import Client
from controller.manager.watches import WATCHED_BY_KOPF
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.region.cluster import Cluster
from tests.virtualclock import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]

CRDS = Path(__file__).parents[2] / "crds"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(directory=tmp_path_factory.mktemp("kube") / "cluster") as running:
        yield running


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """Yield the testbed's own client, for operations that the port does not have."""
    async with KubeClient(Kubeconfig.read(cluster.kubeconfig)) as client:
        yield client


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(from_kubeconfig(cluster.kubeconfig)) as client:
        yield client


@pytest.fixture
async def namespace(admin: KubeClient) -> str:
    """Return a namespace for this test only."""
    name = f"kube-{next(_numbers)}"
    await admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
async def custom_resources(admin: KubeClient, api: Client) -> None:
    """Install the custom resources and wait until they are served."""
    installed, _ = await admin.list(DEFINITIONS)
    names = {definition["metadata"]["name"] for definition in installed}
    for file in sorted(CRDS.glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        if definition["metadata"]["name"] not in names:
            await admin.create(DEFINITIONS, definition)
    async with asyncio.timeout(120):
        for kind in WATCHED_BY_KOPF:
            await _served(api, kind)


async def _served(api: Client, kind: Kind[Any]) -> None:
    while True:
        try:
            await api.list(kind)
            return
        except NotFoundError:  # a definition is not served at once
            await asyncio.sleep(0.1)
