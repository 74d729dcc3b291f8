"""`joiner advise` on a real control plane: a cluster that follows the advice saves what it says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.environment import CHECKOUT
from testbed.kube.client import KubeClient, Object
from tests.system.region import DEPLOYMENTS, FREE_EVICTIONS, NODE_POOLS, Region, eventually
from tests.system.scene import Scene, pods_of, small_nodes, watched

pytestmark = pytest.mark.system

NAME, COUNT = "advised", 8


@pytest.fixture(scope="module")
def stack(region: Region) -> Iterator[Region]:
    """Yield the region after `pulumi up`."""
    quick = {**FREE_EVICTIONS, "BATCH_IDLE_DURATION": "200ms"}
    region.up(settings=json.dumps(quick), deleteForeignNodePools="true", drainTimeout="30s")
    yield region
    region.destroy()


@pytest.fixture
async def scene(stack: Region, kube: KubeClient) -> AsyncIterator[Scene]:
    async with watched(kube, stack) as scene:
        yield scene


async def joiner(region: Region, *arguments: str) -> Any:
    """Run the command as an operator does, and return its JSON."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "controller", *arguments, "-o", "json"],
        cwd=CHECKOUT,
        env={**os.environ, **region.testbed.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def written_to(folder: Path) -> list[Object]:
    """Return the NodePools that the command wrote."""
    return [yaml.safe_load(path.read_text()) for path in folder.iterdir()]


async def test_a_live_cluster_that_follows_the_advice_saves_what_was_predicted(
    scene: Scene, tmp_path: Path
) -> None:
    pool = small_nodes(NAME, consolidateAfter="1s", consolidationPolicy="WhenEmpty")
    await scene.kube.create(NODE_POOLS, pool)
    await scene.kube.create(DEPLOYMENTS, pods_of("filler", NAME, COUNT))
    await scene.at_rest("filler", NAME, COUNT)
    # Next to a large pod, a node has capacity for one of these.
    await scene.kube.create(DEPLOYMENTS, pods_of(NAME, NAME, COUNT, cpu="500m", memory="256Mi"))
    await scene.at_rest(NAME, NAME, COUNT)
    await scene.kube.delete(f"{DEPLOYMENTS}/filler")
    await scene.at_rest(NAME, NAME, COUNT)

    advice = await joiner(scene.region, "advise", "--write-pools", str(tmp_path))
    policies = [each for each in advice["obstacles"] if each["kind"] == "ConsolidationPolicy"]
    assert [each["what"] for each in policies] == [
        f"NodePool {NAME}: consolidationPolicy WhenEmpty"
    ]
    before: float = advice["today"]["cost"]
    predicted: float = advice["withNodePools"]["cost"]
    assert predicted < before
    for pool in written_to(tmp_path):
        name = pool["metadata"]["name"]
        await scene.kube.patch(f"{NODE_POOLS}/{name}", {"spec": pool["spec"]})

    seen: list[float] = []

    async def realised() -> bool:
        now = await joiner(scene.region, "advise", "--obstacles", "1")
        seen.append(now["today"]["cost"])
        return abs(seen[-1] - predicted) <= 0.05 * (before - predicted)

    await eventually(
        f"the cost falls from {before} to {predicted} $/h, within 5 % of the saving",
        realised,
        otherwise=lambda: seen,
    )
    await scene.end(NAME)
