"""Kubelet settings of an EC2NodeClass: settings that a kubelet would reject are reported first."""

from __future__ import annotations

from typing import Any

import pytest

from controller.aws.bootstrap.families import FAMILIES
from controller.aws.bootstrap.kubelet import problems, unsupported_fields


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
        pytest.param(
            {
                "maxPods": 0,
                "podsPerCore": 0,
                "evictionMaxPodGracePeriod": 0,
                "imageGCHighThresholdPercent": 100,
                "imageGCLowThresholdPercent": 0,
            },
            id="the limits of numbers",
        ),
        pytest.param(
            {
                "evictionHard": {
                    "nodefs.available": "500Mi",
                    "nodefs.inodesFree": "12.5%",
                    "imagefs.available": "0%",
                    "imagefs.inodesFree": "100%",
                    "containerfs.available": "5%",
                },
                "evictionSoft": {"memory.available": "1Gi"},
                "evictionSoftGracePeriod": {"memory.available": "1m30s"},
            },
            id="every form of thresholds",
        ),
        pytest.param(
            {"kubeReserved": {"cpu": "vcpus * 10"}, "systemReserved": {"pid": "1000"}},
            id="an expression beside a quantity",
        ),
    ],
)
def test_valid_kubelet_settings_are_accepted(kubelet: dict[str, Any]) -> None:
    assert problems(kubelet) == []


SIGNALS = (
    "memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, "
    "imagefs.inodesFree, containerfs.available, containerfs.inodesFree, "
    "allocatableMemory.available, pid.available"
)


@pytest.mark.parametrize(
    ("kubelet", "says"),
    [
        pytest.param({"maxPod": 3}, ': unknown field "maxPod"', id="unknown"),
        pytest.param(
            {"logging": {"options": {"text": {"buffer": 1}}}},
            ': unknown field "logging.options.text.buffer"',
            id="unknown, deep down",
        ),
        pytest.param(
            {"shutdownGracePeriodByPodPriority": [{"priority": 1, "grace": 3}]},
            ': unknown field "shutdownGracePeriodByPodPriority[0].grace"',
            id="unknown, in a list",
        ),
        pytest.param({"failSwapOn": "no"}, ".failSwapOn: Expected", id="other type"),
        pytest.param({"syncFrequency": "1 minute"}, "such as 1m30s", id="no duration"),
        pytest.param({"kubeAPIQPS": 2**31}, ".kubeAPIQPS: Expected", id="too large"),
        pytest.param(
            {"registerWithTaints": []}, ".registerWithTaints: can't be set", id="forbidden"
        ),
        *(
            pytest.param({name: -1}, f".{name}: -1 can't be negative", id=f"negative {name}")
            for name in ("maxPods", "podsPerCore", "evictionMaxPodGracePeriod")
        ),
        *(
            pytest.param({name: value}, f".{name}: {value} must be between 0 and 100", id=name)
            for name in ("imageGCHighThresholdPercent", "imageGCLowThresholdPercent")
            for value in (-1, 101)
        ),
        *(
            pytest.param({name: value}, f".{name}: {shown} must be a whole number", id=name)
            for name, value, shown in (
                ("maxPods", True, "true"),
                ("maxPods", 2**31, 2**31),
                ("podsPerCore", "ten", '"ten"'),
                ("evictionMaxPodGracePeriod", 1.5, 1.5),
                ("imageGCLowThresholdPercent", "70", '"70"'),
            )
        ),
        *(
            pytest.param(
                {name: {"gpu": "1"}},
                f'.{name}: "gpu" isn\'t a reservable resource, must be one of cpu, memory, '
                "ephemeral-storage, pid",
                id=f"not reservable in {name}",
            )
            for name in ("kubeReserved", "systemReserved")
        ),
        *(
            pytest.param(
                {name: {"cpu": text}},
                f'.{name}[cpu]: "{text}" can\'t be a negative resource quantity',
                id=f"less than nothing in {name}",
            )
            for name in ("kubeReserved", "systemReserved")
            for text in ("-1", "-1 * vcpus")
        ),
        pytest.param(
            {"kubeReserved": {"cpu": 1}},
            ".kubeReserved[cpu]: 1 must be a string: put it in quotes",
            id="an amount that is no text",
        ),
        pytest.param({"kubeReserved": "1"}, ".kubeReserved: must be a map", id="no map"),
        *(
            pytest.param(
                {name: {"memory.free": text}},
                f'.{name}: "memory.free" isn\'t a valid eviction signal, must be one of {SIGNALS}',
                id=f"no signal in {name}",
            )
            for name, text in (("evictionHard", "5%"), ("evictionMinimumReclaim", "1Gi"))
        ),
        *(
            pytest.param(
                {name: {"memory.available": text}},
                f'.{name}[memory.available]: "{text}" must be a percentage or a resource quantity',
                id=f"no threshold in {name}",
            )
            for name in ("evictionHard", "evictionMinimumReclaim")
            for text in ("101%", "-1%", " 5%", "%", "5 percent", "lots", "")
        ),
        pytest.param(
            {"evictionHard": {"memory.available": "-5Mi"}},
            '.evictionHard[memory.available]: "-5Mi" can\'t be a negative resource quantity',
            id="a negative threshold",
        ),
        pytest.param(
            {"evictionHard": {"memory.available": 5}},
            ".evictionHard[memory.available]: 5 must be a string: put it in quotes",
            id="a threshold that is no text",
        ),
        pytest.param({"evictionHard": ["5%"]}, ".evictionHard: must be a map", id="a list"),
        pytest.param(
            {"evictionSoft": {"pid.available": "10%"}},
            ".evictionSoft[pid.available]: has no matching evictionSoftGracePeriod",
            id="no grace period",
        ),
        pytest.param(
            {"evictionSoftGracePeriod": {"pid.available": "1m"}},
            ".evictionSoftGracePeriod[pid.available]: has no matching evictionSoft",
            id="a grace period alone",
        ),
        *(
            pytest.param(
                {
                    "evictionSoft": {"pid.available": "10%"},
                    "evictionSoftGracePeriod": {"pid.available": text},
                },
                f'.evictionSoftGracePeriod[pid.available]: "{text}" {why}',
                id=f"the grace period {text}",
            )
            for text, why in (
                ("60", "must be a duration"),
                ("soon", "must be a duration"),
                ("-1m", "can't be a negative duration"),
            )
        ),
        *(
            pytest.param(
                {"imageGCHighThresholdPercent": high, "imageGCLowThresholdPercent": low},
                f": imageGCHighThresholdPercent ({high}) must be greater than "
                f"imageGCLowThresholdPercent ({low})",
                id=f"thresholds {high} and {low}",
            )
            for high, low in ((50, 50), (10, 60))
        ),
    ],
)
def test_kubelet_settings_that_the_kubelet_refuses_are_named(
    kubelet: dict[str, Any], says: str
) -> None:
    (problem,) = problems(kubelet)

    assert problem.startswith(f"spec.kubelet{says}" if says[0] in ".:" else "spec.kubelet")
    assert says in problem


def test_every_mistake_is_reported_at_once() -> None:
    kubelet = {
        "podsPerCore": -1,
        "kubeReserved": {"gpu": "-1"},
        "evictionHard": {"notASignal": "lots"},
        "logging": {"bogus": 1, "options": {"nope": True, "json": {"neither": 2}}},
        "notAKubeletField": True,
        "syncFrequency": 3,
    }

    found = problems(kubelet)

    assert [problem.removeprefix("spec.kubelet").split(",")[0] for problem in found[:4]] == [
        ': unknown field "logging.bogus"',
        ': unknown field "logging.options.nope"',
        ': unknown field "logging.options.json.neither"',
        ': unknown field "notAKubeletField"',
    ]
    assert [problem.partition(":")[0] for problem in found[4:]] == [
        "spec.kubelet.syncFrequency",
        "spec.kubelet.evictionHard",
        "spec.kubelet.evictionHard[notASignal]",
        "spec.kubelet.kubeReserved",
        "spec.kubelet.kubeReserved[gpu]",
        "spec.kubelet.podsPerCore",
    ]


def test_a_message_shows_only_the_beginning_of_a_long_value() -> None:
    (problem,) = problems({"evictionHard": {"pid.available": "x" * 100_000}})

    assert "xxx… must be a percentage" in problem
    assert len(problem) < 300


@pytest.mark.parametrize(
    ("family", "kubelet", "refused"),
    [
        ("AL2023", {"cpuManagerPolicy": "static", "podsPerCore": 3}, []),
        ("Custom", {"cpuManagerPolicy": "static"}, []),
        ("AL2", {"cpuManagerPolicy": "static", "podsPerCore": 3}, ["cpuManagerPolicy"]),
        ("Windows2022", {"maxPods": 20, "failSwapOn": True}, ["failSwapOn"]),
        ("Bottlerocket", {"podsPerCore": 3}, ["podsPerCore"]),
        ("Bottlerocket", {"podsPerCore": 0}, ["podsPerCore"]),
    ],
)
def test_only_al2023_accepts_every_kubelet_setting(
    family: str, kubelet: dict[str, Any], refused: list[str]
) -> None:
    assert unsupported_fields(kubelet, FAMILIES[family]) == refused
