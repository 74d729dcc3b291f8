"""Disruption does not interrupt workloads, on a real control plane with failures.

All scenarios share one region. Each has its own NodePool, and those that only wait for nodes and
pods run at the same time. An observer follows pods and nodes through the API throughout: what
budgets guarantee must hold after every change.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack

import aiohttp
import pytest
import pytest_asyncio

from controller.state.registrations import MIN_FAILURES
from testbed.kube.client import KubeClient
from testbed.workloads.addresses import listening_address
from tests.monitoring.ours import alerts, dashboards, queries_of
from tests.monitoring.prometheus import evaluated_on
from tests.monitoring.report import missing
from tests.system.manifests import node_class
from tests.system.region import (
    CONTROLLER_PODS,
    DEPLOYMENTS,
    FREE_EVICTIONS,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    NODES,
    Controllers,
    Region,
    eventually,
)
from tests.system.scene import (
    BUDGETS,
    Scene,
    disruption_budget,
    gate,
    pods_of,
    small_nodes,
    watched,
)

pytestmark = pytest.mark.system

Scenario = Callable[[Scene], Awaitable[None]]


@pytest.fixture(scope="module")
def stack(region: Region, pytestconfig: pytest.Config) -> Iterator[Region]:
    """Yield the region after `pulumi up`; assert at the end that nothing of the stack is left."""
    nodes = int(pytestconfig.getoption("under_used_nodes"))
    quick = {
        **FREE_EVICTIONS,
        # All of the nodes join one small API server at the same time.
        "REGISTRATION_TIMEOUT": f"{max(15, nodes)}s",
        "DISRUPTION_IMAGE_SOAK": "1s",
        "DISRUPTION_TIME_LIMIT": "60s",
        "BATCH_IDLE_DURATION": "200ms",
    }
    region.up(settings=json.dumps(quick), deleteForeignNodePools="true", drainTimeout="30s")
    # A surplus instance must be visible at the end, however soon it was terminated.
    region.cloud.change_settings(terminated_visible=3600.0)
    yield region
    region.destroy()
    assert region.cloud.leftovers() == {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def playing(
    stack: Region, request: pytest.FixtureRequest
) -> AsyncIterator[Mapping[Scenario, asyncio.Task[None]]]:
    """Start the requested `SCENARIOS`, all at once."""
    asked = [item.name for item in request.session.items]
    async with stack.client() as kube:
        tasks = {
            scenario: asyncio.create_task(play(scenario, kube, stack))
            for scenario in SCENARIOS
            if any(scenario.__name__ in name for name in asked)
        }
        yield tasks
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def play(scenario: Scenario, kube: KubeClient, region: Region) -> None:
    """Run a scenario and print how long it took."""
    began = time.monotonic()
    async with watched(kube, region) as scene:
        await scenario(scene)
    print(f"{scenario.__name__}: {time.monotonic() - began:.1f} s")


@pytest.fixture
async def scene(stack: Region, kube: KubeClient) -> AsyncIterator[Scene]:
    async with watched(kube, stack) as scene:
        yield scene


async def a_whole_pool_drifts_within_its_budget(scene: Scene) -> None:
    count = 5
    old = await scene.begin("drifting", count, budgets=[{"nodes": "10%"}])
    scene.at_least(count - 1, "drifting")
    scene.at_most(1, "drifting")

    await scene.drift("drifting")
    await scene.until("the old nodes are gone", lambda: scene.gone(old))
    new = await scene.at_rest("drifting", "drifting", count)

    assert len(new) == count
    assert len(scene.instances_of("drifting")) == 2 * count
    await scene.end("drifting")


async def a_pod_that_cannot_be_evicted_keeps_its_node(scene: Scene) -> None:
    """Disruption removes another node of the NodePool, so it has seen both nodes."""
    kept = await scene.begin("kept", 1)
    await scene.kube.create(BUDGETS, disruption_budget("kept", maxUnavailable=0))
    await scene.kube.create(DEPLOYMENTS, pods_of("movable", "kept", 1))
    await scene.until("the other pod runs", lambda: scene.ready("movable"))
    movable = scene.under("movable")
    pods = scene.ready("kept")
    release = scene.untouched(kept)

    await scene.drift("kept")
    await scene.until("the other node is gone", lambda: scene.gone(movable))
    await scene.wait_for_events("DisruptionBlocked", kept, 'PodDisruptionBudget "default/kept"')
    assert scene.ready("kept") == pods
    release()

    scene.at_least(1, "kept")
    await scene.kube.patch(f"{DEPLOYMENTS}/kept", {"spec": {"replicas": 2}})
    await scene.until("a second pod runs", lambda: len(scene.ready("kept")) == 2)
    await scene.kube.patch(f"{BUDGETS}/kept", {"spec": {"maxUnavailable": 1}})
    await scene.until("the node is gone", lambda: scene.gone(kept))
    await scene.until("both pods run", lambda: len(scene.ready("kept")) == 2)
    await scene.end("kept", "movable")


async def a_budget_applies_during_its_schedule(scene: Scene) -> None:
    """Disruption removes a node of a NodePool whose window closed long ago, so it has seen both."""
    always = {"schedule": "* * * * *", "duration": "1h"}
    once_a_year = {"schedule": "0 0 1 1 *", "duration": "1m"}
    held = await scene.begin("held", 1, budgets=[{"nodes": "0", **always}])
    free = await scene.begin("free", 1, budgets=[{"nodes": "0", **once_a_year}])
    release = scene.untouched(held)

    await scene.drift("held")
    await scene.drift("free")
    await scene.until("the node of the other pool is gone", lambda: scene.gone(free))
    await scene.wait_for_events("DisruptionBlocked", ["held"], "due to blocking budget", "Drifted")
    release()

    other = {"disruption": {"budgets": [{"nodes": "0", **once_a_year}]}}
    await scene.kube.patch(f"{NODE_POOLS}/held", {"spec": other})
    await scene.until("the node is gone", lambda: scene.gone(held))
    await scene.at_rest("held", "held", 1)
    await scene.end("held", "free")


async def a_node_whose_replacement_never_registers_is_untainted(scene: Scene) -> None:
    old = await scene.begin("alone", 2, budgets=[{"nodes": "1"}])
    pods = scene.ready("alone")
    scene.at_least(2, "alone")
    scene.at_most(1, "alone")

    async with gate(scene, "CREATE", NODES, "alone") as closed:
        await scene.drift("alone")
        await closed.meet()
        (marked,) = await scene.until("a node is marked", lambda: scene.marked(old))
        replacements = frozenset(scene.names_of("alone")) - old
        assert len(replacements) == 1
        closed.refuse()
        await scene.until("what was made in its place is gone", lambda: scene.gone(replacements))
        await scene.until("the node is as it was", lambda: marked not in scene.marked(old))

    assert scene.ready("alone") == pods, "a pod has moved though there was nowhere to go"
    assert scene.present(old) == old
    await scene.wait_for_events("DisruptionLaunching", replacements)
    await scene.wait_for_events("DisruptionWaitingReadiness", replacements)
    await scene.end("alone")


async def an_ami_whose_nodes_never_join_is_not_rolled_out(scene: Scene) -> None:
    count, name = 3, "fragile"
    works = [{"alias": "al2023@v20261015"}]
    works_too = [{"alias": "al2023@v20261105"}]
    # This AMI cannot read the user data of the node class' AMI family.
    broken = [{"name": "bottlerocket-aws-k8s-*-x86_64-v1.52.0*"}]
    images = node_class(name, amiFamily="AL2023", amiSelectorTerms=works)
    await scene.kube.create(NODE_CLASSES, images)
    old = await scene.begin(name, count, node_class=name)
    pods = scene.ready(name)
    release_pods = scene.at_least(count, name)
    release_nodes = scene.at_most(1, name)
    tried: set[str] = set()

    def note() -> None:
        tried.update(scene.marked(old))

    scene.never(note)

    await scene.choose_images(name, broken)
    await scene.until_false(name, "NodeRegistrationHealthy")
    assert tried <= old
    assert tried  # the first try on a node may be long ago by then
    await scene.wait_for_events("Unconsolidatable", old - tried, "do not join the cluster")
    await scene.until("all nodes are as they were", lambda: not scene.marked(old))
    assert scene.ready(name) == pods
    await scene.until("nothing else is left", lambda: frozenset(scene.names_of(name)) == old)
    assert len(scene.instances_of(name)) == count + MIN_FAILURES
    release_pods()
    release_nodes()  # once one node has a working AMI, the others may follow

    await scene.choose_images(name, works_too)
    await scene.until("a node follows an image that works", lambda: not scene.present(old) >= old)
    await scene.end(name)


async def pods_of_a_deleted_pool_move_to_another(scene: Scene) -> None:
    count, app = 4, "moving"
    team = {"metadata": {"labels": {"example.com/team": "a"}}}
    doomed, other = small_nodes("doomed"), small_nodes("other")
    doomed["spec"]["weight"] = 10
    for pool in (doomed, other):
        pool["spec"]["template"] |= team
        await scene.kube.create(NODE_POOLS, pool)
    pods = pods_of(app, "", count)
    pods["spec"]["template"]["spec"]["nodeSelector"] = team["metadata"]["labels"]
    await scene.kube.create(BUDGETS, disruption_budget(app, maxUnavailable=1))
    await scene.kube.create(DEPLOYMENTS, pods)
    await scene.at_rest(app, "doomed", count)
    scene.at_least(count - 1, app)

    await scene.kube.delete(f"{NODE_POOLS}/doomed")
    await scene.at_rest(app, "other", count)
    await scene.until("nothing is left of the pool", lambda: not scene.claims_of("doomed"))

    assert not scene.of_pool("doomed")
    assert {i.state for i in scene.instances_of("doomed")} == {"terminated"}
    assert len(scene.instances_of("other")) == count
    await scene.end(app, "other")


SCENARIOS: tuple[Scenario, ...] = (
    a_whole_pool_drifts_within_its_budget,
    a_pod_that_cannot_be_evicted_keeps_its_node,
    a_budget_applies_during_its_schedule,
    a_node_whose_replacement_never_registers_is_untainted,
    an_ami_whose_nodes_never_join_is_not_rolled_out,
    pods_of_a_deleted_pool_move_to_another,
)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_pods_stay_available_while(
    playing: Mapping[Scenario, asyncio.Task[None]], scenario: Scenario
) -> None:
    await playing[scenario]


async def test_under_used_nodes_are_consolidated_together(
    scene: Scene, pytestconfig: pytest.Config
) -> None:
    count = int(pytestconfig.getoption("under_used_nodes"))
    name, filler = "under-used", "filler"
    pool = small_nodes(name, consolidateAfter="1s", consolidationPolicy="WhenEmpty")
    await scene.kube.create(NODE_POOLS, pool)
    await scene.kube.create(BUDGETS, disruption_budget(name, maxUnavailable="20%"))
    await scene.kube.create(DEPLOYMENTS, pods_of(filler, name, count))
    await scene.at_rest(filler, name, count)
    # Next to a large pod, a node has capacity for one of these.
    await scene.kube.create(DEPLOYMENTS, pods_of(name, name, count, cpu="500m", memory="256Mi"))
    before = await scene.at_rest(name, name, count)
    scene.at_least(count - count // 5, name)

    await scene.kube.delete(f"{DEPLOYMENTS}/{filler}")
    policy = {"disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized"}}
    began = time.monotonic()
    await scene.kube.patch(f"{NODE_POOLS}/{name}", {"spec": policy})
    # Three pods fit on a node.
    fewest = -(-count // 3)
    await scene.until(
        "no more nodes are left than the pods need",
        lambda: len(scene.of_pool(name)) <= 1.1 * fewest,
    )
    after = await scene.at_rest(name, name, count)
    print(f"{count} nodes became {len(after)} in {time.monotonic() - began:.0f} s")

    assert len(before) == count
    assert len(after) <= 1.1 * fewest
    await scene.end(name)


UNHAPPENED = {
    "joiner_disruption_advised_saving_dollars_per_hour",  # only with other modes
    "karpenter_cloudprovider_errors_total",
    "karpenter_interruption_received_messages_total",
    "controller_runtime_reconcile_errors_total",
    # The alerts select what is not ready.
    "operator_ec2nodeclass_status_condition_count",
    "operator_nodepool_status_condition_count",
}
"""What the scenarios do not cause, or not always."""


async def test_dashboards_and_alerts_find_their_metrics_afterwards(scene: Scene) -> None:
    name = "measured"
    await scene.begin(name, 1)
    await scene.kube.patch(f"{NODE_POOLS}/{name}", {"spec": {"limits": {"cpu": "100"}}})
    holder, _ = await Controllers(scene.region, scene.kube).leader()
    pod = await scene.kube.get(f"{CONTROLLER_PODS}/{holder.partition('_')[0]}")
    url = f"http://{listening_address(pod['status']['podIP'])}:8080/metrics"

    async def scraped() -> str:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            text = await response.text()
        pool = f'{{nodepool="{name}",resource_type="cpu"}}'
        pages = [f"karpenter_nodepools_{what}{pool}" for what in ("limit", "usage")]
        return text if all(series in text for series in pages) else ""

    page = await eventually("the NodePool's usage and limit are served", scraped)
    queries = [query for path in dashboards() for query in queries_of(path)]
    queries += [alert["expr"] for alert in alerts()]

    results, _ = await asyncio.to_thread(evaluated_on, [page] * 20, queries)

    assert [result["error"] for result in results if result["error"]] == []
    unread = {name.partition("{")[0] for result in results for name in missing(result)}
    assert unread - UNHAPPENED == set()
    await scene.end(name)


STEPS = (("CREATE", NODE_CLAIMS), ("CREATE", NODES), ("DELETE", NODE_CLAIMS))
"""The requests that replace a drifted node.

Its replacement is created, the replacement's Node is created, and once that is ready the old
NodeClaim is deleted.
"""


async def test_leaders_killed_at_each_step_of_a_replacement_lose_and_repeat_nothing(
    scene: Scene,
) -> None:
    name = "orphaned"
    controllers = Controllers(scene.region, scene.kube)
    old = await scene.begin(name, 2, budgets=[{"nodes": "1"}])
    scene.at_least(1, name)
    scene.at_most(1, name)

    async with AsyncExitStack() as gates:
        steps = [await gates.enter_async_context(gate(scene, *step, name)) for step in STEPS]
        await scene.drift(name)
        for step in steps:
            await step.meet()
            await scene.until("a node is marked", lambda: len(scene.marked(old)) == 1)
            await controllers.kill_leader()
            step.let_through()
        await scene.until("the old nodes are gone", lambda: scene.gone(old))
        await scene.at_rest(name, name, 2)

    assert len(controllers.killed) == len(STEPS)
    assert len(scene.instances_of(name)) == 4, "one in the place of each"
    await scene.end(name)
