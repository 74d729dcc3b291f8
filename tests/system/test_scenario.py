"""The demo's scenario, asserted from an empty account; `make demo` shows it.

The account has neither network nor cluster, and AWS is eventually consistent. The stack creates the
cluster that its nodes join, and deletes it at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.demo.observation import Observer
from testbed.demo.scenario import Scenario, Viewer
from testbed.kube.client import KubeClient
from tests.system.region import Region, running_region

pytestmark = pytest.mark.system

DELAYS = {"visible_after": 0.5, "associating": 3.0}
"""Seconds until a new resource and its association become visible.

An association counts as visible once new pods get its identity. Tags are visible at once: Pulumi's
provider fails on a tag that EC2 does not show yet.
"""

LARGEST_PAGE = 25


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """Yield a region whose account is empty."""
    place = tmp_path_factory.mktemp("system") / "region"
    with running_region(place, has_eks_cluster=False) as running:
        running.cloud.change_settings(**DELAYS)
        running.cloud.limit_pages(LARGEST_PAGE)
        yield running


class Printed(Viewer):
    """Prints the progress of the scenario; pytest shows the output if the test fails."""

    def begin(self, title: str) -> None:
        print(f"▸ {title}")

    def end(self, title: str, seconds: float, outcome: str) -> None:
        print(f"✓ {title} ({seconds:.1f} s): {outcome}")


async def test_nodes_follow_pods_and_destroy_leaves_nothing(
    region: Region, kube: KubeClient
) -> None:
    scenario = Scenario(
        observer=Observer(kube, region.cloud),
        engine=region.engine,
        configuration=region.settings,
        logs=region.logs,
        viewer=Printed(),
    )

    summary = await scenario.run()

    assert summary.pods_bound == 200
    assert summary.nodes_by_type
    assert 0 < summary.lower_bound <= summary.cost
    assert summary.left == {}
    assert region.cloud.unimplemented_calls() == {}
    assert region.cloud.denied_calls() == []
    assert region.errors() == [], "an error is logged though nothing went wrong"
