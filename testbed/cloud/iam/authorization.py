"""Authorization of a call: which actions, resources and context keys the policies must allow.

The testbed's admin may make every call. A role session may do what the role's inline and
attached policies allow at that moment, limited by its permissions boundary. The policy of an SQS
queue may allow or deny a call on the queue as well. For the calls in
`ASKED_BY` and the services in `RESOURCES`, resources are named as in AWS's service authorization
reference. Every other call is checked against the resource `*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.cloud.ec2 import launchtemplates
from testbed.cloud.ec2.kinds import kind_of
from testbed.cloud.ec2.launchtemplates import tags_for
from testbed.cloud.iam import policies
from testbed.cloud.iam.identity import Caller
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.calllog import Denial
from testbed.cloud.state.inventory import Session
from testbed.cloud.state.world import World

PREFIXES = {"resourcegroupstaggingapi": "tag"}
"""Service → the prefix of its actions, if it differs from the service's name."""

ALIASES = {
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
}
"""Operation → the action that IAM checks instead."""


OPEN_TO_ALL = frozenset({("sts", "GetCallerIdentity"), ("sts", "AssumeRoleWithWebIdentity")})
"""Operations that need no permission."""


@dataclass(frozen=True, slots=True)
class Question:
    """One permission that a call needs: action, resource and context."""

    action: str
    resource: str = "*"
    context: Mapping[str, Sequence[str]] = field(default_factory=dict)


def authorize(world: World, caller: Caller, call: Call) -> None:
    """Raise the service's access-denied error unless the caller's policies allow the call."""
    session = caller.session
    if session is None or (call.service, call.operation) in OPEN_TO_ALL:
        return
    with world.lock:
        asked = list(questions(world, call))
        documents = _documents(session)
    for question in asked:
        context = {**_principal_context(world, session, call), **question.context}
        verdict = _verdict(world, session, documents, question, context)
        if not verdict.allowed:
            _deny(world, session, call, question, verdict.reason)
        world.call_log.record_right(session.role_arn, question.action, question.resource)


def _verdict(
    world: World,
    session: Session,
    documents: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]] | None],
    question: Question,
    context: Mapping[str, Sequence[str]],
) -> policies.Verdict:
    identity, boundary = documents
    asked: dict[str, Any] = {
        "action": question.action,
        "resource": question.resource,
        "context": context,
    }
    verdict = policies.evaluate(identity, **asked)
    queue_policy = _queue_policy(world, question.resource)
    if queue_policy is not None:
        principal = {"AWS": session.role_arn}
        resource_verdict = policies.evaluate([queue_policy], principal=principal, **asked)
        if "explicit" in resource_verdict.reason:
            return resource_verdict
        if resource_verdict.allowed and "explicit" not in verdict.reason:
            return resource_verdict
    if verdict.allowed and boundary is not None:
        bounded = policies.evaluate(boundary, **asked)
        if not bounded.allowed:
            return policies.Verdict(False, "because no permissions boundary allows the action")
    return verdict


def _documents(
    session: Session,
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]] | None]:
    role = backends.role_at(session.role_arn)
    if role is None:
        return [], None
    inline = [policies.parse(document) for document in role.policies.values()]
    attached = [_document_of(policy) for policy in role.managed_policies.values()]
    boundary = role.permissions_boundary_arn
    if not boundary:
        return inline + attached, None
    bounding = backends.iam().managed_policies.get(boundary)
    return inline + attached, [_document_of(bounding)] if bounding else []


def _document_of(policy: Any) -> Mapping[str, Any]:
    version = next(v for v in policy.versions if v.version_id == policy.default_version_id)
    return policies.parse(version.document)


def _queue_policy(world: World, resource: str) -> Mapping[str, Any] | None:
    if not resource.startswith("arn:aws:sqs:"):
        return None
    queue = backends.sqs(world.region).queues.get(resource.rsplit(":", 1)[-1])
    return policies.parse(queue.policy) if queue is not None and queue.policy else None


def _principal_context(world: World, session: Session, call: Call) -> dict[str, list[str]]:
    # The loopback endpoint emulates AWS's HTTPS endpoints.
    context = {
        "aws:SecureTransport": ["true"],
        "aws:RequestedRegion": ["us-east-1" if call.service == "iam" else call.region],
        "aws:PrincipalArn": [session.role_arn],
        "aws:PrincipalAccount": [backends.ACCOUNT],
        "aws:PrincipalType": ["AssumedRole"],
        "aws:ResourceAccount": [backends.ACCOUNT],
        "ec2:Region": [world.region],
    }
    for key, value in session.tags.items():
        context[f"aws:PrincipalTag/{key}"] = [value]
    return context


def _deny(world: World, session: Session, call: Call, question: Question, reason: str) -> None:
    world.call_log.record_denial(Denial(session.arn, question.action, question.resource, reason))
    who = f"User: {session.arn} is not authorized to perform: {question.action}"
    message = f"{who} on resource: {question.resource} {reason}"
    if call.service == "ec2":
        message = f"You are not authorized to perform this operation. {message}"
        raise AwsError("UnauthorizedOperation", message, status=403)
    code = "AccessDenied" if call.service in ("iam", "sts", "sqs") else "AccessDeniedException"
    raise AwsError(code, message, status=403 if call.service in ("iam", "sts", "sqs") else 400)


# ---------------------------------------------------------------- EC2


def questions(world: World, call: Call) -> Iterator[Question]:
    """Yield every permission that a call needs."""
    own = ASKED_BY.get((call.service, call.operation))
    if own is not None:
        yield from own(world, call)
        return
    action = f"{PREFIXES.get(call.service, call.service)}:{call.operation}"
    resource = RESOURCES.get(call.service, _any_resource)(world, call)
    yield Question(ALIASES.get(action, action), resource)


def request_tags(given: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the IAM context keys for the tags in a request."""
    context = {f"aws:RequestTag/{key}": [value] for key, value in given.items()}
    if given:
        context["aws:TagKeys"] = list(given)
    return context


def resource_tags(held: Mapping[str, str], *, prefix: str = "ec2") -> dict[str, list[str]]:
    """Return the IAM context keys for the tags of a resource.

    `prefix` is that of the service's own keys, as in `ec2:ResourceTag/…`.
    """
    context: dict[str, list[str]] = {}
    for key, value in held.items():
        context[f"aws:ResourceTag/{key}"] = [value]
        context[f"{prefix}:ResourceTag/{key}"] = [value]
    return context


def ec2_arn(world: World, kind: str, identity: str) -> str:
    """Return the ARN of an EC2 resource; images and snapshots have no account."""
    account = "" if kind in ("image", "snapshot") else backends.ACCOUNT
    return f"arn:aws:ec2:{world.region}:{account}:{kind}/{identity}"


def _of_resource(world: World, action: str, identity: str, **extra: Any) -> Question:
    held = world.all_tags(identity)
    return Question(
        action,
        ec2_arn(world, kind_of(identity), identity),
        {**resource_tags(held), **extra.get("context", {})},
    )


def _templates(world: World, call: Call) -> list[tuple[Any, Mapping[str, Any]]]:
    named = [call.get("LaunchTemplate")] if call.get("LaunchTemplate") else []
    for config in call.get("LaunchTemplateConfigs", []):
        named.append(config.get("LaunchTemplateSpecification") or {})
    templates = []
    for specification in named:
        template = launchtemplates.find(world, specification)
        template.check_version(specification.get("Version"))
        templates.append((template, template.data))
    return templates


MADE = ("instance", "volume", "network-interface")
"""Resource types that every launch creates."""


def _launch(world: World, call: Call) -> Iterator[Question]:
    """Yield the questions of a launch; a dry run of CreateFleet asks nothing of the instances."""
    action = f"ec2:{call.operation}"
    templates = _templates(world, call)
    data = [each for _, each in templates] or [call.parameters]
    specifications = [
        *call.get("TagSpecifications", []),
        *(s for each in data for s in each.get("TagSpecifications") or []),
    ]
    launching = list(dict.fromkeys((action, "ec2:RunInstances")))
    if action == "ec2:CreateFleet":
        given = tags_for(specifications, "fleet")
        yield Question(action, ec2_arn(world, "fleet", "*"), request_tags(given))
        if call.get("DryRun"):
            for template, _ in templates:
                yield _of_resource(world, action, template.identity)
            return
    for each in launching:
        for template, _ in templates:
            yield _of_resource(world, each, template.identity)
    for kind in (*MADE, *(["spot-instances-request"] if _is_spot(call) else [])):
        given = tags_for(specifications, kind)
        yield Question("ec2:RunInstances", ec2_arn(world, kind, "*"), request_tags(given))
    for identity in _used_ids(call, data):
        yield _of_resource(world, "ec2:RunInstances", identity)
    for kind in {s["ResourceType"] for s in specifications}:
        given = tags_for(specifications, kind)
        creating = call.operation
        yield Question(
            "ec2:CreateTags",
            ec2_arn(world, kind, "*"),
            {**request_tags(given), "ec2:CreateAction": [creating]},
        )
    yield from _pass_roles(call, data)


def _is_spot(call: Call) -> bool:
    market = call.get("InstanceMarketOptions", {}).get("MarketType")
    target = call.get("TargetCapacitySpecification", {}).get("DefaultTargetCapacityType")
    return "spot" in (market, target)


def _used_ids(call: Call, data: list[Mapping[str, Any]]) -> list[str]:
    """Return the IDs in a launch: images, snapshots, subnets, security groups, reservations."""
    overrides = [o for c in call.get("LaunchTemplateConfigs", []) for o in c.get("Overrides") or []]
    named = (name for each in (*data, *overrides, call.parameters) for name in _named_ids(each))
    return list(dict.fromkeys(filter(None, named)))


def _named_ids(launch: Mapping[str, Any]) -> Iterator[str | None]:
    yield launch.get("ImageId")
    yield launch.get("SubnetId")
    for nic in launch.get("NetworkInterfaces") or []:
        yield nic.get("SubnetId")
        yield from nic.get("Groups") or []
    yield from launch.get("SecurityGroupIds") or []
    for mapping in launch.get("BlockDeviceMappings") or []:
        yield (mapping.get("Ebs") or {}).get("SnapshotId")
    specification = launch.get("CapacityReservationSpecification") or {}
    yield (specification.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
    yield (launch.get("Placement") or {}).get("GroupId")


def _pass_roles(call: Call, data: list[Mapping[str, Any]]) -> Iterator[Question]:
    wanted = [each.get("IamInstanceProfile") or {} for each in (*data, call.parameters)]
    passed: dict[str, None] = {}
    for profile in list(backends.iam().instance_profiles.values()):
        for each in wanted:
            if each and (each.get("Name") == profile.name or each.get("Arn") == profile.arn):
                passed.update(dict.fromkeys(role.arn for role in profile.roles))
    for arn in passed:
        yield pass_role(arn, "ec2.amazonaws.com")


def pass_role(arn: str, service: str) -> Question:
    """Return the permission to pass a role to a service."""
    return Question("iam:PassRole", arn, {"iam:PassedToService": [service]})


def _create_launch_template(world: World, call: Call) -> Iterator[Question]:
    given = tags_for(call.get("TagSpecifications"), "launch-template")
    arn = ec2_arn(world, "launch-template", "*")
    yield Question("ec2:CreateLaunchTemplate", arn, request_tags(given))
    if given:
        context = {**request_tags(given), "ec2:CreateAction": ["CreateLaunchTemplate"]}
        yield Question("ec2:CreateTags", arn, context)


def _named_template(world: World, call: Call) -> Iterator[Question]:
    template = launchtemplates.find(world, call.parameters)
    yield _of_resource(world, f"ec2:{call.operation}", template.identity)


def _each(parameter: str) -> Callable[[World, Call], Iterator[Question]]:
    def ask(world: World, call: Call) -> Iterator[Question]:
        given = {tag["Key"]: tag.get("Value") or "" for tag in call.get("Tags", []) or []}
        for identity in call.get(parameter, []):
            yield _of_resource(
                world, f"ec2:{call.operation}", identity, context=request_tags(given)
            )

    return ask


# ---------------------------------------------------------------- other services


def _profile(call: Call) -> tuple[str, Mapping[str, str]]:
    name = call.get("InstanceProfileName", "*")
    profile = backends.profile_named(name)
    if profile is not None:
        return profile.arn, {tag["Key"]: tag["Value"] for tag in profile.tags}
    path = call.get("Path", "/")
    return f"arn:aws:iam::{backends.ACCOUNT}:instance-profile{path}{name}", {}


def _instance_profile(world: World, call: Call) -> Iterator[Question]:
    arn, held = _profile(call)
    given = {tag["Key"]: tag["Value"] for tag in call.get("Tags", [])}
    context = {**resource_tags(held, prefix="iam"), **request_tags(given)}
    yield Question(f"iam:{call.operation}", arn, context)
    if call.operation == "CreateInstanceProfile" and given:
        yield Question("iam:TagInstanceProfile", arn, context)
    if call.operation == "AddRoleToInstanceProfile":
        yield pass_role(_role_arn(call), "ec2.amazonaws.com")


def _list_profiles(world: World, call: Call) -> Iterator[Question]:
    path = call.get("PathPrefix", "/")
    arn = f"arn:aws:iam::{backends.ACCOUNT}:instance-profile{path}*"
    yield Question("iam:ListInstanceProfiles", arn)


def _role_arn(call: Call) -> str:
    name = call.get("RoleName", "*")
    role = backends.role_named(name)
    return str(role.arn) if role else f"arn:aws:iam::{backends.ACCOUNT}:role/{name}"


def _any_resource(world: World, call: Call) -> str:
    return "*"


def _iam_resource(world: World, call: Call) -> str:
    if call.get("RoleName"):
        return _role_arn(call)
    return str(call.get("PolicyArn", "*"))


def _queue_arn(world: World, call: Call) -> str:
    name = call.get("QueueName") or str(call.get("QueueUrl", "*")).rsplit("/", 1)[-1]
    return world.arn("sqs", name)


def _cluster_arn(world: World, call: Call) -> str:
    name = call.get("clusterName") or call.get("name")
    return world.arn("eks", f"cluster/{name}") if name else "*"


def _session_role(world: World, call: Call) -> str:
    return str(call.get("RoleArn", "*"))


def _managed_resource(world: World, call: Call) -> str:
    return str(call.get("resourceIdentifier", "*"))


def _parameters(world: World, call: Call) -> Iterator[Question]:
    names = call.get("Names") or [call.get("Name") or call.get("Path") or "*"]
    for name in names:
        account = "" if name.startswith("/aws/") else backends.ACCOUNT
        arn = f"arn:aws:ssm:{world.region}:{account}:parameter/{name.lstrip('/')}"
        yield Question(f"ssm:{call.operation}", arn)


RESOURCES: dict[str, Callable[[World, Call], str]] = {
    "arc-zonal-shift": _managed_resource,
    "eks": _cluster_arn,
    "iam": _iam_resource,
    "sqs": _queue_arn,
    "sts": _session_role,
}
"""Service → function that returns the resource ARN of a call."""

ASKED_BY: dict[tuple[str, str], Callable[[World, Call], Iterator[Question]]] = {
    ("ec2", "CreateFleet"): _launch,
    ("ec2", "RunInstances"): _launch,
    ("ec2", "CreateLaunchTemplate"): _create_launch_template,
    ("ec2", "DeleteLaunchTemplate"): _named_template,
    ("ec2", "CreateTags"): _each("Resources"),
    ("ec2", "DeleteTags"): _each("Resources"),
    ("ec2", "TerminateInstances"): _each("InstanceIds"),
    ("ec2", "StopInstances"): _each("InstanceIds"),
    ("ec2", "RebootInstances"): _each("InstanceIds"),
    ("iam", "CreateInstanceProfile"): _instance_profile,
    ("iam", "DeleteInstanceProfile"): _instance_profile,
    ("iam", "GetInstanceProfile"): _instance_profile,
    ("iam", "TagInstanceProfile"): _instance_profile,
    ("iam", "UntagInstanceProfile"): _instance_profile,
    ("iam", "AddRoleToInstanceProfile"): _instance_profile,
    ("iam", "RemoveRoleFromInstanceProfile"): _instance_profile,
    ("iam", "ListInstanceProfiles"): _list_profiles,
    ("ssm", "GetParameter"): _parameters,
    ("ssm", "GetParameters"): _parameters,
    ("ssm", "GetParametersByPath"): _parameters,
}
"""(service, operation) → function that yields the permissions that a call needs."""
