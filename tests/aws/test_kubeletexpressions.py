"""Kubelet settings that depend on the instance type are the same in planning and in user data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.quantities import parse
from controller.aws.bootstrap.kubeletexpressions import (
    Variables,
    malformed_expression,
    resolve_expressions,
)
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import NodeClassNotReadyError
from controller.constraints.cel import CelError
from controller.options import AWSFeatureGates, Options
from testbed.nodes.userdata import parse_user_data
from tests.aws.builders import CLUSTER, Clock, make_claim, ready, within
from tests.aws.conftest import Region


def of_an_instance_type(**changes: Any) -> Callable[[Any], Variables]:
    """Return the variables of an instance type of 16 vCPUs and 30 GiB, with these changes."""

    def variables(kubelet: Any) -> Variables:
        known = {
            "instance_type": "c6a.4xlarge",
            "vcpus": 16,
            "memory_mib": 30720,
            "default_enis": 8,
            "ips_per_eni": 30,
            "max_pods": kubelet.get("maxPods", 58),
        }
        return Variables(**{**known, **changes})

    return variables


@pytest.mark.parametrize(
    ("kubelet", "expected"),
    [
        ({"maxPods": 110}, {"maxPods": 110}),
        (
            {"maxPods": "min(250, ((default_enis - 1) * (ips_per_eni - 1)) * 16 + 2)"},
            {"maxPods": 250},
        ),
        ({"maxPods": "max_pods - 8"}, {"maxPods": 50}),
        (
            {"maxPods": "20", "kubeReserved": {"memory": "11 * max_pods + 255"}},
            {"maxPods": 20, "kubeReserved": {"memory": "480Mi"}},
        ),
        (
            {"kubeReserved": {"cpu": "max(60, vcpus * 30)", "memory": "1Gi"}},
            {"kubeReserved": {"cpu": "480m", "memory": "1Gi"}},
        ),
        (
            {"systemReserved": {"cpu": "70 + vcpus", "memory": "memory_mib / 64 + 1"}},
            {"systemReserved": {"cpu": "90m", "memory": "496Mi"}},
        ),
        (
            {"systemReserved": {"pid": "vcpus * 100", "ephemeral-storage": "int(2.9)"}},
            {"systemReserved": {"pid": "1600", "ephemeral-storage": "2Gi"}},
        ),
        (
            {"kubeReserved": {"pid": "double(memory_mib) * 0.01", "cpu": "max(1.5, vcpus)"}},
            {"kubeReserved": {"pid": "307", "cpu": "20m"}},
        ),
        (
            {"maxPods": "instance_type.startsWith('c6a.') ? 30 : 60", "podsPerCore": 2},
            {"maxPods": 30, "podsPerCore": 2},
        ),
    ],
)
def test_an_expression_is_evaluated_for_the_instance_type(
    kubelet: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert malformed_expression(kubelet) == ""
    assert resolve_expressions(kubelet, of_an_instance_type()) == expected


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("vcpus *", "Syntax error"),
        ("cores * 2", "undeclared reference to 'cores'"),
        ("vcpus * 2.5", "no matching overload"),
        ("vcpus > 2", "is of type bool; allowed are int and double"),
        ("max(1, 2, 3)", "'max'"),
        ("", "Syntax error"),
    ],
)
def test_an_invalid_expression_is_named(expression: str, says: str) -> None:
    message = malformed_expression({"kubeReserved": {"cpu": expression}})
    assert message.startswith(f"spec.kubelet.kubeReserved.cpu: {expression!r}")
    assert says in message


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("vcpus - 20", "is -4; allowed are 0 to"),
        ("vcpus / (default_enis - 8)", "divide by zero"),
        ("1.0 / 0.0", "not a finite number"),
        ("memory_mib * 100000", "is 3072000000; allowed are 0 to 2147483647"),
        ("9223372036854775807 + vcpus", "overflow"),
    ],
)
def test_an_expression_without_a_valid_result_is_named_with_its_instance_type(
    expression: str, says: str
) -> None:
    with pytest.raises(CelError, match=r"c6a\.4xlarge") as raised:
        resolve_expressions({"maxPods": expression}, of_an_instance_type())
    assert says in str(raised.value)


# On the class, and in launches.

SCALED = {
    "maxPods": "vcpus * 10",
    "kubeReserved": {"cpu": "vcpus * 40", "memory": "11 * max_pods + 255"},
}


@pytest.fixture
def evaluating(session: Session, clock: Clock) -> AWSCloudProvider:
    gates = AWSFeatureGates(node_class_cel=True)
    options = Options(cluster_name=CLUSTER, aws_feature_gates=gates)
    return AWSCloudProvider(options, aws=session, clock=clock)


def validation(node_class: EC2NodeClass) -> Condition:
    held = conditions.find(node_class.status.conditions, "ValidationSucceeded")
    assert held is not None
    return held


async def test_without_the_gate_a_class_with_an_expression_is_not_ready(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider, kubelet=SCALED)

    held = validation(node_class)
    assert (held.status, held.reason) == ("False", "KubeletExpressionsDisabled")
    assert "NodeClassCEL=true" in held.message
    with pytest.raises(NodeClassNotReadyError, match="NodeClassCEL"):
        await provider.instance_types(node_class)


@pytest.mark.parametrize(
    ("kubelet", "reason", "says"),
    [
        ({"maxPods": "pods"}, "KubeletExpressionInvalid", "spec.kubelet.maxPods: 'pods'"),
        (
            {"kubeReserved": {"cpu": "vcpus * 10 - 30"}},
            "KubeletExpressionEvaluationFailed",
            "spec.kubelet.kubeReserved.cpu: 'vcpus * 10 - 30' for ",
        ),
        ({"kubeReserved": {"cpu": "-1"}}, "InvalidKubeletConfiguration", "kubeReserved[cpu]"),
    ],
)
async def test_a_nodeclass_names_the_invalid_expression(
    evaluating: AWSCloudProvider, kubelet: dict[str, Any], reason: str, says: str
) -> None:
    held = validation(await ready(evaluating, kubelet=kubelet))

    assert (held.status, held.reason) == ("False", reason)
    assert says in held.message


async def test_the_engine_and_the_kubelet_use_the_same_evaluated_settings(
    evaluating: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(evaluating, kubelet=SCALED)
    assert conditions.is_true(node_class.status.conditions, "Ready")
    types = {t.name: t for t in await evaluating.instance_types(node_class)}

    for name, pods, cpu, memory in (
        ("m5.large", 20, "80m", "480Mi"),
        ("m5.4xlarge", 160, "640m", "2016Mi"),
    ):
        planned = types[name]
        assert planned.capacity["pods"] == parse(str(pods))
        assert planned.overhead["cpu"] == parse(cpu)
        assert planned.overhead["memory"] == parse(memory) + parse("100Mi")
        await evaluating.launch(make_claim(within(labels.INSTANCE_TYPE, name)), node_class)
        (instance,) = [m for m in region.as_kubelets_see_them() if m.type == name]
        user_data = parse_user_data(instance.user_data)
        assert user_data.max_pods == pods
        assert user_data.kube_reserved == {"cpu": cpu, "memory": memory}
