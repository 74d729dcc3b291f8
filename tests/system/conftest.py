"""A region for each module, a client for each test, and the controller's last logs on failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from testbed.kube.client import KubeClient
from tests.system.region import Region, running_region


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """Yield a whole region for the module."""
    with running_region(tmp_path_factory.mktemp("system") / "region") as running:
        yield running


@pytest.fixture
async def kube(region: Region) -> AsyncIterator[KubeClient]:
    """Yield a client of the region's cluster with administrator rights."""
    async with region.client() as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the last logs of the controller and the engine to a failure report."""
    report = yield
    region = getattr(item, "funcargs", {}).get("region")
    if report.failed and isinstance(region, Region):
        report.sections.append(("the system pods' logs", region.log_tail()))
        report.sections.append(("the Pulumi engine", "\n".join(region.said[-30:])))
    return report
