"""Questions about a live cluster use the settings of its controller."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apiserver.errors import ForbiddenError
from controller.apiserver.fake import FakeApiServer
from controller.offline.record.deployed import CONTROLLER_DEPLOYMENT, controller_options
from controller.options import Options, OptionsError

SHELL = {"DISRUPTION_EVICTION_PRICE": "7", "CLUSTER_NAME": "of-the-shell"}


def deployment(name: str = "joiner", **container: Any) -> dict[str, Any]:
    """Return a Deployment of the controller as the API server sends it."""
    labels = {"app.kubernetes.io/name": "karpenter", "app.kubernetes.io/instance": name}
    sidecar = {"name": "proxy", "env": [{"name": "DISRUPTION_EVICTION_PRICE", "value": "9"}]}
    containers = [sidecar, {"name": "controller", "image": "joiner:1", **container}]
    return {
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
        "spec": {"template": {"spec": {"containers": containers}}},
    }


async def settings(
    *deployments: dict[str, Any], argv: tuple[str, ...] = (), said: list[str] | None = None
) -> Options:
    api = FakeApiServer()
    for body in deployments:
        api.store_json(CONTROLLER_DEPLOYMENT, body)
    heard: list[str] = [] if said is None else said
    return await controller_options(api, argv, SHELL, heard.append)


async def test_settings_are_read_from_the_deployment_and_not_from_the_environment() -> None:
    said: list[str] = []
    env = [
        {"name": "CLUSTER_NAME", "value": "prod"},
        {"name": "DISRUPTION_HORIZON", "value": "5m"},
        {"name": "MEMORY_LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
    ]

    options = await settings(
        deployment(env=env, args=["--feature-gates=SpotToSpotConsolidation=true"]), said=said
    )

    assert options.cluster_name == "prod"
    assert options.disruption_horizon.total_seconds() == 300
    assert options.feature_gates.spot_to_spot_consolidation
    assert options.disruption_eviction_price == Options(cluster_name="x").disruption_eviction_price
    assert said == ["settings: Deployment kube-system/joiner"]


async def test_a_flag_wins_over_the_deployment() -> None:
    deployed = deployment(args=["--disruption-eviction-price=1", "--disruption-horizon=5m"])

    options = await settings(deployed, argv=("--disruption-eviction-price=2",))

    assert options.disruption_eviction_price == 2
    assert options.disruption_horizon.total_seconds() == 300


async def test_without_a_deployment_the_environment_is_used_with_a_warning() -> None:
    said: list[str] = []
    other = deployment("web")
    other["metadata"]["labels"] = {"app.kubernetes.io/name": "web"}

    options = await settings(other, said=said)

    assert options.disruption_eviction_price == 7
    assert "no Deployment" in said[0]
    assert "this shell's environment" in said[0]


async def test_an_unreadable_deployment_is_reported() -> None:
    said: list[str] = []
    api = FakeApiServer()
    api.refuse("list", ForbiddenError("deployments is forbidden", status=403))

    options = await controller_options(api, [], SHELL, said.append)

    assert options.disruption_eviction_price == 7
    assert "deployments is forbidden" in said[0]
    assert "this shell's environment" in said[0]


async def test_two_controllers_are_reported() -> None:
    said: list[str] = []

    options = await settings(deployment("karpenter"), deployment("joiner"), said=said)

    assert options.disruption_eviction_price == 7
    assert "kube-system/joiner, kube-system/karpenter" in said[0]


async def test_a_setting_from_a_secret_is_not_read_and_reported() -> None:
    said: list[str] = []
    secret = {"secretKeyRef": {"name": "joiner-env", "key": "DISRUPTION_HORIZON"}}

    options = await settings(
        deployment(env=[{"name": "DISRUPTION_HORIZON", "valueFrom": secret}]), said=said
    )

    assert options.disruption_horizon == Options(cluster_name="x").disruption_horizon
    assert any("DISRUPTION_HORIZON comes from a secretKeyRef" in sentence for sentence in said)


async def test_an_invalid_value_of_the_deployment_is_named() -> None:
    with pytest.raises(OptionsError, match="DISRUPTION_HORIZON"):
        await settings(deployment(env=[{"name": "DISRUPTION_HORIZON", "value": "soon"}]))
