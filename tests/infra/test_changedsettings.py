"""A preview names each setting that a change sets, changes or resets."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest

from controller.options import Options
from infra import state
from infra.config.checks import require_options
from infra.deployment import controller
from infra.deployment.changedsettings import changed_settings
from infra.deployment.controller import Controller, environment

FIXED = {
    "CLUSTER_NAME": "joiner",
    "INSTALLATION": "o/joiner/dev",
    "SYSTEM_NAMESPACE": "kube-system",
}
STANDARD = replace(require_options({}), cluster_name="")
RECOMMEND = replace(STANDARD, disruption_mode="recommend")


def test_a_setting_that_is_added_moves_no_other_variable() -> None:
    before, after = environment(STANDARD, FIXED), environment(RECOMMEND, FIXED)

    assert after[: len(before)] == before
    assert after[len(before) :] == [{"name": "DISRUPTION_MODE", "value": "recommend"}]


def test_each_changed_setting_has_its_old_and_new_value() -> None:
    one = environment(replace(STANDARD, disruption_mode="recommend"), FIXED)
    another = environment(
        replace(STANDARD, log_level="debug"), {**FIXED, "HTTPS_PROXY": "http://p"}
    )

    assert changed_settings(one, another) == [
        "DISRUPTION_MODE recommend -> act",
        "HTTPS_PROXY (unset) -> http://p",
        "LOG_LEVEL info -> debug",
    ]
    assert changed_settings(one, one) == []


def test_secret_and_unknown_values_are_not_compared() -> None:
    secret: dict[str, Any] = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s"}}}
    unknown = {"name": "CLUSTER_NAME", "value": SimpleNamespace()}

    assert changed_settings([{"name": "CLUSTER_NAME", "value": "a"}], [unknown, secret]) == []


def test_the_recorded_deployment_is_found_by_type_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "kubernetes:apps/v1:Deployment"
    urn = f"urn:pulumi:dev::joiner::joiner:infra:Controller${kind}::joiner-karpenter"
    recorded = {urn: {"type": kind, "outputs": {"spec": {"replicas": 2}}}}
    monkeypatch.setattr(state, "_read", lambda _function: recorded)

    assert state.recorded_properties(kind, "joiner-karpenter") == {"spec": {"replicas": 2}}
    assert state.recorded_properties(kind, "other") == {}
    assert state.recorded_resources() == {(kind, "joiner-karpenter")}


def test_a_preview_reports_the_changed_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "info", lambda text, _resource: said.append(text))

    def spec(options: Options) -> dict[str, Any]:
        container = {"env": environment(options, FIXED)}
        return {"template": {"spec": {"containers": [container]}}}

    recorded = {"spec": spec(STANDARD)}
    monkeypatch.setattr(controller, "recorded_properties", lambda *_: recorded)
    ours = SimpleNamespace(_name="joiner-karpenter")

    Controller._report_settings(ours, spec(RECOMMEND))  # type: ignore[arg-type]
    Controller._report_settings(ours, spec(STANDARD))  # type: ignore[arg-type]
    recorded.clear()
    Controller._report_settings(ours, spec(RECOMMEND))  # type: ignore[arg-type]

    assert said == ["settings: DISRUPTION_MODE act -> recommend"]
