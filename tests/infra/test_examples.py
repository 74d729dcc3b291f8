"""The programs in `examples/` do what they demonstrate."""

from __future__ import annotations

import copy
import functools
import json
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from testbed.environment import CHECKOUT
from tests.infra.knownaws import Entries
from tests.infra.test_program import Made, made_by

EXAMPLES = CHECKOUT / "examples"


def run(example: str, config: dict[str, str]) -> Made:
    """Run an example's program as its Pulumi.yaml describes it."""
    folder = EXAMPLES / example
    project = yaml.safe_load((folder / "Pulumi.yaml").read_text())["name"]
    given = {f"{project}:{key}": value for key, value in config.items()}

    def program() -> None:
        runpy.run_path(str(folder / "__main__.py"))

    return made_by(program, given, project=project)


@pytest.fixture
def made(entries: Entries) -> Made:
    """The resources of a program that creates its cluster, which does not answer."""
    return copy.deepcopy(_component())


@functools.cache
def _component() -> Made:
    return run(
        "component",
        {
            "subnets": '["subnet-1", "subnet-2"]',
            "clusterRole": "arn:aws:iam::123456789012:role/eks-cluster",
            "nodeGroupRole": "arn:aws:iam::123456789012:role/eks-nodes",
            "image": "registry.example.com/joiner:1",
        },
    )


def test_every_example_is_tested() -> None:
    assert {path.parent.name for path in EXAMPLES.rglob("__main__.py")} == {
        "component",
        "iam",
        "package-python",  # needs a generated SDK: `make languages`
        "policies",
    }


@pytest.mark.usefixtures("entries")
def test_iam_without_the_controller_creates_no_object_in_the_cluster() -> None:
    made = run("iam", {"clusterName": "joiner", "region": "us-west-2"})

    assert {token for token, _, _ in made.resources if token.startswith("kubernetes:")} == set()
    assert {role["name"] for role in made.of("aws:iam/role:Role").values()} == {
        "KarpenterNodeRole-joiner",
        "KarpenterControllerRole-joiner",
    }
    assert made.one("aws:sqs/queue:Queue")["name"] == "joiner"
    association = made.one("aws:eks/podIdentityAssociation:PodIdentityAssociation")
    assert association["serviceAccount"] == "karpenter"


def test_names_and_policies_follow_from_the_programs_cluster(made: Made) -> None:
    roles = made.of("aws:iam/role:Role")
    policies = made.of("aws:iam/policy:Policy")

    assert roles["joiner-node"]["name"] == "KarpenterNodeRole-cluster"
    document = json.loads(policies["joiner-controller-EKSIntegration"]["policy"])
    (arn,) = document["Statement"][0]["Resource"]
    assert arn == "arn:aws:eks:us-west-2:123456789012:cluster/cluster"
    assert made.one("aws:sqs/queue:Queue")["name"] == "cluster"


def test_the_controller_runs_in_the_programs_namespace_with_its_settings(made: Made) -> None:
    deployment = made.one("kubernetes:apps/v1:Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}

    assert deployment["metadata"]["namespace"] == "autoscaling"
    assert environment["SYSTEM_NAMESPACE"] == "autoscaling"
    assert (environment["CLUSTER_NAME"], environment["AWS_REGION"]) == ("cluster", "us-west-2")
    assert environment["INSTALLATION"] == "organization/component/dev"
    assert container["image"] == "registry.example.com/joiner:1"


def test_every_resource_has_the_installation_tag_regardless_of_the_provider(made: Made) -> None:
    tags = made.of("aws:iam/role:Role")["joiner-controller"]["tags"]

    assert tags == {"team": "platform", "joiner.dev/installation": "organization/component/dev"}
    assert made.one("aws:eks/accessEntry:AccessEntry")["tags"] == tags


def test_typed_pools_are_created_beside_the_default_ones(made: Made) -> None:
    pools = made.of("kubernetes:karpenter.sh/v1:NodePool")

    assert {pool["metadata"]["name"] for pool in pools.values()} == {"default", "arm"}
    node_class = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")
    assert node_class["spec"]["instanceProfile"] == "KarpenterNodeRole-cluster"


def test_every_object_in_the_cluster_uses_the_given_provider(made: Made) -> None:
    providers = {
        provider for name, provider in made.providers.items() if name.startswith("kubernetes:")
    }

    assert len(providers) == 1
    assert "pulumi:providers:kubernetes::kubernetes" in providers.pop()


@pytest.fixture
def pack(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The policy pack as it hands itself to Pulumi's SDK for packs.

    A stand-in for that SDK, which asks for an older protobuf than Pulumi's own.
    """
    sdk = ModuleType("pulumi_policy")
    packs: list[SimpleNamespace] = []
    for name in ("ReportViolation", "ResourceValidationArgs"):
        setattr(sdk, name, object)
    sdk.EnforcementLevel = SimpleNamespace(MANDATORY="mandatory")  # type: ignore[attr-defined]
    sdk.ResourceValidationPolicy = SimpleNamespace  # type: ignore[attr-defined]
    sdk.PolicyPack = lambda **given: packs.append(  # type: ignore[attr-defined]
        SimpleNamespace(**given)
    )
    monkeypatch.setitem(sys.modules, "pulumi_policy", sdk)
    monkeypatch.setattr(sys, "path", [*sys.path])
    runpy.run_path(str(EXAMPLES / "policies" / "__main__.py"))
    (made,) = packs
    return made


def test_the_policy_pack_applies_the_rules_to_any_program(pack: SimpleNamespace) -> None:
    (policy,) = pack.policies

    def environment(kind: str, props: dict[str, Any]) -> list[str]:
        said: list[str] = []
        policy.validate(SimpleNamespace(resource_type=kind, props=props), said.append)
        return said

    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    written = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
    assert pack.enforcement_level == "mandatory"
    assert environment("aws:iam/policy:Policy", {"policy": written, "name": "mine"}) == [
        "a statement: it allows *: name the actions"
    ]
    assert environment("aws:iam/policy:Policy", {"name": "mine"}) == []
    assert environment("aws:s3/bucket:Bucket", {"policy": written}) == []
