"""What an answer of AWS has to say: one that lacks it says nothing.

A proxy that cuts an answer short, or a service that is half down, must not make us believe that
a launch brought nothing, or that a machine bears no tag. What is listed here AWS always sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.aws.errors import UnreachableError

INCOMPLETE = "AnswerIncomplete"

ANSWERS: Mapping[str, Sequence[str]] = {
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
"""Per operation the members that are always there. `[]` stands for every element of a list, which
may be empty or missing.
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
"""The same of each item, for operations that answer in pages."""

MAY_BE_EMPTY = frozenset({"Instances[].Tags[].Value"})
"""What has to be there and need not say anything: a tag may have no value."""


def check(operation: str, answer: Mapping[str, Any] | Sequence[Any]) -> None:
    """Look at an answer, or at the items of one that came in pages.

    Raises:
        UnreachableError: it lacks what it must have; nothing may be concluded.

    """
    if isinstance(answer, Mapping):
        needed, items = ANSWERS.get(operation, ()), [answer]
    else:
        needed, items = ITEMS.get(operation, ()), [*answer]
    for path in needed:
        if any(_lacks(item, path.split("."), empty=path in MAY_BE_EMPTY) for item in items):
            raise UnreachableError(
                f"{operation}: the answer is incomplete: {path} is missing", reason=INCOMPLETE
            )


def _lacks(answer: Mapping[str, Any], path: Sequence[str], *, empty: bool) -> bool:
    """Whether something on the way is not there; with `empty` its end may be the empty string."""
    if not path:
        return False
    name, *rest = path
    inner = answer.get(name.removesuffix("[]"))
    if name.endswith("[]"):
        return any(_lacks(each, rest, empty=empty) for each in inner or ())
    if inner == "":
        return not empty
    return inner is None or _lacks(inner, rest, empty=empty)
