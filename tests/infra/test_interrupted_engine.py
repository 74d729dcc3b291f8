"""A destroy that is killed, and the `up` after it.

The tests use the real engine, a real API server and the test cloud, as in `test_engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from testbed.plugins.engine import EngineError
from tests.infra.stage import DEPLOYMENT, NODE_POOLS, Stage
from tests.infra.test_engine import stage, testbed
from tests.infra.test_recovery_engine import forget, with_environment

__all__ = ["stage", "testbed"]

pytestmark = pytest.mark.cluster

CHECKPOINTS = {"PULUMI_SKIP_CHECKPOINTS": "false"}
"""A killed engine leaves a state with all that it has done."""


class KilledError(Exception):
    """The engine was killed during the operation."""


def kill_destroy(stage: Stage, at: str) -> None:
    """Destroy the stack, and kill the engine when it says `at`."""

    def show(line: str) -> None:
        if at in line:
            raise KilledError

    with pytest.raises(KilledError):
        replace(stage, engine=replace(stage.engine, show=show)).destroy()
    stage.engine.unlock("dev")


def conditions_of(pools: Sequence[dict[str, object]]) -> set[str]:
    return {
        condition["type"]
        for pool in pools
        for condition in (pool.get("status") or {}).get("conditions") or ()  # type: ignore[attr-defined]
    }


def test_an_up_after_a_killed_destroy_restores_the_node_pools(stage: Stage) -> None:
    stage = with_environment(stage, CHECKPOINTS)
    stage.up(drainTimeout="1h")
    before = stage.resources
    stage.launch("claim-1")  # no controller drains it, so the destroy waits

    kill_destroy(stage, "draining: ")

    assert stage.resources == before
    (pool,) = stage.cluster.list(NODE_POOLS)
    assert "deletionTimestamp" not in pool["metadata"]
    assert "joiner.dev/InService" in conditions_of([pool])
    stage.said.clear()
    assert stage.engine.preview("dev", stage.settings | {"drainTimeout": "1h"}).any
    assert any("an earlier destroy began" in line for line in stage.said)
    stage.up(drainTimeout="1h")
    (pool,) = stage.cluster.list(NODE_POOLS)
    assert "joiner.dev/InService" not in conditions_of([pool])
    assert not stage.up(drainTimeout="1h").any
    stage.up()
    stage.destroy()
    assert stage.cloud.leftovers() == {}
    assert stage.installed == set()


def test_what_the_state_forgot_is_adopted_and_pods_follow_their_service_account(
    stage: Stage,
) -> None:
    stage.up()
    before = stage.installed
    account = "/api/v1/namespaces/kube-system/serviceaccounts/karpenter"
    stage.cluster.delete(account)
    # As a destroy that fails late leaves it, and a refresh after the deletion of the account.
    forgotten = ("CustomResourceDefinition", "ServiceAccount")
    assert forget(stage, lambda one: str(one["type"]).rpartition(":")[2] in forgotten) > 3

    stage.up()

    assert stage.installed == before
    created, deployment = stage.cluster.get(account), stage.cluster.get(DEPLOYMENT)
    assert created is not None
    assert deployment is not None
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["joiner.dev/service-account"] == created["metadata"]["uid"]
    stage.up()  # reports that the provider no longer adopts objects
    assert not stage.up().any
    stage.destroy()
    assert stage.installed == set()


def test_a_destroy_of_a_part_or_of_a_protected_stack_is_refused_before_the_drain(
    stage: Stage,
) -> None:
    stage.up()
    instance = stage.launch("claim-1")
    before = stage.resources
    (role,) = (urn for urn in before if urn.endswith("::joiner-node") and "iam/role:Role" in urn)

    stage.said.clear()
    with pytest.raises(EngineError):
        stage.engine.destroy("dev", "--target", role, "--target-dependents")
    assert any("this destroy has --target" in line for line in stage.said)
    assert stage.lives(instance)

    state = stage.engine.state("dev")
    for one in state["deployment"]["resources"]:
        one["protect"] = one["urn"] == role
    stage.engine.restore("dev", state)
    stage.said.clear()
    with pytest.raises(EngineError):
        stage.destroy()
    assert stage.lives(instance), stage.said
    assert stage.resources == before
    for one in state["deployment"]["resources"]:
        one["protect"] = False
    stage.engine.restore("dev", state)
    stage.destroy()
    assert stage.installed == set()
