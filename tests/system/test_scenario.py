"""The demo's scenario: `make demo` shows it, this asserts it from an empty account.

The account has neither network nor cluster, and AWS takes its time to show what is new: the stack
makes the cluster that its nodes join, and takes it down again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.demo.observation import Observation, Observer
from testbed.demo.scenario import Scenario
from testbed.kube.client import KubeClient
from tests.system.region import Region, running_region

pytestmark = pytest.mark.system

SETTLING = {"settling": 0.5, "tagging": 1.5, "associating": 3.0}
"""Seconds until what is new is seen, until its tags are, and until pods that are created get an
identity that is."""

LARGEST_PAGE = 25


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """A region whose account is empty."""
    place = tmp_path_factory.mktemp("system") / "region"
    with running_region(place, has_eks_cluster=False) as running:
        running.cloud.change_settings(**SETTLING)
        running.cloud.limit_pages(LARGEST_PAGE)
        yield running


class Printed:
    """Prints how the scenario goes, which pytest shows when it breaks off."""

    def begin(self, title: str) -> None:
        print(f"▸ {title}")

    def show(self, observation: Observation) -> None:
        """Keep it."""

    def end(self, title: str, seconds: float, outcome: str) -> None:
        print(f"✓ {title} ({seconds:.1f} s): {outcome}")


async def test_pods_come_and_go_and_nodes_follow_until_destroy_leaves_nothing(
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
    assert region.cloud.unimplemented() == {}
    assert region.cloud.denied() == []
    assert region.errors() == [], "nothing went wrong, and yet somebody was asked to look"
