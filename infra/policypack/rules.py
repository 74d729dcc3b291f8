"""Security rules for IAM, SQS and RBAC documents, checked before a resource is created.

A rule takes a document as it would be sent to AWS or Kubernetes, and yields what is wrong with it
and what to do instead. The program applies the rules in every preview
(`infra.policypack.enforcement`). The policy pack in `examples/policies` applies them to any other
program. This module does not import Pulumi.

* no wildcards      only actions that read may use `*` on all resources
* no foreign trust  only EC2, EKS and the controller's service account may assume a role
* no escalation     of IAM's actions, only PassRole and those on instance profiles are allowed
* no open queue     a queue policy needs a condition on the sender
* no open cluster   Kubernetes rules name each permission, and none that grants more of them
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Wire = Mapping[str, Any]
"""A document, or a part of one, as parsed from JSON."""

Check = Callable[[Any], Iterator[str]]
"""Yields the problems of a resource's property, each a sentence with what to do."""

READING = (
    *("autoscaling:Describe*", "ec2:Describe*", "ecr:Describe*", "ecr:List*", "eks:Describe*"),
    *("eks:List*", "elasticloadbalancing:Describe*", "iam:Get*", "iam:List*", "pricing:*"),
    *("tag:Get*",),
)
"""Wildcard actions that are allowed on all resources: they only read, and read no secrets."""

OF_PROFILES = (
    "iam:AddRoleToInstanceProfile",
    "iam:CreateInstanceProfile",
    "iam:DeleteInstanceProfile",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:TagInstanceProfile",
)
"""The IAM actions that are allowed on instance profiles, and only on them."""

SERVICES = ("ec2", "eks", "eks-fargate-pods", "pods.eks")
"""AWS services that may assume our roles: the part before `.amazonaws.com`."""

ADMINISTRATORS = ("AdministratorAccess", "IAMFullAccess", "PowerUserAccess")
"""AWS managed policies that allow everything, or a way to gain everything."""

GIVING_MORE = ("bind", "escalate", "impersonate")
"""RBAC verbs by which a subject can gain more permissions."""

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
"""API group and resource (empty: all of the group) through which a subject can gain permissions →
verbs that are harmless there. Source: Kubernetes documentation, "RBAC Good Practices"."""

_RBAC = "kubernetes:rbac.authorization.k8s.io/v1"

EVERYBODY = (
    "system:anonymous",
    "system:authenticated",
    "system:serviceaccounts",
    "system:unauthenticated",
)
"""Kubernetes users and groups that stand for everyone, or for all service accounts."""

SENDERS = ("aws:SourceArn", "aws:SourceAccount", "aws:PrincipalArn", "aws:PrincipalOrgID")
"""Condition keys that restrict the senders of a queue."""


def violations(kind: str, props: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rules that a resource breaks, each with what to do.

    Args:
        kind: the resource's Pulumi type.
        props: the resource's inputs, by their names in Pulumi's schema.

    """
    for name, check in CHECKS.get(kind, {}).items():
        if props.get(name):
            yield from check(props[name])


def of_statement(statement: Wire) -> Iterator[str]:
    """Yield what an IAM statement must not allow, but does."""
    if statement.get("Effect") != "Allow":
        return
    if "NotAction" in statement or "NotResource" in statement:
        yield "it allows all but what it names: use Action, not NotAction, and Resource"
        return
    resources = _as_list(statement.get("Resource", []))
    for action in map(str, _as_list(statement.get("Action", []))):
        yield from _of_action(action, resources, statement.get("Condition") or {})


def _of_action(action: str, resources: list[Any], condition: Wire) -> Iterator[str]:
    service, _, verb = action.partition(":")
    if "*" in service or "?" in service:
        yield f"it allows {action}: name the actions"
        return
    if _reads(action):
        return
    if any(map(_is_everything, resources)) and ("*" in verb or "?" in verb):
        yield f"it allows {action} on all resources: name the actions or the resources"
    elif service.lower() == "iam":
        yield from _of_iam(action, resources, condition)
    elif service.lower() == "sts" and any(map(_is_everything, resources)):
        yield f"it allows {action} on all roles: name the roles"


def _of_iam(action: str, resources: list[Any], condition: Wire) -> Iterator[str]:
    if action == "iam:PassRole":
        if any("*" in str(resource) for resource in resources):
            yield "it allows iam:PassRole of all roles: name the roles by their ARNs"
        if not any("iam:PassedToService" in keys for keys in condition.values()):
            yield "it allows iam:PassRole to all services: add the condition iam:PassedToService"
    elif action not in OF_PROFILES:
        yield (
            f"it allows {action}, which can be used to gain more permissions: remove it, and "
            "use a separate role for it"
        )
    elif not all(":instance-profile/" in str(resource) for resource in resources):
        yield f"it allows {action} on more than instance profiles: name the instance profiles"


def of_policy(document: Any) -> Iterator[str]:
    """Yield what an IAM policy must not allow, but does."""
    for statement in _statements(document):
        yield from (f"{_title(statement)}: {fault}" for fault in of_statement(statement))


def of_trust(document: Any) -> Iterator[str]:
    """Yield the principals that must not assume the role, but may by its trust policy."""
    for statement in _statements(document):
        if statement.get("Effect") == "Allow":
            faults = _of_principal(statement.get("Principal", "*"), statement)
            yield from (f"{_title(statement)}: {fault}" for fault in faults)


def _of_principal(principal: Any, statement: Wire) -> Iterator[str]:
    if not isinstance(principal, Mapping):
        yield "it lets everyone assume the role: name a service or a service account"
        return
    for kind, names in principal.items():
        for name in map(str, _as_list(names)):
            if kind == "Service" and name.partition(".amazonaws.com")[0] in SERVICES:
                continue
            if kind == "Federated" and _names_one_account(statement):
                continue
            yield (
                f"it lets {name} assume the role: only EC2, EKS and the controller's service "
                "account may assume a role; use a separate role for others"
            )


def _names_one_account(statement: Wire) -> bool:
    """Whether a condition restricts the statement to service accounts named in full."""
    exact = (statement.get("Condition") or {}).get("StringEquals", {})
    subjects = [value for key, value in exact.items() if key.endswith(":sub")]
    return bool(subjects) and not any("*" in str(subject) for subject in subjects)


def of_queue(document: Any) -> Iterator[str]:
    """Yield the statements of a queue policy that do not restrict the sender."""
    for statement in _statements(document):
        if statement.get("Effect") != "Allow" or _is_named(statement.get("Principal")):
            continue
        keys = [key for keys in (statement.get("Condition") or {}).values() for key in keys]
        if not any(key in SENDERS for key in keys):
            yield (
                f"{_title(statement)}: it lets everyone send to the queue: add a condition on "
                f"the sender ({' or '.join(SENDERS[:2])})"
            )


def _is_named(principal: Any) -> bool:
    """Whether the principal is AWS principals by name; a service acts for every account."""
    if not isinstance(principal, Mapping) or set(principal) != {"AWS"}:
        return False
    return not any("*" in str(name) for name in _as_list(principal["AWS"]))


def of_attachment(arn: Any) -> Iterator[str]:
    """Yield a problem if the attached AWS managed policy makes the role an administrator."""
    named = str(arn).rpartition("/")[2]
    if ":iam::aws:policy/" in str(arn) and named in ADMINISTRATORS:
        yield f"{named} makes the role an administrator: attach a narrower policy"


def of_rights(rules: Any) -> Iterator[str]:
    """Yield what the rules of a Role or ClusterRole must not allow, but do."""
    for rule in _as_list(rules):
        yield from _of_right(rule)


def _of_right(rule: Wire) -> Iterator[str]:
    verbs, resources = rule.get("verbs") or [], rule.get("resources") or []
    groups = rule.get("apiGroups") or []
    where = ", ".join(map(str, [*resources, *(rule.get("nonResourceURLs") or [])]))
    for what, given in (("verbs", verbs), ("resources", resources), ("apiGroups", groups)):
        if any("*" in str(each) for each in given):
            yield f"a rule on {where} has * in {what}: name the {what}"
    if "*" in (rule.get("nonResourceURLs") or []):
        yield "a rule allows all nonResourceURLs: name the paths"
    for verb in GIVING_MORE:
        if verb in verbs:
            yield (
                f"a rule allows {verb} on {where}, which can be used to gain more permissions: "
                "remove it"
            )
    if rule.get("resourceNames"):
        return
    for group in groups:
        for resource in resources:
            harmless = POWERS.get((group, resource), POWERS.get((group, "")))
            if harmless is not None and set(verbs) - harmless:
                yield (
                    f"a rule allows {', '.join(sorted(set(verbs) - harmless))} on all {resource}, "
                    "which can be used to gain more permissions: remove it, or name the objects "
                    "(resourceNames)"
                )


def of_role_reference(reference: Wire) -> Iterator[str]:
    """Yield a problem if a binding refers to cluster-admin."""
    if reference.get("name") == "cluster-admin":
        yield "cluster-admin makes the subjects administrators of the cluster: use a narrower role"


def of_subjects(subjects: Any) -> Iterator[str]:
    """Yield the subjects of a binding that include every user."""
    for subject in _as_list(subjects):
        name = str(subject.get("name"))
        if subject.get("kind") in ("Group", "User") and name in EVERYBODY:
            yield f"it binds the role to {name}, which includes everyone: name the subjects"


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
"""Pulumi type of a resource → the check of each property."""


def _statements(document: Any) -> list[Wire]:
    parsed = json.loads(document) if isinstance(document, str) else document
    return list(map(dict, _as_list(parsed.get("Statement", []))))


def _title(statement: Wire) -> str:
    return f"statement {statement['Sid']}" if statement.get("Sid") else "a statement"


def _reads(action: str) -> bool:
    return any(re.fullmatch(_pattern(harmless), action, re.IGNORECASE) for harmless in READING)


def _pattern(harmless: str) -> str:
    # A narrower pattern also matches: `ec2:DescribeI*` is within `ec2:Describe*`.
    return re.escape(harmless).replace(r"\*", ".*")


def _is_everything(resource: Any) -> bool:
    """Whether a resource pattern covers resources of every service."""
    return re.fullmatch(r"\*+|arn:[^:]*:[*?].*", str(resource)) is not None


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | Mapping) else list(value)
