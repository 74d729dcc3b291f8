"""The demo's scenario: `make demo` shows it, this asserts it."""

from __future__ import annotations

import pytest

from testbed.demo.observation import Observation, Observer
from testbed.demo.scenario import Scenario
from testbed.kube.client import KubeClient
from tests.system.region import Region

pytestmark = pytest.mark.system


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
