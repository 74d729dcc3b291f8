"""New things that are not seen yet: EC2 and IAM are consistent only in the end.

Off unless a test asks for it: `Settings.settling` says how many seconds a new instance, launch
template, role, instance profile or policy takes to be seen. Who makes it has its name from the
answer; who asks for it meanwhile is told that it does not exist; listings leave it out. What
writes to IAM goes to one place and is not concerned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from testbed.cloud.errors import AwsError
from testbed.cloud.wire import Call
from testbed.cloud.world import World

MADE: Final[Mapping[str, str]] = {
    "CreateInstanceProfile": "InstanceProfileName",
    "CreatePolicy": "PolicyName",
    "CreateRole": "RoleName",
}
"""Operation of IAM → the argument that names what it makes."""

NAMES: Final = ("InstanceProfileName", "RoleName", "PolicyArn")


def made_by(world: World, call: Call) -> None:
    """Take note of what a call to IAM has made."""
    argument = MADE.get(call.operation) if call.service == "iam" else None
    if argument:
        world.settle(call.require(argument))


def check(world: World, call: Call) -> None:
    """Raise IAM's error for a look at what is not seen yet."""
    if call.service != "iam" or not call.operation.startswith(("Get", "List")):
        return
    for argument in NAMES:
        name = str(call.get(argument, "")).rpartition("/")[2]
        if not world.is_seen(name):
            raise AwsError(
                "NoSuchEntity", f"The entity with name {name} cannot be found", status=404
            )
