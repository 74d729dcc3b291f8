"""A world with a node class and a NodePool, and event loops in virtual time."""

from __future__ import annotations

import pytest

from controller.reconcilers.nodeclaim.lifecycle import Lifecycle
from tests.builders import make_nodeclass, make_nodepool
from tests.reconcilers.world import Unprepared, World, make_lifecycle
from tests.virtualclock import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
def world() -> World:
    world = World()
    world.seed(make_nodeclass(), make_nodepool())
    return world


@pytest.fixture
def lifecycle(world: World) -> Lifecycle:
    """Return the lifecycle reconciler of NodeClaims, with no preparation of nodes."""
    return make_lifecycle(world, Unprepared())
