"""The sample NodePools match instance types of a region."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest
import yaml

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.aws.provider import AWSCloudProvider
from controller.reconcilers.newnodes.supply import requirement_mismatch
from tests.aws.builders import make_pool, ready, within

SAMPLES = sorted((Path(__file__).parents[2] / "crds" / "samples").glob("*.yaml"))


@pytest.fixture(scope="module")
def families() -> Collection[str]:
    """Return no family: these tests see all instance types."""
    return ()


def pools() -> list[NodePool]:
    return [
        msgspec.convert(manifest, NodePool)
        for path in SAMPLES
        for manifest in yaml.safe_load_all(path.read_text())
        if manifest["kind"] == "NodePool"
    ]


async def test_every_sample_matches_instance_types_and_a_misspelt_type_does_not(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)

    problems = {
        pool.metadata.name: requirement_mismatch(
            pool, await provider.instance_types(node_class, pool)
        )
        for pool in pools()
    }

    assert len(problems) > 5
    assert {name: problem for name, problem in problems.items() if problem} == {}
    slip = make_pool(within(labels.INSTANCE_TYPE, "m5.lrage"))
    types = await provider.instance_types(node_class, slip)
    assert "node.kubernetes.io/instance-type In [m5.lrage]" in requirement_mismatch(slip, types)
    assert types is await provider.instance_types(node_class, slip)  # so that it is compared once
