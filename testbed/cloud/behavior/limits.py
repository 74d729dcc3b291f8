"""Quotas and limits that AWS documents and moto does not enforce, each with its source.

Each is a default quota or a fixed limit. Quotas that AWS can raise have their default here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError, invalid_value
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World

FILTER_VALUES: Final = 200
"""Maximum number of filter values of one Describe call.

Source: EC2 API reference, "List and filter using the CLI and API".
"""

FLEET_OVERRIDES: Final = 300
"""Maximum number of overrides of one fleet, in all its launch templates together.

Source: EC2 user guide, "Fleet quotas".
"""

FLEET_INSTANCES: Final = 1000
"""Maximum number of instances of one instant fleet.

Source: EC2 API reference, CreateFleet, `TotalTargetCapacity` of type `instant`.
"""

TAG_KEY, TAG_VALUE, TAGS = 128, 256, 50
"""Maximum number of characters of a tag's key and of its value, and of tags of a resource.

Source: EC2 user guide, "Tag restrictions".
"""

ROLE_POLICIES: Final = 10
"""Maximum number of managed policies attached to one role.

Source, also of the other IAM limits below: IAM user guide, "IAM and AWS STS quotas".
"""

MANAGED_POLICY_SIZE, INLINE_POLICY_SIZE, TRUST_POLICY_SIZE = 6144, 10240, 2048
"""Maximum size in characters, without white space. All inline policies of a role count together."""

RULE_TARGETS, RULES_OF_A_BUS = 5, 300
"""Maximum number of targets of a rule, and of rules of an event bus.

Source: EventBridge user guide, "Amazon EventBridge quotas".
"""

QUEUE_ATTRIBUTES: Final[Mapping[str, tuple[int, int]]] = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1024, 1048576),
    "MessageRetentionPeriod": (60, 1209600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43200),
}
"""SQS queue attribute → smallest and largest value, in seconds; `MaximumMessageSize` is in bytes.

Source: SQS API reference, SetQueueAttributes.
"""

ACCESS_ENTRIES, ASSOCIATIONS = 1000, 5000
"""Maximum number of access entries, and of Pod Identity associations, of one cluster.

Source: EKS user guide, "Service quotas". `validation` checks their limit of 50 tags.
"""


def check(world: World, call: Call) -> None:
    """Raise the service's error if a call exceeds a limit."""
    if call.service == "ec2":
        _check_filters(call)
        _check_tag_specifications(call)
    limit = LIMITS.get((call.service, call.operation))
    if limit is not None:
        with world.lock:
            limit(world, call)


def _check_filters(call: Call) -> None:
    values = sum(len(item.get("Values") or []) for item in call.get("Filters", []))
    if values > FILTER_VALUES:
        raise AwsError(
            "FilterLimitExceeded",
            f"The maximum number of filter values specified on a single call is {FILTER_VALUES}",
        )


def _check_tag_specifications(call: Call) -> None:
    for specification in call.get("TagSpecifications", []):
        check_tags(specification.get("Tags") or [])


def check_tags(tags: Iterable[Mapping[str, str]]) -> None:
    """Raise EC2's error for tags that EC2 does not accept.

    EC2 refuses more than 50 tags, duplicate keys, empty or long keys, long values, and keys that
    start with `aws:`.
    """
    keys = [tag.get("Key", "") for tag in tags]
    if len(keys) > TAGS:
        raise AwsError("TagLimitExceeded", "The maximum number of Tags has been reached.")
    if len(keys) > len(set(keys)):
        raise invalid_value("Duplicate tag key specified.")
    for tag in tags:
        if not 1 <= len(tag.get("Key", "")) <= TAG_KEY:
            raise invalid_value(
                f"Tag key exceeds the maximum length of {TAG_KEY} characters, or is empty"
            )
        if len(tag.get("Value") or "") > TAG_VALUE:
            raise invalid_value(f"Tag value exceeds the maximum length of {TAG_VALUE} characters")
        if tag["Key"].lower().startswith("aws:"):
            raise invalid_value(
                f"Tag keys starting with 'aws:' are reserved for internal use: {tag['Key']}"
            )


def _fleet(world: World, call: Call) -> None:
    configs = call.get("LaunchTemplateConfigs", [])
    overrides = sum(len(config.get("Overrides") or []) for config in configs)
    if overrides > FLEET_OVERRIDES:
        raise invalid_value(
            f"The number of launch specifications in the fleet exceeds {FLEET_OVERRIDES}"
        )
    wanted = (call.get("TargetCapacitySpecification") or {}).get("TotalTargetCapacity", 0)
    if call.get("Type") == "instant" and wanted > FLEET_INSTANCES:
        raise AwsError(
            "InvalidTargetCapacitySpecification",
            f"An instant fleet has a target capacity of at most {FLEET_INSTANCES}",
        )


def _create_tags(world: World, call: Call) -> None:
    check_tags(call.get("Tags", []))


def _exceeds(quota: str, limit: int) -> AwsError:
    return AwsError("LimitExceeded", f"Cannot exceed quota for {quota}: {limit}", status=409)


def _size(document: str) -> int:
    return len("".join(document.split()))


def _attach(world: World, call: Call) -> None:
    role = backends.role_named(call.get("RoleName", ""))
    attached = role.managed_policies if role else {}
    if len(attached) >= ROLE_POLICIES and call.get("PolicyArn") not in attached:
        raise _exceeds("PoliciesPerRole", ROLE_POLICIES)


def _managed_policy(world: World, call: Call) -> None:
    if _size(call.get("PolicyDocument", "")) > MANAGED_POLICY_SIZE:
        raise _exceeds("PolicySize", MANAGED_POLICY_SIZE)


def _inline_policy(world: World, call: Call) -> None:
    name = call.get("RoleName", "")
    role = backends.role_named(name)
    held = dict(role.policies) if role else {}
    held[call.get("PolicyName")] = call.get("PolicyDocument", "")
    documents = (each if isinstance(each, str) else json.dumps(each) for each in held.values())
    if sum(map(_size, documents)) > INLINE_POLICY_SIZE:
        raise AwsError(
            "LimitExceeded",
            f"Maximum policy size of {INLINE_POLICY_SIZE} bytes exceeded for role {name}",
            status=409,
        )


def _trust_policy(world: World, call: Call) -> None:
    document = call.get("AssumeRolePolicyDocument") or call.get("PolicyDocument") or ""
    if _size(document) > TRUST_POLICY_SIZE:
        raise _exceeds("ACLSizePerRole", TRUST_POLICY_SIZE)


def _too_many() -> AwsError:
    message = "The requested resource exceeds the maximum number allowed."
    return AwsError("LimitExceededException", message)


def _targets(world: World, call: Call) -> None:
    bus = backends.events(world.region).event_buses.get(call.get("EventBusName", "default"))
    rule = bus.rules.get(call.get("Rule")) if bus else None
    held = {target.get("Id") for target in (rule.targets if rule else [])}
    wanted = held | {target.get("Id") for target in call.get("Targets", [])}
    if len(wanted) > RULE_TARGETS:
        raise _too_many()


def _rules(world: World, call: Call) -> None:
    bus = backends.events(world.region).event_buses.get(call.get("EventBusName", "default"))
    rules = bus.rules if bus else {}
    if len(rules) >= RULES_OF_A_BUS and call.get("Name") not in rules:
        raise _too_many()


def _queue(world: World, call: Call) -> None:
    for name, (least, most) in QUEUE_ATTRIBUTES.items():
        value = (call.get("Attributes") or {}).get(name)
        if value is not None and not (value.isdigit() and least <= int(value) <= most):
            raise AwsError(
                "InvalidAttributeValue", f"Invalid value for the parameter {name}. Reason: {value}"
            )


def _access_entry(world: World, call: Call) -> None:
    _count_in_cluster(
        (cluster for cluster, _ in world.clusters.access_entries),
        call,
        limit=ACCESS_ENTRIES,
        what="access entries",
    )


def _association(world: World, call: Call) -> None:
    _count_in_cluster(
        (each["clusterName"] for each in world.clusters.associations.values()),
        call,
        limit=ASSOCIATIONS,
        what="Pod Identity associations",
    )


def _count_in_cluster(clusters: Iterable[str], call: Call, *, limit: int, what: str) -> None:
    name = call.get("clusterName")
    if sum(1 for cluster in clusters if cluster == name) >= limit:
        raise AwsError("ResourceLimitExceededException", f"The cluster has {limit} {what} already.")


LIMITS: Final[Mapping[tuple[str, str], Callable[[World, Call], Any]]] = {
    ("ec2", "CreateFleet"): _fleet,
    ("ec2", "CreateTags"): _create_tags,
    ("eks", "CreateAccessEntry"): _access_entry,
    ("eks", "CreatePodIdentityAssociation"): _association,
    ("events", "PutRule"): _rules,
    ("events", "PutTargets"): _targets,
    ("iam", "AttachRolePolicy"): _attach,
    ("iam", "CreatePolicy"): _managed_policy,
    ("iam", "CreatePolicyVersion"): _managed_policy,
    ("iam", "CreateRole"): _trust_policy,
    ("iam", "PutRolePolicy"): _inline_policy,
    ("iam", "UpdateAssumeRolePolicy"): _trust_policy,
    ("sqs", "CreateQueue"): _queue,
    ("sqs", "SetQueueAttributes"): _queue,
}
"""(service, operation) → function that raises AwsError if the call would exceed a limit."""
