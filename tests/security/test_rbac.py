"""The controller has exactly the Kubernetes rights that it uses.

The rights used are those of the calls that its packages make to the in-memory API server. The calls
come from a run of the fault campaign, from runs of a whole controller with every feature, and from
scenarios of rare events.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bench.faults.campaign import Load, play
from controller.apis.karpenter.capacitybuffer import (
    CapacityBuffer,
    CapacityBufferSpec,
    LocalReference,
)
from controller.apis.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from controller.apis.kinds import Kind
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.workloads import PodTemplate
from controller.apiserver import fake
from controller.apiserver.errors import ConflictError
from controller.apiserver.fake import FakeApiServer
from controller.apiserver.port import Change
from controller.manager.replica import cluster_dns
from controller.manager.watches import WATCHED_BY_KOPF, mirrored_kinds
from controller.options import FeatureGates, Options
from controller.reconcilers.featuregates.disabled import DisabledFeatures
from controller.reconcilers.provisioning.arrivals import Arrivals
from infra.deployment.controller import Rule, cluster_rules, namespace_rules
from tests.builders import changed, make_nodeclass, make_nodepool, make_pod
from tests.manager.wholecontroller import WholeController
from tests.reconcilers import (
    test_deletioncosts,
    test_history,
    test_modes,
    test_surge,
    test_termination,
)
from tests.reconcilers.test_batchwindow import make_stateful_set, waiting
from tests.reconcilers.world import World
from tests.telemetry import test_events
from tests.virtualclock import VirtualClockLoop

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

ALL_ON = FeatureGates(
    node_repair=True,
    node_overlay=True,
    capacity_buffer=True,
    static_capacity=True,
    pod_deletion_cost_management=True,
)
OPTIONS = Options(
    cluster_name="joiner",
    feature_gates=ALL_ON,
    scheduler_config="{}",
    ignore_dra_requests=False,
    surge_single_replicas=True,
    gang_scheduling=True,
)
"""Settings with which the controller does all that it can do."""

ASKED_BY_ADMISSION: frozenset[Right] = frozenset(
    ("karpenter.sh", f"{plural}/finalizers", "update") for plural in ("nodepools", "nodeclaims")
)
"""Where the admission plugin OwnerReferencesPermissionEnforcement runs, it asks for the right to
write an owner's finalizers before a dependent may block the deletion. It is never called."""

OURS = ("controller.", "bench.faults.wires", "tests.manager.wholecontroller", "asyncio.")
"""Module prefixes whose calls count as the controller's. The third module stands in for Kopf, and
asyncio makes the calls of a gather."""


def granted(options: Options) -> set[Right]:
    rules: list[Rule] = [*cluster_rules(options), *namespace_rules(options)]
    return {
        right
        for rule in rules
        for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def _right(verb: str, kind: Kind[Any]) -> Right:
    requested = "create/eviction" if verb == "evict" else verb
    verb, _, subresource = requested.partition("/")
    return kind.group, "/".join(filter(None, (kind.plural, subresource))), verb


def _is_ours() -> bool:
    """Whether the controller makes the call, and not the test around it."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals["__name__"] == fake.__name__:
        frame = frame.f_back  # type: ignore[assignment]
    asking: str = frame.f_globals["__name__"] if frame is not None else ""
    return asking.startswith(OURS)


@contextlib.contextmanager
def recorded() -> Iterator[set[Right]]:
    """Record every right that the controller needs on in-memory API servers."""
    used: set[Right] = set()
    asked, watch = FakeApiServer._maybe_refuse, FakeApiServer.watch

    def maybe_refuse(self: FakeApiServer, verb: str, kind: Kind[Any]) -> None:
        if _is_ours():
            used.add(_right(verb, kind))
        asked(self, verb, kind)

    def watched(self: FakeApiServer, kind: Kind[Any]) -> AsyncIterator[Change[Any]]:
        if _is_ours():
            used.update((_right("list", kind), _right("watch", kind)))
        return watch(self, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeApiServer, "_maybe_refuse", maybe_refuse)
        patch.setattr(FakeApiServer, "watch", watched)
        # Coroutines that a killed process leaves unfinished report errors when they are collected.
        patch.setattr(sys, "unraisablehook", lambda _: None)
        logging.disable(logging.CRITICAL)
        try:
            yield used
        finally:
            logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def used() -> set[Right]:
    """Return the rights that the controller used."""
    with recorded() as rights:
        play(1, "mix", 0, Load(pods=12))
        with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
            for story in (_every_feature, _what_is_seldom):
                runner.run(story())
    return rights


async def _every_feature() -> None:
    """Run a whole controller with every feature; its first writes fail with a conflict."""
    begin = datetime(2026, 11, 21, 12, tzinfo=UTC)
    loop = asyncio.get_running_loop()
    world = WholeController(ALL_ON, lambda: begin + timedelta(seconds=loop.time()), options=OPTIONS)
    for kind in WATCHED_BY_KOPF:
        world.api.refuse("patch/status", ConflictError("another client wrote first"), kind=kind)
    static = make_nodepool("static")
    world.api.seed(
        make_nodeclass(),
        make_nodepool(),
        changed(static, spec={"replicas": 1}),
        make_pod("web"),
        NodeOverlay(metadata=ObjectMeta(name="dearer"), spec=NodeOverlaySpec(price="1")),
        PodTemplate(metadata=ObjectMeta(name="headroom", namespace="default")),
        CapacityBuffer(
            metadata=ObjectMeta(name="headroom", namespace="default"),
            spec=CapacityBufferSpec(pod_template_ref=LocalReference(name="headroom"), replicas=1),
        ),
    )
    life = asyncio.create_task(world.live())
    await asyncio.sleep(300)
    life.cancel()
    await asyncio.wait({life})


async def _what_is_seldom() -> None:
    """Run scenarios that neither the campaign nor a whole controller is certain to cause."""
    surge = test_surge.SurgeScenario()
    await surge.up()
    await test_surge.test_the_deployment_is_restarted_once_and_its_pod_not_evicted(surge)
    drain = test_termination
    leaving = drain.TerminationScenario()
    await leaving.up()
    await drain.test_a_finalizer_removed_by_another_controller_is_a_conflict(leaving)
    await drain.test_the_termination_grace_period_overrides_every_protection()
    await test_history.test_totals_survive_a_restart_and_the_end_of_their_records()
    await test_deletioncosts.test_pods_of_drifted_nodes_have_lower_deletion_costs()
    await test_modes.test_a_replaced_pod_does_not_create_another_recommendation()
    await cluster_dns(FakeApiServer())
    await test_events.test_a_repeated_event_shows_the_latest_numbers(test_events.RecordedEvents())
    world, pods = World(), waiting("web-0", owner="StatefulSet/web")
    world.seed(make_stateful_set(1, "Parallel"), *pods)
    assert await Arrivals(world.ports).are_complete({pods[0].metadata.uid})


def test_every_used_permission_is_granted(used: set[Right]) -> None:
    assert sorted(used - granted(OPTIONS)) == []


def test_every_granted_permission_is_used(used: set[Right]) -> None:
    unused = sorted(granted(OPTIONS) - used - ASKED_BY_ADMISSION)
    assert not unused, unused


async def test_permissions_of_disabled_features_are_those_of_their_report() -> None:
    world, off = World(), Options(cluster_name="joiner")
    world.seed(
        NodeOverlay(metadata=ObjectMeta(name="dearer"), spec=NodeOverlaySpec(price="1")),
        CapacityBuffer(
            metadata=ObjectMeta(name="headroom", namespace="default"),
            spec=CapacityBufferSpec(replicas=1),
        ),
    )
    with recorded() as rights:
        await DisabledFeatures(world.ports, off.feature_gates).run_once()

    concerned = {
        right for right in granted(off) if right[1].startswith(("nodeoverlays", "capacitybuffers"))
    }
    assert rights == concerned


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"feature_gates": FeatureGates(node_overlay=True)},
        {"feature_gates": FeatureGates(capacity_buffer=True)},
        {"ignore_dra_requests": False},
        {"gang_scheduling": True},
    ],
    ids=repr,
)
def test_kinds_may_be_watched_if_a_setting_requires_it(settings: dict[str, Any]) -> None:
    options = Options(cluster_name="joiner", **settings)
    # SCHEDULER_CONFIG may be set on the Deployment alone, so its rights are always granted.
    with_spreads = Options(cluster_name="joiner", scheduler_config="{}", **settings)
    watched = {right for right in granted(options) if right[2] == "watch"}
    assert watched == {_right("watch", kind) for kind in mirrored_kinds(with_spreads)}


def test_permissions_that_only_admission_checks_are_granted_and_never_called(
    used: set[Right],
) -> None:
    assert granted(OPTIONS) >= ASKED_BY_ADMISSION
    assert used & ASKED_BY_ADMISSION == set()
