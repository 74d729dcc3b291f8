"""Which pods kube-scheduler could not place, and which must therefore be pending as well."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.pods import Pod
from controller.state.pendingpods import PendingPods
from tests.builders import make_pod

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REFUSED = Condition(type="PodScheduled", status="False", reason="Unschedulable")
GATED = Condition(type="PodScheduled", status="False", reason="SchedulingGated")


def made(
    name: str,
    condition: Condition | None = None,
    *,
    owner: str = "replicas",
    kind: str = "ReplicaSet",
    node: str = "",
    selector: str = "",
    uid: str = "",
    labels: Mapping[str, str] | None = None,
) -> Pod:
    return make_pod(
        name,
        owner=owner and f"{kind}/{owner}",
        uid=uid or f"uid-{name}",
        creation_timestamp=NOW,
        labels=labels,
        node=node,
        node_selector={"disk": selector} if selector else {},
        phase="Pending",
        conditions=[condition] if condition else [],
    )


class Scenario:
    """Changes of pods, one after another."""

    def __init__(self) -> None:
        self.pending = PendingPods()
        self.pods: dict[str, Pod] = {}

    def now(self, pod: Pod) -> bool:
        """Store a version of a pod; return whether it becomes pending."""
        before = self.pods.get(pod.key)
        self.pods[pod.key] = pod
        self.pending.change(before, pod)
        return self.pending.becomes_pending(before, pod)

    def gone(self, pod: Pod) -> None:
        """Delete a pod."""
        self.pending.change(self.pods.pop(pod.key), None)

    def names(self) -> list[str]:
        """Return the names of the pending pods."""
        return [pod.metadata.name for pod in self.pending.all()]


@pytest.fixture
def scenario() -> Scenario:
    return Scenario()


def test_a_terminating_pod_that_a_finalizer_keeps_is_not_pending() -> None:
    pending = PendingPods()
    waits = make_pod(
        "waits", deletion_timestamp=NOW, finalizers=["example.com/hold"], conditions=[REFUSED]
    )

    pending.change(None, waits)

    assert pending.all() == ()


def test_an_untried_pod_is_undecided_while_an_equal_pod_is_unschedulable(
    scenario: Scenario,
) -> None:
    scenario.now(made("a"))
    scenario.now(made("b"))
    assert scenario.names() == []

    scenario.now(made("a", REFUSED))

    assert scenario.names() == ["a", "b"]


def test_a_pod_created_after_the_rejection_has_to_be_tried_first(scenario: Scenario) -> None:
    scenario.now(made("a", REFUSED))
    scenario.now(made("b"))
    assert scenario.names() == ["a"]

    scenario.now(made("c", REFUSED))

    assert scenario.names() == ["a", "b", "c"]


def test_after_a_rejection_kube_scheduler_is_expected_to_try_equal_pods_soon(
    scenario: Scenario,
) -> None:
    scenario.now(made("b", owner="others"))
    assert not scenario.pending.has_undecided(NOW)

    scenario.now(made("a", REFUSED))
    assert scenario.pending.has_undecided(NOW)

    scenario.now(made("b", node="n1", owner="others"))
    assert not scenario.pending.has_undecided(NOW)


def test_a_pod_that_waits_with_an_equal_pod_is_decided(scenario: Scenario) -> None:
    scenario.now(made("b"))
    scenario.now(made("a", REFUSED))
    assert not scenario.pending.has_undecided(NOW)


def test_a_pod_that_stays_untried_for_long_is_not_awaited(
    scenario: Scenario,
) -> None:
    scenario.now(made("b", owner="others"))
    scenario.now(made("a", REFUSED))

    assert not scenario.pending.has_undecided(NOW + timedelta(minutes=1))


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(made("b", owner="others"), id="another owner's"),
        pytest.param(made("b", owner=""), id="no owner"),
        pytest.param(made("b", selector="ssd"), id="of another template"),
        pytest.param(made("b", labels={"app": "debugged"}), id="other labels"),
        pytest.param(made("b", GATED), id="gated"),
        pytest.param(made("b", node="n1"), id="bound"),
    ],
)
def test_a_pod_is_not_undecided_for_a_rejected_one_when_it_is(scenario: Scenario, pod: Pod) -> None:
    scenario.now(pod)
    scenario.now(made("a", REFUSED))
    assert scenario.names() == ["a"]


def test_an_untried_pod_waits_no_longer_when_the_rejected_equal_pod_is_bound(
    scenario: Scenario,
) -> None:
    scenario.now(made("b"))
    scenario.now(made("a", REFUSED))

    scenario.now(made("a", node="n1"))

    assert scenario.names() == []


def test_an_untried_pod_waits_no_longer_when_the_rejected_equal_pod_is_deleted(
    scenario: Scenario,
) -> None:
    scenario.now(made("b"))
    scenario.now(made("a", REFUSED))

    scenario.gone(made("a", REFUSED))

    assert scenario.names() == []


def test_a_rejected_pod_without_an_owner_affects_no_other_pod(scenario: Scenario) -> None:
    scenario.now(made("b", owner=""))
    scenario.now(made("a", REFUSED, owner=""))
    assert scenario.names() == ["a"]


def test_a_pod_that_reuses_a_name_is_counted_from_its_creation(scenario: Scenario) -> None:
    scenario.now(made("b", uid="first"))
    scenario.now(made("a", REFUSED))

    scenario.now(made("b", uid="second"))

    assert scenario.names() == ["a"]


def test_a_repeated_rejection_of_a_pending_pod_changes_nothing(scenario: Scenario) -> None:
    assert not scenario.now(made("a"))
    assert not scenario.now(made("b"))
    assert scenario.now(made("a", REFUSED))
    assert not scenario.now(made("b", REFUSED))
    assert scenario.now(made("c", REFUSED))
