"""The program's resources and the stand-in's replacement rules, judged by AWS's schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.config import forms
from infra.config.forms import Form
from testbed.plugins.awsprovider.provider import RESOURCES
from tests.infra.cloudformation import (
    KINDS,
    NAMES,
    WITHOUT_SCHEMA,
    Kind,
    Validator,
    capitalized,
    faults,
    properties,
    replacing,
    schema,
)
from tests.infra.everything import resources


@pytest.mark.usefixtures("entries", "hooks")
def test_every_resource_of_the_program_meets_its_schema() -> None:
    created = [each for each in resources() if each[0] not in WITHOUT_SCHEMA]

    assert {fault for token, _, inputs in created for fault in faults(token, inputs)} == set()
    assert len(created) > 150


def test_what_a_schema_refuses_is_found() -> None:
    group = {"description": "endpoints of AWS's services", "vpcId": "vpc-1"}
    assert list(faults("aws:ec2/securityGroup:SecurityGroup", group))
    assert not list(faults("aws:ec2/securityGroup:SecurityGroup", group | {"description": "x"}))
    cluster: dict[str, Any] = {"roleArn": "arn", "vpcConfig": {"subnetIds": ["subnet-1"]}}
    for support, is_known in (("STANDARD", True), ("LONG", False)):
        asked = cluster | {"upgradePolicy": {"supportType": support}}
        assert (not list(faults("aws:eks/cluster:Cluster", asked))) is is_known
    assert list(faults("aws:eks/cluster:Cluster", {"roleArn": "arn"}))


DIFFERENT: Mapping[str, Mapping[str, str]] = {
    "aws:eks/cluster:Cluster": {
        "EncryptionConfig": "the provider associates a key in place, and ignores another one"
    },
    "aws:eks/nodeGroup:NodeGroup": {
        "LaunchTemplate/Id": "EKS updates a node group to versions of its own template alone",
        "LaunchTemplate/Name": "as its ID",
    },
    "aws:ec2/eip:Eip": {"Domain": "the provider replaces the address"},
    "aws:ec2/routeTableAssociation:RouteTableAssociation": {
        "RouteTableId": "the provider calls ReplaceRouteTableAssociation"
    },
    "aws:sqs/queuePolicy:QueuePolicy": {"Queues": "the provider has one policy for each queue"},
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": {
        "AccessPolicies": "the association is a resource of its own"
    },
}
"""Where the provider replaces a resource and CloudFormation does not, or the reverse, by type and
property, of the properties that the program sets."""


def fixed(token: str, kind: Kind) -> set[str]:
    """Return the stand-in's replacement rules under the names of CloudFormation."""
    renamed: dict[str, Any] = {**NAMES, **kind.renamed}
    found = set()
    for path in RESOURCES[token].fixed:
        first, _, rest = path.partition(".")
        other = renamed.get(first, f"{first[0].upper()}{first[1:]}")
        if callable(other):
            (other,) = other([] if first in ("selectors", "ingress") else "x")
        if other is not None:
            found.add(f"{other}/{rest[0].upper()}{rest[1:]}" if rest else str(other))
    return found


@pytest.mark.usefixtures("entries", "hooks")
def test_a_change_replaces_a_resource_on_the_stand_in_as_on_aws() -> None:
    inputs: dict[str, set[str]] = {}
    for token, _, given_inputs in resources():
        if token in KINDS:
            inputs.setdefault(token, set()).update(properties(token, given_inputs))

    differing = {
        (token, path)
        for token, kind in KINDS.items()
        for path in fixed(token, kind) ^ replacing(token)
        if path.partition("/")[0] in inputs.get(token, ())
    }

    assert differing == {(token, path) for token, paths in DIFFERENT.items() for path in paths}


def test_every_type_of_the_stand_in_has_a_schema_or_a_reason() -> None:
    assert RESOURCES.keys() <= KINDS.keys() | WITHOUT_SCHEMA.keys()


def part(kind: str, *path: str) -> dict[str, Any]:
    """Return the schema of a property, with references resolved."""
    whole = schema(kind)
    held: dict[str, Any] = whole
    for name in path:
        held = held["items"] if name == "[]" else held["properties"][name]
        while "$ref" in held:
            held = whole["definitions"][held["$ref"].rpartition("/")[2]]
    return held


ENUMS = {
    "ControlPlaneLog": (
        "AWS::EKS::Cluster",
        "Logging",
        "ClusterLogging",
        "EnabledTypes",
        "[]",
        "Type",
    ),
    "UpgradePolicy": ("AWS::EKS::Cluster", "UpgradePolicy", "SupportType"),
    "IpFamily": ("AWS::EKS::Cluster", "KubernetesNetworkConfig", "IpFamily"),
}


@pytest.mark.parametrize("setting", ENUMS)
def test_a_setting_allows_the_values_that_aws_does(setting: str) -> None:
    declared = getattr(forms, setting)
    values = set(get_args(declared))
    if pattern := next((each.pattern for each in values if isinstance(each, Form)), None):
        values = set(pattern.split("|"))

    assert values == set(part(*ENUMS[setting])["enum"])


TEXTS = {
    "ClusterName": ("AWS::EKS::Cluster", "Name"),
    "KubernetesVersion": ("AWS::EKS::Cluster", "Version"),
    "RoleName": ("AWS::IAM::Role", "RoleName"),
    "IamPath": ("AWS::IAM::Role", "Path"),
    "QueueName": ("AWS::SQS::Queue", "QueueName"),
    "TagKey": ("AWS::EKS::Cluster", "Tags", "[]", "Key"),
    "TagValue": ("AWS::EKS::Cluster", "Tags", "[]", "Value"),
    "Label": ("AWS::EKS::PodIdentityAssociation", "Namespace"),
}


@pytest.mark.parametrize("setting", TEXTS)
def test_aws_accepts_what_a_setting_accepts(setting: str) -> None:
    form = next(each for each in get_args(getattr(forms, setting)) if isinstance(each, Form))
    held = {**part(*TEXTS[setting]), "definitions": schema(TEXTS[setting][0]).get("definitions")}

    @settings(max_examples=50, deadline=None, database=None)
    @given(st.from_regex(re.compile(form.pattern, re.ASCII), fullmatch=True))
    def accepted(text: str) -> None:
        Validator(held).validate(text)

    accepted()


def test_names_are_capitalized_as_cloudformation_does() -> None:
    assert capitalized({"tags": {"a": "b"}, "ebs": [{"volumeSize": 20}]}) == {
        "Tags": [{"Key": "a", "Value": "b"}],
        "Ebs": [{"VolumeSize": 20}],
    }
