"""Kubelet settings of an EC2NodeClass: settings that a kubelet would reject are reported first."""

from __future__ import annotations

from typing import Any

import pytest

from controller.aws.bootstrap.families import FAMILIES
from controller.aws.bootstrap.kubelet import problems, unsupported


@pytest.mark.parametrize(
    "kubelet",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"clusterDNS": None}, id="null is nothing"),
        pytest.param(
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "maxPods": 110,
                "cpuManagerPolicy": "static",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
                "featureGates": {"NodeSwap": True},
                "memorySwap": {"swapBehavior": "LimitedSwap"},
                "shutdownGracePeriod": "1m30.5s",
                "shutdownGracePeriodByPodPriority": [
                    {"priority": 0, "shutdownGracePeriodSeconds": 30}
                ],
                "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
                "crashLoopBackOff": {"maxContainerRestartPeriod": "60s"},
                "logging": {"flushFrequency": "5s", "options": {"json": {"infoBufferSize": "1Mi"}}},
                "evictionHard": {"memory.available": "5%"},
            },
            id="fields of every shape",
        ),
    ],
)
def test_valid_kubelet_settings_are_accepted(kubelet: dict[str, Any]) -> None:
    assert problems(kubelet) == []


@pytest.mark.parametrize(
    ("kubelet", "says"),
    [
        pytest.param({"maxPod": 3}, "spec.kubelet.maxPod is not a field", id="unknown"),
        pytest.param(
            {"logging": {"options": {"text": {"buffer": 1}}}},
            "spec.kubelet.logging.options.text.buffer is not a field",
            id="unknown, deep down",
        ),
        pytest.param({"failSwapOn": "no"}, "spec.kubelet.failSwapOn: Expected", id="other type"),
        pytest.param({"syncFrequency": "1 minute"}, "such as 1m30s", id="no duration"),
        pytest.param({"kubeAPIQPS": 2**31}, "spec.kubelet.kubeAPIQPS: Expected", id="too large"),
        pytest.param({"registerWithTaints": []}, "set taints on the NodePool", id="forbidden"),
        pytest.param({"podsPerCore": -1}, "spec.kubelet.podsPerCore", id="negative"),
        pytest.param({"kubeReserved": {"gpu": "1"}}, "'gpu' is not one of", id="not reservable"),
        pytest.param({"evictionHard": {"memory.available": "101%"}}, "0% to 100%", id="percent"),
        pytest.param(
            {"evictionHard": {"memory.available": " 5%"}}, "0% to 100%", id="with a space"
        ),
        pytest.param(
            {"evictionSoft": {"pid.available": "10%"}}, "the same signals", id="no grace period"
        ),
        pytest.param(
            {
                "evictionSoft": {"pid.available": "10%"},
                "evictionSoftGracePeriod": {"pid.available": "60"},
            },
            "evictionSoftGracePeriod.pid.available: '60' is not a duration",
            id="a grace period without a unit",
        ),
        pytest.param(
            {
                "evictionSoft": {"pid.available": "10%"},
                "evictionSoftGracePeriod": {"pid.available": "-1m"},
            },
            "evictionSoftGracePeriod.pid.available: '-1m' is not a duration",
            id="a negative grace period",
        ),
        pytest.param(
            {"evictionMinimumReclaim": {"memory.free": "1Gi"}},
            "evictionMinimumReclaim: 'memory.free' is not one of",
            id="no signal",
        ),
        pytest.param(
            {"evictionMinimumReclaim": {"nodefs.available": "much"}},
            "evictionMinimumReclaim.nodefs.available: 'much' is neither",
            id="no amount to reclaim",
        ),
        pytest.param(
            {"evictionHard": {"memory.available": 5}},
            "evictionHard.memory.available: 5 is not a string: put it in quotes",
            id="a threshold that is no text",
        ),
        pytest.param(
            {"kubeReserved": {"cpu": 1}},
            "kubeReserved.cpu: 1 is not a string: put it in quotes",
            id="an amount that is no text",
        ),
        pytest.param(
            {"kubeReserved": {"cpu": "-1"}}, "not a quantity of at least 0", id="less than nothing"
        ),
        pytest.param(
            {"imageGCHighThresholdPercent": 50, "imageGCLowThresholdPercent": 50},
            "must be greater than imageGCLowThresholdPercent",
            id="thresholds in the wrong order",
        ),
    ],
)
def test_kubelet_settings_that_the_kubelet_refuses_are_named(
    kubelet: dict[str, Any], says: str
) -> None:
    (problem,) = problems(kubelet)
    assert says in problem


@pytest.mark.parametrize(
    ("family", "kubelet", "refused"),
    [
        ("AL2023", {"cpuManagerPolicy": "static", "podsPerCore": 3}, []),
        ("Custom", {"cpuManagerPolicy": "static"}, []),
        ("AL2", {"cpuManagerPolicy": "static", "podsPerCore": 3}, ["cpuManagerPolicy"]),
        ("Windows2022", {"maxPods": 20, "failSwapOn": True}, ["failSwapOn"]),
        ("Bottlerocket", {"podsPerCore": 3}, ["podsPerCore"]),
    ],
)
def test_only_al2023_accepts_every_kubelet_setting(
    family: str, kubelet: dict[str, Any], refused: list[str]
) -> None:
    assert unsupported(kubelet, FAMILIES[family]) == refused
