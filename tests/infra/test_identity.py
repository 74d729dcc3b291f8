"""What the controller's pods need before they can assume their role."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest

from infra.config.forms import ConfigError
from infra.identity.controlleridentity import (
    ForeignAssociationError,
    delete_earlier_provider,
    refuse_unusable_provider,
    remove_association,
)
from infra.policies import Place

PLACE = Place("aws", "us-west-2", "123456789012", "joiner")
ISSUER = "https://oidc.example.com/id/ABC"
STACK = "organization/joiner/dev"


@dataclass
class Eks:
    """The part of EKS with Pod Identity associations."""

    associations: dict[str, dict[str, Any]] = field(default_factory=dict)

    def associate(self, service_account: str, tags: dict[str, str]) -> str:
        identity = f"a-{len(self.associations)}"
        self.associations[identity] = {
            "associationId": identity,
            "namespace": "kube-system",
            "serviceAccount": service_account,
            "roleArn": "arn:aws:iam::123456789012:role/some",
            "tags": tags,
        }
        return identity

    def list_pod_identity_associations(self, **asked: str) -> dict[str, Any]:
        associations = [
            {"associationId": each["associationId"]}
            for each in self.associations.values()
            if all(each[key] == asked[key] for key in ("namespace", "serviceAccount"))
        ]
        return {"associations": associations}

    def describe_pod_identity_association(self, **asked: str) -> dict[str, Any]:
        return {"association": self.associations[asked["associationId"]]}

    def delete_pod_identity_association(self, **asked: str) -> None:
        del self.associations[asked["associationId"]]


def remove(eks: Eks) -> bool:
    return remove_association(
        eks, cluster="joiner", namespace="kube-system", service_account="karpenter", stack=STACK
    )


def test_only_the_stacks_own_association_is_removed() -> None:
    eks = Eks()
    eks.associate("karpenter", {"joiner.dev/stack": STACK})
    other = eks.associate("external-dns", {})

    assert remove(eks)
    assert not remove(eks)

    assert list(eks.associations) == [other]


def test_a_foreign_association_is_named_and_kept() -> None:
    eks = Eks()
    theirs = eks.associate("karpenter", {"joiner.dev/stack": "organization/joiner/other"})

    with pytest.raises(ForeignAssociationError, match=f"kube-system/karpenter .* {theirs} "):
        remove(eks)

    assert list(eks.associations) == [theirs]


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    ("wanted", "made_by", "advice"),
    [
        ("create", "another", "set joiner:oidcProvider to existing"),
        ("existing", None, "set joiner:oidcProvider to create"),
    ],
)
def test_an_oidc_provider_that_contradicts_the_setting_is_refused_with_the_remedy(
    wanted: Any, made_by: str | None, advice: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        look(wanted, made_by)

    (problem,) = refused.value.problems
    assert f"joiner:oidcProvider='{wanted}' cannot be used" in problem
    assert "oidc.example.com/id/ABC" in problem
    assert advice in problem


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    ("wanted", "made_by"),
    [("create", None), ("create", STACK), ("existing", "another"), ("existing", STACK)],
)
def test_an_oidc_provider_that_matches_the_setting_is_accepted(
    wanted: Any, made_by: str | None
) -> None:
    look(wanted, made_by)


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(("made_by", "stays"), [(STACK, False), ("another", True)])
def test_only_the_stacks_own_oidc_provider_makes_way_for_its_next_one(
    made_by: str, stays: bool
) -> None:
    iam = boto3.client("iam")
    arn = create_provider(iam, made_by)

    delete_earlier_provider(iam, arn, STACK)
    delete_earlier_provider(iam, f"{arn}-of-another-cluster", STACK)

    found = iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]
    assert [each["Arn"] for each in found] == [arn] * stays


def test_a_cluster_without_an_issuer_cannot_do_irsa() -> None:
    with pytest.raises(ConfigError, match=r"identity='irsa' .*set joiner:identity to pod-identity"):
        refuse_unusable_provider("existing", place=PLACE, issuer="", stack=STACK, iam=None)


def look(wanted: Any, made_by: str | None) -> None:
    """Check the setting in an account that may have the provider already."""
    iam = boto3.client("iam")
    if made_by is not None:
        create_provider(iam, made_by)
    refuse_unusable_provider(wanted, place=PLACE, issuer=ISSUER, stack=STACK, iam=iam)


def create_provider(iam: Any, made_by: str) -> str:
    """Create the OIDC provider of the issuer, with the tag of a stack; return its ARN."""
    tags = [{"Key": "joiner.dev/stack", "Value": made_by}]
    created = iam.create_open_id_connect_provider(Url=ISSUER, Tags=tags)
    return str(created["OpenIDConnectProviderArn"])
