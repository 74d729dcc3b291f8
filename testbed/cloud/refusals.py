"""What moto lets through and AWS refuses, asked before moto is."""

from __future__ import annotations

import re
from collections.abc import Callable

from testbed.cloud import backends, networks
from testbed.cloud.errors import AwsError, not_implemented
from testbed.cloud.wire import Call
from testbed.cloud.world import World

WHOLLY_OURS = frozenset({"arc-zonal-shift", "eks", "pricing", "resourcegroupstaggingapi", "sts"})
"""Services of which moto answers nothing: its state would not be the one shown here."""

NOUNS_OF_MOTO = re.compile(
    r"[A-Z][a-z]+(Default)?("
    r"Vpcs?|VpcAttribute|VpcCidrBlock|VpcEndpoints?|Subnets?|SubnetAttribute|SubnetCidrBlock"
    r"|SecurityGroups?|SecurityGroupRules|SecurityGroupIngress|SecurityGroupEgress"
    r"|RouteTables?|Routes?|InternetGateways?|NatGateways?|NetworkAcls?|NetworkAclEntry"
    r"|Address(es)?|AvailabilityZones|Regions|KeyPairs?|DhcpOptions|AccountAttributes"
    r"|ManagedPrefixLists?|PrefixLists)"
)
"""Operations of EC2 whose nouns are moto's alone."""


def check(world: World, call: Call) -> None:
    """Raise what AWS would, before moto is asked."""
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
    for profile in list(backends.iam().instance_profiles.values()):
        if profile.name == name and role not in {each.name for each in profile.roles}:
            raise AwsError(
                "NoSuchEntity",
                f"Cannot find role {role} in Instance Profile {name}",
                status=404,
            )


REFUSALS: dict[tuple[str, str], Callable[[World, Call], None]] = {
    **networks.REFUSALS,
    ("iam", "DeletePolicy"): _policy_attached,
    ("iam", "RemoveRoleFromInstanceProfile"): _role_not_in_profile,
}
"""(service, operation) → what may raise a refusal."""
