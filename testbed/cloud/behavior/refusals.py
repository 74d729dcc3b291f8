"""Calls that AWS refuses and moto accepts; checked before moto sees the call."""

from __future__ import annotations

import re
from collections.abc import Callable

from testbed.cloud.ec2 import networks
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError, not_implemented
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World

WHOLLY_OURS = frozenset({"arc-zonal-shift", "eks", "pricing", "resourcegroupstaggingapi", "sts"})
"""Services that moto must not answer: its state would differ from the state shown here."""

NOUNS_OF_MOTO = re.compile(
    r"[A-Z][a-z]+(Default)?("
    r"Vpcs?|VpcAttribute|VpcCidrBlock|VpcEndpoints?|Subnets?|SubnetAttribute|SubnetCidrBlock"
    r"|SecurityGroups?|SecurityGroupRules|SecurityGroupIngress|SecurityGroupEgress"
    r"|RouteTables?|Routes?|(EgressOnly)?InternetGateways?|NatGateways?|NetworkAcls?|NetworkAclEntry"
    r"|Address(es)?|AvailabilityZones|Regions|KeyPairs?|DhcpOptions|AccountAttributes"
    r"|ManagedPrefixLists?|PrefixLists)"
)
"""EC2 operations whose resources only moto holds."""


def check(world: World, call: Call) -> None:
    """Raise the error that AWS would return for a call, before moto handles it.

    Raises AwsError "not implemented" for an operation that neither this package nor moto emulates.
    """
    if call.service in WHOLLY_OURS or not backends.knows(call.service, world.region):
        raise not_implemented(call.service, call.operation)
    if call.service == "ec2" and NOUNS_OF_MOTO.fullmatch(call.operation) is None:
        raise not_implemented(call.service, call.operation)
    refusal = REFUSALS.get((call.service, call.operation))
    if refusal is not None:
        with world.lock:
            refusal(world, call)


def _policy_attached(world: World, call: Call) -> None:
    arn = call.get("PolicyArn")
    iam = backends.iam()
    for holders in (iam.roles, iam.users, iam.groups):
        if any(arn in holder.managed_policies for holder in list(holders.values())):
            raise AwsError(
                "DeleteConflict",
                "Cannot delete a policy attached to entities.",
                status=409,
            )


def _role_not_in_profile(world: World, call: Call) -> None:
    name, role = call.get("InstanceProfileName"), call.get("RoleName")
    profile = backends.profile_named(str(name))
    if profile is not None and role not in {each.name for each in profile.roles}:
        raise AwsError(
            "NoSuchEntity", f"Cannot find role {role} in Instance Profile {name}", status=404
        )


REFUSALS: dict[tuple[str, str], Callable[[World, Call], None]] = {
    **networks.REFUSALS,
    ("iam", "DeletePolicy"): _policy_attached,
    ("iam", "RemoveRoleFromInstanceProfile"): _role_not_in_profile,
}
"""(service, operation) → function that raises AwsError if AWS would refuse the call."""
