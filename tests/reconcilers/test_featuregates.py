"""An object whose feature gate is off reports so; objects of other controllers are left alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import kinds
from controller.apis.karpenter.capacitybuffer import (
    CapacityBuffer,
    CapacityBufferSpec,
    CapacityBufferStatus,
)
from controller.apis.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from controller.apis.kinds import Kind
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apiserver.errors import NotFoundError
from controller.options import FeatureGates
from controller.reconcilers.featuregates.disabled import DisabledFeatures
from tests.reconcilers.world import World

OVERLAY = NodeOverlay(metadata=ObjectMeta(name="dearer"), spec=NodeOverlaySpec(price="1"))
BUFFER = CapacityBuffer(
    metadata=ObjectMeta(name="headroom", namespace="team"), spec=CapacityBufferSpec(replicas=1)
)


async def reported(world: World, **gates: bool) -> None:
    await DisabledFeatures(world.ports, FeatureGates(**gates)).run_once()


def said(world: World, kind: Kind[Any]) -> tuple[str, str] | None:
    (stored,) = world.api.objects(kind)
    if not stored.status.conditions:
        return None
    (condition,) = stored.status.conditions
    return f"{condition.type}={condition.status}: {condition.reason}", condition.message


async def test_objects_report_that_their_feature_gate_is_off_and_how_to_enable_it() -> None:
    world = World()
    world.seed(OVERLAY, BUFFER)

    await reported(world)

    assert said(world, kinds.NODE_OVERLAY) == (
        "Ready=False: FeatureGateDisabled",
        "NodeOverlay has no effect: the feature gate NodeOverlay is off. To turn it on, add "
        "NodeOverlay=true to the setting FEATURE_GATES",
    )
    assert said(world, kinds.CAPACITY_BUFFER) == (
        "ReadyForProvisioning=False: FeatureGateDisabled",
        "CapacityBuffer has no effect: the feature gate CapacityBuffer is off. To turn it on, add "
        "CapacityBuffer=true to the setting FEATURE_GATES",
    )
    written = len(world.api.calls)
    await reported(world)
    assert [verb for verb, *_ in world.api.calls[written:] if verb != "list"] == []


async def test_only_objects_of_a_disabled_gate_report_it() -> None:
    world = World()
    world.seed(OVERLAY, BUFFER)

    await reported(world, node_overlay=True)

    assert said(world, kinds.NODE_OVERLAY) is None
    assert said(world, kinds.CAPACITY_BUFFER) is not None


@pytest.mark.parametrize(
    ("reason", "is_ours"),
    [
        ("Resolved", True),
        ("PodTemplateNotFound", True),
        ("ScalableRefNotFound", True),
        ("ResolutionFailed", True),
        ("attributesSetSuccessfully", False),
    ],
)
async def test_a_buffer_of_another_provisioner_is_not_written(reason: str, is_ours: bool) -> None:
    world = World()
    ready = Condition(type="ReadyForProvisioning", status="True", reason=reason)
    filled = Condition(type="Provisioning", status="True", reason="FitsExistingCapacity")
    status = CapacityBufferStatus(conditions=[ready, filled], ready_replicas=1)
    world.seed(msgspec.structs.replace(BUFFER, status=status))

    await reported(world)

    (stored,) = world.api.objects(kinds.CAPACITY_BUFFER)
    known = stored.status.conditions
    assert conditions.is_true(known, "ReadyForProvisioning") is not is_ours
    assert conditions.is_true(known, "Provisioning") is not is_ours
    assert stored.status.ready_replicas == (0 if is_ours else 1)


async def test_a_buffer_with_another_strategy_is_not_written() -> None:
    world = World()
    spec = msgspec.structs.replace(BUFFER.spec, provisioning_strategy="example.com/standby")
    world.seed(msgspec.structs.replace(BUFFER, spec=spec))

    await reported(world)

    assert said(world, kinds.CAPACITY_BUFFER) is None


async def test_a_buffer_that_gets_another_strategy_loses_the_report() -> None:
    world = World()
    world.seed(BUFFER)
    await reported(world)
    assert said(world, kinds.CAPACITY_BUFFER) is not None
    (stored,) = world.api.objects(kinds.CAPACITY_BUFFER)
    spec = msgspec.structs.replace(BUFFER.spec, provisioning_strategy="example.com/standby")
    world.seed(msgspec.structs.replace(stored, spec=spec))

    await reported(world)

    assert said(world, kinds.CAPACITY_BUFFER) is None


async def test_missing_crds_are_not_an_error() -> None:
    world = World()
    world.seed(BUFFER)
    world.api.refuse("list", NotFoundError("no such resource"), kind=kinds.NODE_OVERLAY)

    await reported(world)

    assert said(world, kinds.CAPACITY_BUFFER) is not None
