"""IAM operations that moto lacks or answers without filters, and service-linked roles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError, not_implemented
from testbed.cloud.protocol.filters import page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World


def _role(role: Any) -> dict[str, Any]:
    return {
        "Path": role.path,
        "RoleName": role.name,
        "RoleId": role.id,
        "Arn": role.arn,
        "CreateDate": role.create_date,
        "AssumeRolePolicyDocument": quote(str(role.assume_role_policy_document)),
    }


def _profile(profile: Any) -> dict[str, Any]:
    return {
        "Path": profile.path,
        "InstanceProfileName": profile.name,
        "InstanceProfileId": profile.id,
        "Arn": profile.arn,
        "CreateDate": profile.create_date,
        "Roles": [_role(role) for role in profile.roles],
        "Tags": profile.tags,
    }


@operation("iam", "ListInstanceProfiles")
def list_instance_profiles(world: World, call: Call) -> Mapping[str, Any]:
    """List instance profiles under a path, without their tags, as in AWS."""
    prefix = call.get("PathPrefix", "/")
    matching = sorted(
        (
            profile
            for profile in list(backends.iam().instance_profiles.values())
            if profile.path.startswith(prefix) and world.is_seen(profile.name)
        ),
        key=lambda profile: str(profile.name),
    )
    size = int(call.get("MaxItems", 100))
    listed, marker = page(matching, call, default=size, token=call.get("Marker"))
    return {
        "InstanceProfiles": [_profile(profile) | {"Tags": []} for profile in listed],
        "IsTruncated": marker is not None,
        "Marker": marker,
    }


SERVICE_ROLES = {"spot.amazonaws.com": "AWSServiceRoleForEC2Spot"}
"""Service → name of its service-linked role, where moto would choose another name."""


@operation("iam", "CreateServiceLinkedRole")
def create_service_linked_role(world: World, call: Call) -> Mapping[str, Any]:
    """Create a service-linked role. Raises AwsError if the account has it already."""
    service = call.require("AWSServiceName")
    name = SERVICE_ROLES.get(service)
    if name is None:
        raise not_implemented("iam", f"CreateServiceLinkedRole for {service}")
    if backends.role_named(name) is not None:
        raise AwsError(
            "InvalidInput",
            f"Service role name {name} has been taken in this account, please try a different "
            "suffix.",
        )
    return {"Role": _role(make_service_linked_role(service))}


def make_service_linked_role(service: str) -> Any:
    """Create a service-linked role in moto and return it."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": "sts:AssumeRole",
    }
    return backends.iam().create_role(
        role_name=SERVICE_ROLES[service],
        assume_role_policy_document=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
        path=f"/aws-service-role/{service}/",
        permissions_boundary=None,
        description="",
        tags=[],
        max_session_duration="3600",
    )
