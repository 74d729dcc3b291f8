"""Checks that responses of AWS contain the fields that AWS always sends.

A proxy may truncate a response, or a service may be partly down. Joiner must not conclude from such
a response that a launch created no instance, or that an instance has no tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.aws.errors import UnreachableError

INCOMPLETE = "AnswerIncomplete"

REQUIRED: Mapping[str, Sequence[str]] = {
    "create_fleet": ("Instances", "Instances[].InstanceIds", "Instances[].InstanceType"),
    "delete_message_batch": ("Successful[].Id",),
    "describe_cluster": (
        "cluster.version",
        "cluster.endpoint",
        "cluster.certificateAuthority.data",
    ),
    "get_instance_profile": ("InstanceProfile", "InstanceProfile.Roles[].RoleName"),
    "get_parameter": ("Parameter.Value",),
    "get_queue_url": ("QueueUrl",),
}
"""Required fields by operation.

`[]` means every element of a list, which may be empty or missing.
"""

ITEMS: Mapping[str, Sequence[str]] = {
    "describe_images": ("ImageId", "Architecture"),
    "describe_instance_status": ("InstanceId",),
    "describe_instances": (
        "Instances",
        "Instances[].InstanceId",
        "Instances[].InstanceType",
        "Instances[].Placement.AvailabilityZone",
        "Instances[].State.Name",
        "Instances[].Tags[].Key",
        "Instances[].Tags[].Value",
    ),
    "describe_launch_templates": ("LaunchTemplateName",),
    "describe_security_groups": ("GroupId",),
    "describe_subnets": ("SubnetId", "AvailabilityZone", "AvailableIpAddressCount"),
    "list_instance_profiles": ("InstanceProfileName", "Path", "CreateDate"),
}
"""Required fields of each item, for paginated operations."""

MAY_BE_EMPTY = frozenset({"Instances[].Tags[].Value"})
"""Required fields that may be empty: a tag may have no value."""


def check(operation: str, response: Mapping[str, Any] | Sequence[Any]) -> None:
    """Check a response, or the items of a paginated one.

    Raises:
        UnreachableError: a required field is missing, so the response must not be used.

    """
    if isinstance(response, Mapping):
        needed, items = REQUIRED.get(operation, ()), [response]
    else:
        needed, items = ITEMS.get(operation, ()), [*response]
    for path in needed:
        if any(_is_missing(item, path.split("."), empty=path in MAY_BE_EMPTY) for item in items):
            raise UnreachableError(
                f"{operation}: incomplete response: {path} is missing", reason=INCOMPLETE
            )


def _is_missing(response: Mapping[str, Any], path: Sequence[str], *, empty: bool) -> bool:
    """Whether a field on the path is missing; with `empty`, the last one may be an empty string."""
    if not path:
        return False
    name, *rest = path
    inner = response.get(name.removesuffix("[]"))
    if name.endswith("[]"):
        return any(_is_missing(each, rest, empty=empty) for each in inner or ())
    if inner == "":
        return not empty
    return inner is None or _is_missing(inner, rest, empty=empty)
