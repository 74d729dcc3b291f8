"""A new AMI reaches one node first, and no other while it is unproven."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.disruption.commands import Decision
from controller.disruption.methods.order import decide
from controller.disruption.problem import DisruptionSettings
from controller.offline.disrupt import problem_of, without_waits
from controller.offline.world import load
from tests.disruption.test_consolidation import going, pods, pool, world

CHANGED = datetime(2026, 11, 1, 12, tzinfo=UTC)
SOAK = DisruptionSettings().image_soak
PATIENT = timedelta(days=365)


def condition(kind: str, since: datetime, *, reason: str = "", status: str = "True") -> Any:
    return {
        "type": kind,
        "status": status,
        "reason": reason or kind,
        "message": "Failed to register node" if status == "False" else "",
        "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def rolling(
    *,
    newcomer_since: datetime | None = None,
    ready: bool = True,
    joins: bool = True,
    replicas: int | None = None,
    reason: str = "AMIDrift",
) -> dict[str, Any]:
    """Return a cluster of three nodes with the image of old and, maybe, one with the new."""
    fixed = pool(consolidateAfter="Never")
    if replicas is not None:
        fixed["spec"]["replicas"] = replicas
    if not joins:
        health = condition("NodeRegistrationHealthy", CHANGED, status="False")
        fixed.setdefault("status", {}).setdefault("conditions", []).append(health)
    names = ["n0", "n1", "n2", *(["new"] if newcomer_since else [])]
    cluster = world(*((name, "small", pods(name, 4)) for name in names), pools=[fixed])
    for claim in cluster["nodeClaims"]:
        status = claim["status"]
        if claim["metadata"]["name"].startswith("new") or status["nodeName"] == "new":
            claim["metadata"]["creationTimestamp"] = "2026-11-01T12:01:00Z"
            status["imageID"] = "ami-new"
            kept = [shown for shown in status["conditions"] if shown["type"] != "Initialized"]
            assert newcomer_since is not None
            status["conditions"] = [*kept, condition("Initialized", newcomer_since)]
        else:
            claim["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            status["imageID"] = "ami-old"
            status["conditions"].append(condition("Drifted", CHANGED, reason=reason))
    if not ready:
        for shown in cluster["nodes"][-1]["status"]["conditions"]:
            if shown["type"] == "Ready":
                shown["status"] = "False"
    return cluster


def decided(cluster: dict[str, Any], now: datetime, *, waits: bool = True) -> Decision:
    problem = problem_of(load(cluster), now=now, with_eviction_cost=True)
    return decide(problem if waits else without_waits(problem))


def test_the_first_node_with_an_outdated_ami_is_replaced_at_once() -> None:
    (command,) = decided(rolling(), CHANGED).commands

    assert len(command.names) == 1


def test_the_other_nodes_follow_after_the_ami_soak_time() -> None:
    up = CHANGED + timedelta(minutes=2)
    cluster = rolling(newcomer_since=up)

    early = decided(cluster, up + SOAK - timedelta(seconds=1))
    assert not early.commands
    assert early.held_back == {"n0", "n1", "n2"}
    assert "2026-11-01 12:12:00 UTC" in early.blocked["n0"]

    (command,) = decided(cluster, up + SOAK).commands
    assert command.names < {"n0", "n1", "n2"}


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        pytest.param({"ready": False}, "new, which runs the new AMI", id="not ready"),
        pytest.param({"joins": False}, "do not join the cluster", id="never joins"),
    ],
)
def test_no_node_is_replaced_while_nodes_with_the_new_ami_are_not_ready(
    trouble: dict[str, Any], why: str
) -> None:
    cluster = rolling(newcomer_since=CHANGED + timedelta(minutes=2), **trouble)
    decision = decided(cluster, CHANGED + PATIENT)

    assert not decision.commands
    assert why in decision.blocked["n0"]
    assert "EC2NodeClass" in decision.blocked["n0"]


def test_a_static_pool_tries_a_new_ami_on_one_node() -> None:
    first = decided(rolling(replicas=3), CHANGED)
    assert [len(command.names) for command in first.commands] == [1]
    (tried,) = going(first)
    assert all("on one node first" in first.blocked[name] for name in {"n0", "n1", "n2"} - {tried})

    up = CHANGED + timedelta(minutes=2)
    later = decided(rolling(newcomer_since=up, replicas=4), up + SOAK)
    assert going(later) == {"n0", "n1", "n2"}


def test_drift_for_other_reasons_does_not_wait_for_the_ami_soak_time() -> None:
    cluster = rolling(newcomer_since=CHANGED + timedelta(minutes=2), reason="NodePoolDrifted")

    assert decided(cluster, CHANGED + timedelta(minutes=3)).commands


def test_without_waits_an_ami_rolls_out_as_fast_as_budgets_allow() -> None:
    cluster = rolling(newcomer_since=CHANGED + timedelta(minutes=2))

    assert decided(cluster, CHANGED + timedelta(minutes=3), waits=False).commands


def test_a_node_with_an_older_ami_does_not_prove_the_new_one() -> None:
    cluster = rolling(newcomer_since=CHANGED - timedelta(days=30))
    cluster["nodeClaims"][-1]["metadata"]["creationTimestamp"] = "2026-10-01T00:00:00Z"
    problem = problem_of(load(cluster), now=CHANGED, with_eviction_cost=True)
    settings = replace(problem.settings, eviction_price=0.0)

    assert len(going(decide(replace(problem, settings=settings)))) == 1
