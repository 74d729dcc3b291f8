"""Solve helpers and assertions about the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.requirements import read
from controller.scheduling.results import NewNode, Results
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from tests.builders import make_snapshot


def schedule_on(
    world: Snapshot | object,
    pods: Sequence[Pod],
    *,
    types: Sequence[InstanceType] = (),
    settings: Settings | None = None,
) -> Results:
    """Return the results of a solve of a snapshot, or of a world with one NodePool."""
    snapshot = world if isinstance(world, Snapshot) else make_snapshot(world, types=types)  # type: ignore[arg-type]
    results = schedule(pods, snapshot=snapshot, settings=settings)
    expect_all_accounted(results, pods)
    return results


def expect_all_accounted(results: Results, pods: Sequence[Pod]) -> None:
    """Assert that every pod is in the results exactly once."""
    named = Counter(
        pod
        for group in (
            *(node.pods for node in results.new_nodes),
            *results.existing_nodes.values(),
            tuple(results.unschedulable),
        )
        for pod in group
    )
    assert named == Counter(pod.key for pod in pods)


def expect_nodes(results: Results, count: int) -> None:
    """Assert that there are `count` new nodes and no unschedulable pods."""
    assert not results.unschedulable, results.unschedulable
    assert len(results.new_nodes) == count, [node.pods for node in results.new_nodes]


def expect_scheduled(results: Results) -> None:
    """Assert that no pod is unschedulable."""
    assert not results.unschedulable, results.unschedulable


def expect_unschedulable(results: Results, pod: Pod, *words: str) -> None:
    """Assert that a pod is unschedulable and that its causes contain these words."""
    assert pod.key in results.unschedulable, results
    causes = "; ".join(results.unschedulable[pod.key])
    for word in words:
        assert word in causes, causes
    assert len(causes) < 1000, "an event must stay readable"


def expect_on_existing(results: Results, node: str, pods: Iterable[Pod]) -> None:
    """Assert that exactly these pods go to an existing node."""
    assert sorted(results.existing_nodes.get(node, ())) == sorted(pod.key for pod in pods)


def values_of(node: NewNode, key: str) -> list[str]:
    """Return the values that a NodeClaim allows for a label; empty without a requirement."""
    allowed = read(node.requirements).get(key)
    return sorted(allowed.values) if allowed is not None else []


def node_of(results: Results, pod: Pod) -> NewNode:
    """Return the new node of a pod."""
    return next(node for node in results.new_nodes if pod.key in node.pods)


def expect_skew(results: Results, key: str, pods: Sequence[Pod], *counts: int) -> None:
    """Assert the number of these pods in each domain of a label, in any order."""
    where: Counter[str] = Counter()
    for pod in pods:
        values = values_of(node_of(results, pod), key)
        assert len(values) == 1, f"{pod.key} may land in any of {values}"
        where[values[0]] += 1
    assert sorted(where.values()) == sorted(counts), where
