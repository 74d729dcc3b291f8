"""Authorization of a call: which actions, resources and context keys the policies must allow.

The testbed's admin may make every call. A role session may do what the role's inline and
attached policies allow at that moment, limited by its permissions boundary. The policy of an SQS
queue may allow or deny a call on the queue as well.

AWS's service authorization reference says which resource types an action has, and which condition
keys IAM knows for each. This module finds the resources of these types in a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.cloud.ec2 import launchtemplates
from testbed.cloud.ec2.kinds import kind_of
from testbed.cloud.ec2.launchtemplates import tags_for
from testbed.cloud.iam import policies, reference
from testbed.cloud.iam.identity import Caller
from testbed.cloud.iam.reference import ResourceType
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


# ---------------------------------------------------------------- what a call asks for


def questions(world: World, call: Call) -> Iterator[Question]:
    """Yield every permission that a call needs."""
    if call.service == "ec2":
        yield from _ec2(world, call)
        return
    prefix = PREFIXES.get(call.service, call.service)
    action = f"{prefix}:{call.operation}"
    given = _tags(call)
    context = request_tags(given) | _parameters_as_keys(prefix, call)
    yield from _action_questions(world, ALIASES.get(action, action), call, context)
    if call.service == "iam" and call.operation.startswith("Create") and given:
        tagging = f"iam:Tag{call.operation.removeprefix('Create')}"
        yield from _action_questions(world, tagging, call, context)
    if call.operation == "AddRoleToInstanceProfile":
        yield pass_role(_role_arn(call), "ec2.amazonaws.com")


def _action_questions(
    world: World, action: str, call: Call, context: Mapping[str, Sequence[str]]
) -> Iterator[Question]:
    """Yield the questions of an action: one for each resource that the call names.

    If it names none, the resource is `*`, or every resource of the only type that is required.
    """
    types = reference.resource_types(action)
    named = [
        _question(action, kind, arn, {**context, **resource_tags(held, prefix=call.service)})
        for kind in types
        for arn, held in RESOURCES.get((call.service, kind.name), _no_resources)(world, call)
    ]
    if named:
        yield from named
        return
    required = [kind for kind in types if kind.required]
    only = required[0] if len(required) == 1 else types[0]
    arn = _pattern(world, only, call) if len(required) == 1 else "*"
    yield _question(action, only, arn, context)


def _question(
    action: str, kind: ResourceType, arn: str, context: Mapping[str, Sequence[str]]
) -> Question:
    """Return a question with the keys of its context that IAM knows for the resource type."""
    return Question(
        action, arn, {key: values for key, values in context.items() if kind.has_key(key)}
    )


def _pattern(world: World, kind: ResourceType, call: Call) -> str:
    """Return the ARN of a type with the call's parameters in it, and `*` for what it lacks."""
    known = {"Partition": "aws", "Region": world.region, "Account": backends.ACCOUNT}

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return known.get(name) or str(call.get(f"{name[0].lower()}{name[1:]}", "*"))

    return re.sub(r"\$\{(\w+)\}", value, kind.arn)


def _parameters_as_keys(prefix: str, call: Call) -> dict[str, list[str]]:
    """Return the parameters that are texts as keys of the service, such as `eks:principalArn`."""
    return {
        f"{prefix}:{name}": [value]
        for name, value in call.parameters.items()
        if isinstance(value, str)
    }


def _tags(call: Call) -> dict[str, str]:
    given = call.get("Tags") or call.get("tags") or {}
    return (
        dict(given) if isinstance(given, dict) else {t["Key"]: t.get("Value") or "" for t in given}
    )


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


def pass_role(arn: str, service: str) -> Question:
    """Return the permission to pass a role to a service."""
    return Question("iam:PassRole", arn, {"iam:PassedToService": [service]})


# ---------------------------------------------------------------- EC2


def ec2_arn(world: World, kind: str, identity: str) -> str:
    """Return the ARN of an EC2 resource; images and snapshots have no account."""
    account = "" if kind in ("image", "snapshot") else backends.ACCOUNT
    return f"arn:aws:ec2:{world.region}:{account}:{kind}/{identity}"


def _ec2(world: World, call: Call) -> Iterator[Question]:
    """Yield the questions of a call to EC2.

    CreateFleet runs instances as well. A dry run of it asks for the fleet and its templates alone.
    """
    action, creates_fleet = f"ec2:{call.operation}", call.operation == "CreateFleet"
    dry_fleet = creates_fleet and call.get("DryRun")
    launches = call.operation == "RunInstances" or (creates_fleet and not dry_fleet)
    templates = dict(_templates(world, call))
    documents = [call.parameters, *(templates.values() if launches else ())]
    used = list(dict.fromkeys([*templates, *_ids_in(documents)]))
    specifications = [s for each in documents for s in each.get("TagSpecifications") or []]
    only = ("fleet", "launch-template") if dry_fleet else ()
    for each in dict.fromkeys([action, *(["ec2:RunInstances"] if launches else [])]):
        yield from _ec2_action(world, each, call, used, specifications, only=only)
    if dry_fleet:
        return
    for name in {s["ResourceType"] for s in specifications}:
        context = {
            **request_tags(tags_for(specifications, name)),
            "ec2:CreateAction": [call.operation],
        }
        yield Question("ec2:CreateTags", ec2_arn(world, name, "*"), context)
    yield from _pass_roles(documents)


def _ec2_action(
    world: World,
    action: str,
    call: Call,
    used: Sequence[str],
    specifications: list[Mapping[str, Any]],
    *,
    only: Sequence[str],
) -> Iterator[Question]:
    """Yield the questions of an EC2 action on what it uses and creates, by resource type."""
    types = reference.resource_types(action)
    if not types[0].name:
        yield _question(action, types[0], "*", {})
    for kind in types:
        if only and kind.name not in only:
            continue
        if kind.is_created and (kind.name != "spot-instances-request" or _is_spot(call)):
            given = request_tags(tags_for(specifications, kind.name))
            yield _question(action, kind, ec2_arn(world, kind.name, "*"), given)
            continue
        for identity in used:
            if kind_of(identity) == kind.name:
                held = resource_tags(world.all_tags(identity)) | request_tags(_tags(call))
                yield _question(action, kind, ec2_arn(world, kind.name, identity), held)


def _ids_in(value: Any) -> Iterator[str]:
    """Yield the IDs of EC2 resources that are anywhere in a call's parameters."""
    if isinstance(value, Mapping):
        yield from _ids_in(value.values())
    elif isinstance(value, str):
        if kind_of(value) != "*":
            yield value
    elif isinstance(value, Iterable):
        for each in value:
            yield from _ids_in(each)


def _templates(world: World, call: Call) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the launch templates that a call names: the ID, and the data of the named version."""
    creates = call.operation.startswith("Create")
    named = [call.parameters] if call.get("LaunchTemplateName") and not creates else []
    if (given := call.get("LaunchTemplate")) is not None:
        named.append(given)
    for config in call.get("LaunchTemplateConfigs", []):
        named.append(config.get("LaunchTemplateSpecification") or {})
    for specification in named:
        template = launchtemplates.find(world, specification)
        yield template.identity, template.data(specification.get("Version"))


def _is_spot(call: Call) -> bool:
    market = call.get("InstanceMarketOptions", {}).get("MarketType")
    target = call.get("TargetCapacitySpecification", {}).get("DefaultTargetCapacityType")
    return "spot" in (market, target)


def _pass_roles(documents: Sequence[Mapping[str, Any]]) -> Iterator[Question]:
    wanted = [each.get("IamInstanceProfile") or {} for each in documents]
    passed: dict[str, None] = {}
    for profile in list(backends.iam().instance_profiles.values()):
        for each in wanted:
            if each and (each.get("Name") == profile.name or each.get("Arn") == profile.arn):
                passed.update(dict.fromkeys(role.arn for role in profile.roles))
    for arn in passed:
        yield pass_role(arn, "ec2.amazonaws.com")


# ---------------------------------------------------------------- other services

Named = Sequence[tuple[str, Mapping[str, str]]]
"""ARNs of the resources of a type that a call names, each with its tags."""


def _no_resources(world: World, call: Call) -> Named:
    return ()


def _profile(world: World, call: Call) -> Named:
    name = call.get("InstanceProfileName", "*")
    profile = backends.profile_named(name)
    if profile is not None:
        return [(profile.arn, {tag["Key"]: tag["Value"] for tag in profile.tags})]
    path = call.get("Path", "/")
    return [(f"arn:aws:iam::{backends.ACCOUNT}:instance-profile{path}{name}", {})]


def _role_arn(call: Call) -> str:
    name = call.get("RoleName", "*")
    role = backends.role_named(name)
    return str(role.arn) if role else f"arn:aws:iam::{backends.ACCOUNT}:role/{name}"


def _role(world: World, call: Call) -> Named:
    return [(_role_arn(call), {})] if call.get("RoleName") else ()


def _policy(world: World, call: Call) -> Named:
    return [(str(call.get("PolicyArn")), {})] if call.get("PolicyArn") else ()


def _queue(world: World, call: Call) -> Named:
    name = call.get("QueueName") or str(call.get("QueueUrl", "*")).rsplit("/", 1)[-1]
    return [(world.arn("sqs", name), {})]


def _cluster(world: World, call: Call) -> Named:
    name = call.get("clusterName") or call.get("name")
    return [(world.arn("eks", f"cluster/{name}"), {})] if name else ()


def _session_role(world: World, call: Call) -> Named:
    return [(str(call.get("RoleArn", "*")), {})]


def _parameters(world: World, call: Call) -> Named:
    names = call.get("Names") or [call.get("Name") or call.get("Path") or "*"]
    accounts = ("" if name.startswith("/aws/") else backends.ACCOUNT for name in names)
    return [
        (f"arn:aws:ssm:{world.region}:{account}:parameter/{name.lstrip('/')}", {})
        for name, account in zip(names, accounts, strict=True)
    ]


RESOURCES: dict[tuple[str, str], Callable[[World, Call], Named]] = {
    ("eks", "cluster"): _cluster,
    ("iam", "instance-profile"): _profile,
    ("iam", "policy"): _policy,
    ("iam", "role"): _role,
    ("sqs", "queue"): _queue,
    ("ssm", "parameter"): _parameters,
    ("sts", "role"): _session_role,
}
"""(service, resource type) → function that finds the resources of the type in a call."""
