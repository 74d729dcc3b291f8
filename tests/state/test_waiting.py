"""Whom kube-scheduler found no node for, and who must therefore wait as well."""

from __future__ import annotations

import pytest

from controller.apis.conditions import Condition
from controller.apis.meta import ObjectMeta, OwnerReference
from controller.apis.pods import Pod, PodSpec, PodStatus
from controller.state.waiting import Waiting

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
) -> Pod:
    reference = OwnerReference(api_version="apps/v1", kind=kind, name=owner, uid=f"uid-{owner}")
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=f"uid-{name}",
            owner_references=[reference] if owner else [],
        ),
        spec=PodSpec(node_name=node, node_selector={"disk": selector} if selector else {}),
        status=PodStatus(phase="Pending", conditions=[condition] if condition else []),
    )


def names(waiting: Waiting) -> list[str]:
    return [pod.metadata.name for pod in waiting.all()]


def test_an_untried_pod_waits_once_a_pod_of_the_same_template_is_refused() -> None:
    waiting = Waiting()
    waiting.put(made("b"))
    assert names(waiting) == []

    waiting.put(made("a", REFUSED))

    assert names(waiting) == ["a", "b"]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(made("b", owner="others"), id="another owner's"),
        pytest.param(made("b", owner=""), id="nobody's"),
        pytest.param(made("b", selector="ssd"), id="of another template"),
        pytest.param(made("b", GATED), id="gated"),
        pytest.param(made("b", node="n1"), id="bound"),
    ],
)
def test_a_pod_does_not_wait_for_the_sake_of_a_refused_one_when_it_is(pod: Pod) -> None:
    waiting = Waiting()
    waiting.put(made("a", REFUSED))
    waiting.put(pod)
    assert names(waiting) == ["a"]


def test_untried_pods_stop_waiting_with_the_last_refused_one() -> None:
    waiting = Waiting()
    refused, untried = made("a", REFUSED), made("b")
    waiting.put(refused)
    waiting.put(untried)

    waiting.drop(refused)
    waiting.put(made("a", node="n1"))

    assert names(waiting) == []


def test_a_refused_pod_without_an_owner_stands_for_nobody_else() -> None:
    waiting = Waiting()
    waiting.put(made("a", REFUSED, owner=""))
    waiting.put(made("b", owner=""))
    assert names(waiting) == ["a"]


def test_the_refusal_of_a_twin_that_waits_already_is_no_news() -> None:
    waiting = Waiting()
    first, second = made("a"), made("b")
    waiting.put(first)
    waiting.put(second)
    assert not waiting.is_news(None, second)

    refused = made("a", REFUSED)
    waiting.drop(first)
    waiting.put(refused)
    assert waiting.is_news(first, refused)

    refused_too = made("b", REFUSED)
    waiting.drop(second)
    waiting.put(refused_too)
    assert not waiting.is_news(second, refused_too)


def test_a_new_twin_of_a_refused_pod_is_news() -> None:
    waiting = Waiting()
    waiting.put(made("a", REFUSED))
    new = made("b")
    waiting.put(new)
    assert waiting.is_news(None, new)
