"""Builders of what tests launch in the test cloud, with working defaults."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.testbed.cloud.conftest import Aws

numbers = itertools.count(1)

AL2023 = "/aws/service/eks/optimized-ami/1.37/amazon-linux-2023/{}/standard/recommended/image_id"


def unique(prefix: str) -> str:
    """Return a name that no other test uses."""
    return f"{prefix}-{next(numbers)}"


@dataclass(frozen=True)
class Region:
    """The initial resources of the region."""

    aws: Aws

    @property
    def cluster(self) -> dict[str, Any]:
        described: dict[str, Any] = self.aws.client("eks").describe_cluster(name="joiner")[
            "cluster"
        ]
        return described

    @property
    def subnets(self) -> dict[str, str]:
        """The private subnet of each zone."""
        wanted = self.cluster["resourcesVpcConfig"]["subnetIds"]
        private = [{"Name": "tag:Name", "Values": ["joiner-private-*"]}]
        listed = self.aws.client("ec2").describe_subnets(SubnetIds=wanted, Filters=private)[
            "Subnets"
        ]
        return {each["AvailabilityZone"]: each["SubnetId"] for each in listed}

    @property
    def security_group(self) -> str:
        return str(self.cluster["resourcesVpcConfig"]["clusterSecurityGroupId"])

    def image(self, architecture: str = "x86_64") -> str:
        parameter = self.aws.client("ssm").get_parameter(Name=AL2023.format(architecture))
        return str(parameter["Parameter"]["Value"])

    def make_template(self, *, tags: Mapping[str, str] | None = None, **data: Any) -> str:
        """Create a launch template and return its name."""
        name = unique("template")
        defaults = {
            "ImageId": self.image(),
            "SecurityGroupIds": [self.security_group],
            "UserData": base64.b64encode(b"the user data").decode(),
        }
        self.aws.client("ec2").create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={**defaults, **data},
            **tagged("launch-template", tags),
        )
        return name

    def launch(self, count: int = 1, **changes: Any) -> list[str]:
        """Launch a fleet, assert that it succeeds, and return the instance IDs."""
        answer = self.aws.client("ec2").create_fleet(**self.fleet(count=count, **changes))
        assert answer["Errors"] == []
        return [i for each in answer["Instances"] for i in each["InstanceIds"]]

    def fleet(
        self,
        *,
        template: str | None = None,
        overrides: Sequence[Mapping[str, Any]] | None = None,
        count: int = 1,
        capacity_type: str = "on-demand",
        strategy: str | None = None,
        tags: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> dict[str, Any]:
        """Return the arguments of CreateFleet."""
        chosen = overrides or [{"InstanceType": "m5.large", "SubnetId": self.subnets["us-west-2a"]}]
        specification = {
            "LaunchTemplateName": template or self.make_template(),
            "Version": "$Latest",
        }
        arguments: dict[str, Any] = {
            "Type": "instant",
            "LaunchTemplateConfigs": [
                {"LaunchTemplateSpecification": specification, "Overrides": list(chosen)}
            ],
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": count,
                "DefaultTargetCapacityType": capacity_type,
            },
        }
        if strategy:
            options = "SpotOptions" if capacity_type == "spot" else "OnDemandOptions"
            arguments[options] = {"AllocationStrategy": strategy}
        if tags:
            arguments["TagSpecifications"] = [
                {"ResourceType": kind, "Tags": pairs(tags)}
                for kind in ("instance", "volume", "fleet")
            ]
        return {**arguments, **rest}


def pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the form of EC2 and IAM."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tagged(kind: str, tags: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the TagSpecifications argument for one resource type."""
    if not tags:
        return {}
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": pairs(tags)}]}


def allow(actions: str | list[str], resources: Any = "*", **rest: Any) -> dict[str, Any]:
    """Return a policy statement that allows."""
    return {"Effect": "Allow", "Action": actions, "Resource": resources, **rest}


def document(*statements: Mapping[str, Any]) -> str:
    """Return a policy document."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def token(
    subject: str,
    *,
    audience: str,
    issuer: str = "https://oidc.testbed.local/id/JOINER",
    expires: float = 4e9,
) -> str:
    """Return an unsigned service account token."""
    claims = {"sub": subject, "aud": [audience], "exp": expires, "iss": issuer}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"
