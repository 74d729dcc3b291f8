"""Every statement of every policy, judged by AWS's service authorization reference."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest

from testbed.cloud.iam import reference
from testbed.cloud.iam.reference import UnknownActionError
from tests.infra.everything import documents

pytestmark = pytest.mark.usefixtures("entries", "hooks")


def as_list(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [value]


def faults(statement: dict[str, Any]) -> Iterator[str]:
    """Yield why AWS ignores a part of a statement."""
    actions = [each for each in as_list(statement["Action"]) if not each.endswith("*")]
    honoured: set[str] = set()
    resources = as_list(statement.get("Resource", "*"))  # a trust policy has none
    for action in actions:
        types = [
            (resource, kind)
            for resource in resources
            for kind in reference.resource_types(action)
            if kind.contains(resource) or "Resource" not in statement
        ]
        if not types:
            yield f"{action} has no resource of these types: {resources}"
        honoured |= {resource for resource, _ in types}
        for _, kind in types:
            yield from (
                f"{action} on {kind.name or '*'} lacks {key}" for key in lost(statement, kind)
            )
    if actions:
        yield from (f"no action has a resource {each}" for each in set(resources) - honoured)


def lost(statement: dict[str, Any], kind: reference.ResourceType) -> Iterator[str]:
    """Yield the condition keys that IAM does not know for a resource type."""
    for operator, keys in statement.get("Condition", {}).items():
        for key in keys:
            # The keys of an OIDC provider are named after its issuer.
            issuers = fnmatchcase(key, "*.*:aud") or fnmatchcase(key, "*.*:sub")
            if not (operator.endswith("IfExists") or issuers or kind.has_key(key)):
                yield key


def test_aws_honours_every_statement_of_every_policy() -> None:
    found = {
        (statement.get("Sid", where), fault)
        for where, document in documents()
        for statement in document["Statement"]
        for fault in faults(statement)
    }

    assert found == set()


def test_the_policies_that_are_judged_are_all_that_the_program_writes() -> None:
    sids = {each.get("Sid") for _, document in documents() for each in document["Statement"]}

    assert {"SeeZonalShifts", "ListProfiles", "FindOwnImages", "DecryptMessages"} <= sids
    assert {"AssignAddresses", "EventsMaySend", "LaunchOnlyWithOwnTags"} <= sids


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        pytest.param(
            {
                "Action": "arc-zonal-shift:GetManagedResource",
                "Resource": "arn:aws:eks:us-west-2:123456789012:cluster/joiner",
            },
            "has no resource of these types",
            id="a cluster is no resource of ARC",
        ),
        pytest.param(
            {
                "Action": ["iam:ListInstanceProfiles", "iam:GetInstanceProfile"],
                "Resource": "arn:aws:iam::123456789012:instance-profile/*",
            },
            "iam:ListInstanceProfiles has no resource",
            id="a list cannot be limited",
        ),
        pytest.param(
            {
                "Action": "ec2:RunInstances",
                "Resource": "arn:aws:ec2:*:*:instance/*",
                "Condition": {"StringEquals": {"aws:ResourceTag/team": "web"}},
            },
            "lacks aws:ResourceTag/team",
            id="what a launch creates has no tags yet",
        ),
        pytest.param(
            {"Action": "ec2:TerminateInstances", "Resource": "arn:aws:ec2:*:*:volume/*"},
            "no action has a resource",
            id="another type",
        ),
    ],
)
def test_a_statement_that_grants_nothing_is_found(statement: dict[str, Any], fault: str) -> None:
    assert any(fault in each for each in faults(statement))


def test_an_action_that_aws_does_not_have_is_found() -> None:
    with pytest.raises(UnknownActionError, match="ec2:DescribeMachines"):
        list(faults({"Action": "ec2:DescribeMachines", "Resource": "*"}))
