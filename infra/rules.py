"""What must never happen to rights: rules that each resource is held to before it is made.

A rule looks at a document as it would be sent, and says what is wrong with it and what to do
instead. The program holds itself to them in every preview (`infra.enforcement`), and the policy
pack in `examples/policies` any other program. Nothing here knows of Pulumi.

* no everything     nobody may do everything with anything; only what reads may be told by `*`
* no foreign trust  nobody but AWS's own services and one service account becomes a role
* no new power      of IAM, only what handing on the nodes' role takes
* no open queue     nobody sends to a queue but by a condition that names him
* no open cluster   of Kubernetes, rights are named one by one, and none that gives more of them
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Wire = Mapping[str, Any]
"""A document, or a part of one, as it stands in JSON."""

Check = Callable[[Any], Iterator[str]]
"""What is wrong with a property of a resource, in sentences with a next step."""

READING = (
    *("autoscaling:Describe*", "ec2:Describe*", "ecr:Describe*", "ecr:List*", "eks:Describe*"),
    *("eks:List*", "elasticloadbalancing:Describe*", "iam:Get*", "iam:List*", "pricing:*"),
    *("tag:Get*",),
)
"""Actions with `*` that are harmless on everything: they only read, and no secrets."""

OF_PROFILES = (
    "iam:AddRoleToInstanceProfile",
    "iam:CreateInstanceProfile",
    "iam:DeleteInstanceProfile",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:TagInstanceProfile",
)
"""What the controller may do to instance profiles, and to nothing else."""

SERVICES = ("ec2", "eks", "eks-fargate-pods", "pods.eks")
"""AWS's services that may become a role of ours, before `.amazonaws.com`."""

ADMINISTRATORS = ("AdministratorAccess", "IAMFullAccess", "PowerUserAccess")
"""AWS's own policies that open everything, or the way to everything."""

GIVING_MORE = ("bind", "escalate", "impersonate")
"""Verbs of Kubernetes by which whoever has them gives himself more."""

LOOKING = frozenset({"get", "list", "watch"})

POWERS: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "nodes/proxy"): frozenset(),
    ("", "pods/attach"): frozenset(),
    ("", "pods/exec"): frozenset(),
    ("", "secrets"): frozenset(),
    ("", "serviceaccounts/token"): frozenset(),
    ("admissionregistration.k8s.io", ""): LOOKING,
    ("certificates.k8s.io", ""): LOOKING,
    ("rbac.authorization.k8s.io", ""): LOOKING,
}
"""API group and resource (none stands for all of the group) through which rights grow → verbs that
are harmless there: Kubernetes's documentation, "RBAC Good Practices"."""

_RBAC = "kubernetes:rbac.authorization.k8s.io/v1"

EVERYBODY = (
    "system:anonymous",
    "system:authenticated",
    "system:serviceaccounts",
    "system:unauthenticated",
)
"""Whom Kubernetes takes for a user or group that is not somebody in particular."""

SENDERS = ("aws:SourceArn", "aws:SourceAccount", "aws:PrincipalArn", "aws:PrincipalOrgID")
"""Keys by which a condition says who may send to a queue."""


def violations(kind: str, props: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with a resource.

    Args:
        kind: its type, as Pulumi calls it.
        props: its inputs, as Pulumi's schema calls them.

    """
    for name, check in CHECKS.get(kind, {}).items():
        if props.get(name):
            yield from check(props[name])


def of_statement(statement: Wire) -> Iterator[str]:
    """Say what a statement of IAM opens that it must not."""
    if statement.get("Effect") != "Allow":
        return
    if "NotAction" in statement or "NotResource" in statement:
        yield "it allows all but what it names: name what it is to allow (Action, Resource)"
        return
    resources = _listed(statement.get("Resource", []))
    for action in map(str, _listed(statement.get("Action", []))):
        yield from _of_action(action, resources, statement.get("Condition") or {})


def _of_action(action: str, resources: list[Any], condition: Wire) -> Iterator[str]:
    service, _, verb = action.partition(":")
    if "*" in service or "?" in service:
        yield f"it allows {action}: name the actions"
        return
    if _reads(action):
        return
    if any(map(_is_everything, resources)) and ("*" in verb or "?" in verb):
        yield f"it allows {action} on everything: name the actions, or the resources"
    elif service.lower() == "iam":
        yield from _of_iam(action, resources, condition)
    elif service.lower() == "sts" and any(map(_is_everything, resources)):
        yield f"it allows {action} on every role there is: name the roles"


def _of_iam(action: str, resources: list[Any], condition: Wire) -> Iterator[str]:
    if action == "iam:PassRole":
        if any("*" in str(resource) for resource in resources):
            yield "it allows iam:PassRole of any role: name the roles by their ARNs"
        if not any("iam:PassedToService" in keys for keys in condition.values()):
            yield "it allows iam:PassRole to any service: say which (iam:PassedToService)"
    elif action not in OF_PROFILES:
        yield (
            f"it allows {action}, by which whoever has it could give himself more: leave it out, "
            "and have somebody else do that with a role of his own"
        )
    elif not all(":instance-profile/" in str(resource) for resource in resources):
        yield f"it allows {action} on more than instance profiles: name those"


def of_policy(document: Any) -> Iterator[str]:
    """Say what a policy opens that it must not."""
    for statement in _statements(document):
        yield from (f"{_titled(statement)}: {fault}" for fault in of_statement(statement))


def of_trust(document: Any) -> Iterator[str]:
    """Say who may become a role that must not."""
    for statement in _statements(document):
        if statement.get("Effect") == "Allow":
            faults = _of_principal(statement.get("Principal", "*"), statement)
            yield from (f"{_titled(statement)}: {fault}" for fault in faults)


def _of_principal(principal: Any, statement: Wire) -> Iterator[str]:
    if not isinstance(principal, Mapping):
        yield "it lets anybody become the role: name a service, or a service account"
        return
    for kind, names in principal.items():
        for name in map(str, _listed(names)):
            if kind == "Service" and name.partition(".amazonaws.com")[0] in SERVICES:
                continue
            if kind == "Federated" and _names_one_account(statement):
                continue
            yield (
                f"it lets {name} become the role: only EC2, EKS and the controller's own service "
                "account may; give others a role of their own"
            )


def _names_one_account(statement: Wire) -> bool:
    """Whether a condition lets one service account in, by its whole name."""
    exact = (statement.get("Condition") or {}).get("StringEquals", {})
    subjects = [value for key, value in exact.items() if key.endswith(":sub")]
    return bool(subjects) and not any("*" in str(subject) for subject in subjects)


def of_queue(document: Any) -> Iterator[str]:
    """Say who may use a queue that must not."""
    for statement in _statements(document):
        if statement.get("Effect") != "Allow" or _is_named(statement.get("Principal")):
            continue
        keys = [key for keys in (statement.get("Condition") or {}).values() for key in keys]
        if not any(key in SENDERS for key in keys):
            yield (
                f"{_titled(statement)}: it opens the queue to everybody: say in a condition whose "
                f"events may come ({' or '.join(SENDERS[:2])})"
            )


def _is_named(principal: Any) -> bool:
    """Whether it is principals of AWS by name: a service speaks for everybody."""
    if not isinstance(principal, Mapping) or set(principal) != {"AWS"}:
        return False
    return not any("*" in str(name) for name in _listed(principal["AWS"]))


def of_attachment(arn: Any) -> Iterator[str]:
    """Say which policy of AWS must not be attached."""
    named = str(arn).rpartition("/")[2]
    if ":iam::aws:policy/" in str(arn) and named in ADMINISTRATORS:
        yield f"{named} would make an administrator of whoever has the role: attach a narrower one"


def of_rights(rules: Any) -> Iterator[str]:
    """Say what the rules of a role of Kubernetes open that they must not."""
    for rule in _listed(rules):
        yield from _of_right(rule)


def _of_right(rule: Wire) -> Iterator[str]:
    verbs, resources = rule.get("verbs") or [], rule.get("resources") or []
    groups = rule.get("apiGroups") or []
    where = ", ".join(map(str, [*resources, *(rule.get("nonResourceURLs") or [])]))
    for what, given in (("verbs", verbs), ("resources", resources), ("apiGroups", groups)):
        if any("*" in str(each) for each in given):
            yield f"a rule on {where} says * in {what}: name them"
    if "*" in (rule.get("nonResourceURLs") or []):
        yield "a rule opens every path that is no resource: name them"
    for verb in GIVING_MORE:
        if verb in verbs:
            yield (
                f"a rule allows {verb} on {where}, by which whoever has it gives himself more: "
                "leave it out"
            )
    if rule.get("resourceNames"):
        return
    for group in groups:
        for resource in resources:
            harmless = POWERS.get((group, resource), POWERS.get((group, "")))
            if harmless is not None and set(verbs) - harmless:
                yield (
                    f"a rule allows {', '.join(sorted(set(verbs) - harmless))} on every one of "
                    f"{resource}, by which whoever has it gets more: leave it out, or name the "
                    "objects (resourceNames)"
                )


def of_role_reference(reference: Wire) -> Iterator[str]:
    """Say which role of Kubernetes must not be given to anybody."""
    if reference.get("name") == "cluster-admin":
        yield "it makes an administrator of the cluster: give a role with what is needed"


def of_subjects(subjects: Any) -> Iterator[str]:
    """Say who must not be given a role of Kubernetes."""
    for subject in _listed(subjects):
        name = str(subject.get("name"))
        if subject.get("kind") in ("Group", "User") and name in EVERYBODY:
            yield f"it gives the role to {name}, which is everybody: name who needs it"


CHECKS: Mapping[str, Mapping[str, Check]] = {
    "aws:iam/policy:Policy": {"policy": of_policy},
    "aws:iam/role:Role": {"assumeRolePolicy": of_trust},
    "aws:iam/rolePolicy:RolePolicy": {"policy": of_policy},
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": {"policyArn": of_attachment},
    "aws:sqs/queuePolicy:QueuePolicy": {"policy": of_queue},
    **{f"{_RBAC}:{kind}": {"rules": of_rights} for kind in ("ClusterRole", "Role")},
    **{
        f"{_RBAC}:{kind}": {"roleRef": of_role_reference, "subjects": of_subjects}
        for kind in ("ClusterRoleBinding", "RoleBinding")
    },
}
"""Type of a resource → what is looked at, by property."""


def _statements(document: Any) -> list[Wire]:
    parsed = json.loads(document) if isinstance(document, str) else document
    return list(map(dict, _listed(parsed.get("Statement", []))))


def _titled(statement: Wire) -> str:
    return f"statement {statement['Sid']}" if statement.get("Sid") else "a statement"


def _reads(action: str) -> bool:
    return any(re.fullmatch(_pattern(harmless), action, re.IGNORECASE) for harmless in READING)


def _pattern(harmless: str) -> str:
    # What is allowed by a narrower pattern is allowed: `ec2:DescribeI*` is within `ec2:Describe*`.
    return re.escape(harmless).replace(r"\*", ".*")


def _is_everything(resource: Any) -> bool:
    """Whether it stands for what is of every service."""
    return re.fullmatch(r"\*+|arn:[^:]*:[*?].*", str(resource)) is not None


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | Mapping) else list(value)
