"""The program's resources as AWS's schemas name and describe them.

cfn-lint contains AWS's schemas of CloudFormation's resource types.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import regex
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

Bag = dict[str, Any]
Rename = str | None | Callable[[Any], Bag]
"""Another name; None for an input that is none of the schema's; or the properties of an input."""

REGION = "us-west-2"


def inside(name: str, *path: str) -> Callable[[Any], Bag]:
    """Return a function that puts an input below other properties."""
    return lambda value: {name: functools.reduce(lambda it, key: {key: it}, reversed(path), value)}


def document(name: str) -> Callable[[Any], Bag]:
    return lambda value: {name: json.loads(value)}


def of_logs(types: list[str]) -> Bag:
    return {"Logging": {"ClusterLogging": {"EnabledTypes": [{"Type": each} for each in types]}}}


def of_ingress(rules: list[Bag]) -> Bag:
    return {
        "SecurityGroupIngress": [
            {
                "IpProtocol": rule["protocol"],
                "FromPort": rule["fromPort"],
                "ToPort": rule["toPort"],
                family: cidr,
            }
            for rule in rules
            for family, key in (("CidrIp", "cidrBlocks"), ("CidrIpv6", "ipv6CidrBlocks"))
            for cidr in rule.get(key) or ()
        ]
    }


def of_selectors(selectors: list[Bag]) -> Bag:
    return {
        "Selectors": [
            {
                "Namespace": one["namespace"],
                "Labels": [{"Key": k, "Value": v} for k, v in one["labels"].items()],
            }
            for one in selectors
        ]
    }


def of_template(name: str) -> Callable[[Any], Bag]:
    def of(value: Any) -> Bag:
        # The provider takes truth values of block devices as texts.
        text = json.dumps(capitalized(value)).replace('"true"', "true").replace('"false"', "false")
        return {"LaunchTemplateData": {name: json.loads(text)}}

    return of


@dataclass(frozen=True)
class Kind:
    """A resource type of CloudFormation, and how its properties differ from Pulumi's inputs."""

    name: str
    renamed: Mapping[str, Rename] = field(default_factory=dict)


NAMES: Mapping[str, Rename] = {"namePrefix": None}
KINDS: Mapping[str, Kind] = {
    "aws:cloudwatch/eventRule:EventRule": Kind(
        "AWS::Events::Rule", {"eventPattern": document("EventPattern")}
    ),
    "aws:ec2/egressOnlyInternetGateway:EgressOnlyInternetGateway": Kind(
        "AWS::EC2::EgressOnlyInternetGateway"
    ),
    "aws:ec2/eip:Eip": Kind("AWS::EC2::EIP"),
    "aws:ec2/internetGateway:InternetGateway": Kind("AWS::EC2::InternetGateway", {"vpcId": None}),
    "aws:ec2/launchTemplate:LaunchTemplate": Kind(
        "AWS::EC2::LaunchTemplate",
        {
            "name": "LaunchTemplateName",
            **{
                key: of_template(f"{key[0].upper()}{key[1:]}")
                for key in ("blockDeviceMappings", "metadataOptions", "tagSpecifications")
            },
        },
    ),
    "aws:ec2/natGateway:NatGateway": Kind("AWS::EC2::NatGateway"),
    "aws:ec2/route:Route": Kind(
        "AWS::EC2::Route", {"egressOnlyGatewayId": "EgressOnlyInternetGatewayId"}
    ),
    "aws:ec2/routeTable:RouteTable": Kind("AWS::EC2::RouteTable"),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": Kind(
        "AWS::EC2::SubnetRouteTableAssociation"
    ),
    "aws:ec2/securityGroup:SecurityGroup": Kind(
        "AWS::EC2::SecurityGroup",
        {"description": "GroupDescription", "name": "GroupName", "ingress": of_ingress},
    ),
    "aws:ec2/subnet:Subnet": Kind("AWS::EC2::Subnet"),
    "aws:ec2/vpc:Vpc": Kind("AWS::EC2::VPC", {"assignGeneratedIpv6CidrBlock": None}),
    "aws:ec2/vpcEndpoint:VpcEndpoint": Kind("AWS::EC2::VPCEndpoint"),
    "aws:ecr/repository:Repository": Kind(
        "AWS::ECR::Repository",
        {"name": "RepositoryName", "encryptionConfigurations": "EncryptionConfiguration"},
    ),
    "aws:eks/accessEntry:AccessEntry": Kind("AWS::EKS::AccessEntry"),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": Kind(
        "AWS::EKS::AccessEntry",
        {
            "policyArn": lambda arn: {"AccessPolicies": [{"PolicyArn": arn}]},
            "accessScope": lambda scope: {"AccessPolicies": [{"AccessScope": capitalized(scope)}]},
        },
    ),
    "aws:eks/addon:Addon": Kind(
        "AWS::EKS::Addon",
        {"resolveConflictsOnCreate": "ResolveConflicts", "resolveConflictsOnUpdate": None},
    ),
    "aws:eks/cluster:Cluster": Kind(
        "AWS::EKS::Cluster",
        {
            "vpcConfig": "ResourcesVpcConfig",
            "enabledClusterLogTypes": of_logs,
            "encryptionConfig": lambda one: {"EncryptionConfig": [capitalized(one)]},
        },
    ),
    "aws:eks/fargateProfile:FargateProfile": Kind(
        "AWS::EKS::FargateProfile", {"subnetIds": "Subnets", "selectors": of_selectors}
    ),
    "aws:eks/nodeGroup:NodeGroup": Kind(
        "AWS::EKS::Nodegroup",
        {"nodeRoleArn": "NodeRole", "subnetIds": "Subnets", "nodeGroupName": "NodegroupName",
         "nodeGroupNamePrefix": None},
    ),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": Kind(
        "AWS::EKS::PodIdentityAssociation"
    ),
    "aws:iam/instanceProfile:InstanceProfile": Kind(
        "AWS::IAM::InstanceProfile",
        {"name": "InstanceProfileName", "role": lambda role: {"Roles": [role]}, "tags": None},
    ),
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": Kind(
        "AWS::IAM::OIDCProvider", {"clientIdLists": "ClientIdList"}
    ),
    "aws:iam/policy:Policy": Kind(
        "AWS::IAM::ManagedPolicy",
        {"name": "ManagedPolicyName", "policy": document("PolicyDocument")},
    ),
    "aws:iam/role:Role": Kind(
        "AWS::IAM::Role",
        {"name": "RoleName", "assumeRolePolicy": document("AssumeRolePolicyDocument")},
    ),
    "aws:iam/rolePolicy:RolePolicy": Kind(
        "AWS::IAM::RolePolicy",
        {"name": "PolicyName", "role": "RoleName", "policy": document("PolicyDocument")},
    ),
    "aws:sqs/queue:Queue": Kind(
        "AWS::SQS::Queue",
        {"name": "QueueName", "messageRetentionSeconds": "MessageRetentionPeriod"},
    ),
    "aws:sqs/queuePolicy:QueuePolicy": Kind(
        "AWS::SQS::QueuePolicy",
        {"queueUrl": lambda url: {"Queues": [url]}, "policy": document("PolicyDocument")},
    ),
}  # fmt: skip
"""Pulumi's type → the type of CloudFormation."""

WITHOUT_SCHEMA: Mapping[str, str] = {
    "aws:cloudwatch/eventTarget:EventTarget": "a property of the rule",
    "aws:ec2/tag:Tag": "a property of the resource",
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": "a property of the role",
}
"""Pulumi's types that are no resources of CloudFormation, and what they are there."""


def _matches(_: Any, pattern: str, text: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    # Python's own module lacks the classes of characters that some patterns use.
    if isinstance(text, str) and not regex.search(pattern, text):
        yield jsonschema.ValidationError(f"{text!r} does not match {pattern!r}")


Validator: Any = jsonschema.validators.extend(jsonschema.Draft7Validator, {"pattern": _matches})


@functools.cache
def schema(kind: str) -> Bag:
    """Return AWS's schema of a resource type."""
    found: Bag = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
    return found


def capitalized(value: Any) -> Any:
    """Return inputs under the names of CloudFormation; tags become lists."""
    if isinstance(value, list):
        return [capitalized(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        f"{key[0].upper()}{key[1:]}": (
            [{"Key": k, "Value": v} for k, v in each.items()]
            if key == "tags"
            else capitalized(each)
        )
        for key, each in value.items()
    }


def properties(token: str, inputs: Bag) -> Bag:
    """Return a resource's properties of CloudFormation."""
    kind, found = KINDS[token], Bag()
    for key, value in inputs.items():
        if key in kind.renamed or key in NAMES:
            other = {**NAMES, **kind.renamed}[key]
            given = {other: capitalized(value)} if isinstance(other, str) else {}
            merge(found, other(value) if callable(other) else given)
        elif key == "tags":
            tagging = schema(kind.name)["properties"].get("Tags")  # some types have none
            if tagging:
                is_map = tagging["type"] == "object"
                found["Tags"] = value if is_map else capitalized({key: value})["Tags"]
        else:
            merge(found, capitalized({key: value}))
    return found


def merge(into: Bag, more: Bag) -> None:
    """Add properties, and those of maps and of the maps in lists, to others."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        elif isinstance(value, list) and isinstance(into.get(key), list):
            for held, added in zip(into[key], value, strict=True):
                merge(held, added)
        else:
            into[key] = value


def faults(token: str, inputs: Bag) -> Iterator[str]:
    """Yield what AWS's schema has against a resource."""
    held = schema(KINDS[token].name)
    for error in Validator(held).iter_errors(properties(token, inputs)):
        where = ".".join(map(str, error.absolute_path))
        yield f"{KINDS[token].name} {where}: {error.message[:200]}"


def replacing(token: str) -> set[str]:
    """Return the properties whose change replaces a resource, such as `AccessConfig/…`."""
    paths = schema(KINDS[token].name).get("createOnlyProperties") or ()
    return {path.removeprefix("/properties/") for path in paths}
