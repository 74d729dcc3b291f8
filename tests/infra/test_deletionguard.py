"""A changed setting does not delete what a stack has created."""

from __future__ import annotations

from typing import Any

import pytest

from infra.guards.deletionguard import WouldBeDeletedError, _DeletionGuardProvider
from tests.infra.knownaws import NEW, Entries, connection
from tests.infra.test_program import Made, standard

pytestmark = pytest.mark.usefixtures("entries")

OURS = "organization/joiner/dev"
MADE = {"cluster": "joiner", "nodeRole": "nodes", "controllerRole": "controller", "queue": "events"}

Props = dict[str, Any]


def held(**changes: Any) -> Props:
    """The state of a stack that has created everything."""
    props: Props = {
        "cluster_name": "joiner",
        "region": "us-west-2",
        "installation": OURS,
        "made": MADE,
        "fixed": {"vpcCidr": "10.0.0.0/16"},
        "retained": [],
        "confirmed": [],
        "needed": {},
        "settings": {},
        "shared": {},
        "outlives_cluster": False,
    }
    return props | changes


def without(key: str) -> dict[str, str]:
    return {one: name for one, name in MADE.items() if one != key}


def refused(olds: Props, news: Props) -> str:
    """Return why the change is refused; empty if it is not."""
    try:
        _DeletionGuardProvider().diff("id", olds, news)
    except WouldBeDeletedError as exc:
        return " ".join(str(exc).split())
    return ""


@pytest.mark.parametrize("key", MADE)
def test_a_created_object_is_not_deleted_without_confirmation(key: str) -> None:
    said = refused(held(), held(made=without(key)))

    assert f"joiner:{key} changes from create to existing" in said
    assert f"joiner:retainOnDelete to {key}" in said
    assert f"joiner:confirmDelete to {key}" in said
    assert "Nothing has been changed" in said


@pytest.mark.parametrize("key", MADE)
def test_retained_and_confirmed_objects_may_leave_the_stack(key: str) -> None:
    absent: Props = {"cluster_name": NEW}  # a name that no other object has

    assert not refused(held(retained=[key]), held(made=without(key)))
    assert not refused(held(**absent), held(**absent, made=without(key), confirmed=[key]))
    assert refused(held(), held(made=without(key), retained=[key])), "it has not been done yet"


def test_an_unknown_value_does_not_count_as_a_deletion() -> None:
    assert not refused(held(), held(made={**MADE, "queue": None}))


def test_another_network_is_another_cluster() -> None:
    moved = {"fixed": {"vpcCidr": "10.1.0.0/16"}}

    assert "joiner:vpcCidr changes from 10.0.0.0/16 to 10.1.0.0/16" in refused(
        held(), held(**moved)
    )
    assert not refused(held(), held(**moved, confirmed=["cluster"]))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"ipFamily": "ipv6"}, "joiner:ipFamily changes from ipv4 to ipv6"),
        ({}, {"subnetIds": "given"}, "joiner:subnetIds changes from made here to given"),
        ({"secretsKey": "a"}, {}, "joiner:secretsKey changes from a to left out"),
        ({"secretsKey": "a"}, {"secretsKey": "b"}, "joiner:secretsKey changes from a to b"),
        ({}, {"secretsKey": "a"}, ""),
    ],
)
def test_an_immutable_cluster_property_is_not_changed_without_confirmation(
    before: Props, after: Props, words: str
) -> None:
    fixed = {"vpcCidr": "10.0.0.0/16", "ipFamily": "ipv4", "subnetIds": "made here"}

    said = refused(held(fixed=fixed | before), held(fixed=fixed | after))

    assert words in said
    assert bool(words) == bool(said)


def make_role(name: str, installation: str) -> None:
    connection("iam", "us-west-2").create_role(
        RoleName=name,
        AssumeRolePolicyDocument="{}",
        Tags=[{"Key": "joiner.dev/installation", "Value": installation}],
    )


def make_queue(name: str, installation: str) -> None:
    tags = {"joiner.dev/installation": installation}
    connection("sqs", "us-west-2").create_queue(QueueName=name, tags=tags)


def test_a_renamed_queue_that_another_installation_adopted_is_not_deleted() -> None:
    make_queue("events", "theirs")
    make_role("controller", OURS)
    renamed = {**MADE, "queue": "other", "controllerRole": "other"}

    said = refused(held(), held(made=renamed))

    assert "queue events" in said
    assert "its tags are joiner.dev/installation=theirs" in said
    assert "pulumi state delete" in said
    assert "controller" not in said


def test_a_destroy_does_not_delete_a_role_of_another_installation() -> None:
    make_queue("events", OURS)
    make_role("nodes", "theirs")
    only_roles = {"nodeRole": "nodes", "controllerRole": "gone", "queue": "events"}

    with pytest.raises(WouldBeDeletedError, match="the role nodes of the nodes would be deleted"):
        _DeletionGuardProvider().end(held(made=only_roles))

    _DeletionGuardProvider().end(held(made=only_roles, retained=["nodeRole"]))
    make_role("gone", OURS)
    _DeletionGuardProvider().end(held(made={"queue": "events", "controllerRole": "gone"}))


def test_a_deleted_cluster_does_not_block_the_destroy(entries: Entries) -> None:
    gone = held(cluster_name=NEW, made={"cluster": NEW})

    _DeletionGuardProvider().end(gone)
    with pytest.raises(WouldBeDeletedError, match="its tags are none"):
        _DeletionGuardProvider().end(held(made={"cluster": "joiner"}))


def test_deletion_protection_of_the_cluster_blocks_the_destroy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = standard(cluster="create", clusterName=NEW, publicAccessCidrs="none")
    first_to_end = guards_of(made)["cluster-deletion-guard-before-drain"]
    cluster = {"deletionProtection": True, "tags": {"joiner.dev/installation": OURS}}
    for module in ("guards.deletionguard", "guards.ownership"):
        monkeypatch.setattr(f"infra.{module}.describe_cluster", lambda _location: cluster)
    before_drain = first_to_end | {"made": {"cluster": NEW}}

    with pytest.raises(WouldBeDeletedError, match=r"set\s+joiner:deletionProtection\s+to false"):
        _DeletionGuardProvider().end(before_drain)
    _DeletionGuardProvider().end(before_drain | {"retained": ["cluster"]})
    cluster["deletionProtection"] = False
    _DeletionGuardProvider().end(before_drain)


def test_a_network_that_another_installation_adopted_is_not_deleted() -> None:
    ec2 = connection("ec2", "us-west-2")
    vpc = ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
    of_cluster = held(cluster_name=NEW, made={"cluster": NEW, "network": vpc})

    def tag(installation: str) -> None:
        key = "joiner.dev/installation"
        ec2.create_tags(Resources=[vpc], Tags=[{"Key": key, "Value": installation}])

    tag(OURS)
    _DeletionGuardProvider().end(of_cluster)
    tag("theirs")
    with pytest.raises(WouldBeDeletedError, match=f"the network {vpc} of the cluster would be"):
        _DeletionGuardProvider().end(of_cluster)
    _DeletionGuardProvider().end(of_cluster | {"retained": ["cluster", "network"]})
    ec2.delete_vpc(VpcId=vpc)
    _DeletionGuardProvider().end(of_cluster)


def test_a_recreated_cluster_recreates_its_network() -> None:
    before = held(cluster_name=NEW, made={"cluster": NEW, "network": "vpc-1"})

    assert not refused(before, before | {"made": {"cluster": NEW, "network": "vpc-2"}})


def guards_of(made: Made) -> dict[str, Props]:
    resources = made.dynamic
    return {name: props for name, props in resources.items() if "deletion-guard" in name}


def test_the_deletion_guard_records_created_objects_first_and_last() -> None:
    all_made = {
        "nodeRole": "KarpenterNodeRole-joiner",
        "controllerRole": "KarpenterControllerRole-joiner",
        "queue": "joiner",
    }

    existing = guards_of(standard(nodeRole="existing", queue="existing"))
    new = {"cluster": "create", "clusterName": NEW, "publicAccessCidrs": "none"}
    retained = guards_of(standard(**new, retainOnDelete="cluster"))
    created = guards_of(standard(**new, vpcCidr="10.0.0.0/16"))

    assert {name: props["made"] for name, props in guards_of(standard()).items()} == {
        "cluster-deletion-guard": {},
        "joiner-deletion-guard": all_made,
        "joiner-deletion-guard-before-end": all_made,
    }
    assert existing["joiner-deletion-guard"]["made"].keys() == {"controllerRole"}
    assert created["cluster-deletion-guard"]["made"] == {"cluster": NEW}
    assert created["cluster-deletion-guard"]["fixed"] == {
        "vpcCidr": "10.0.0.0/16",
        "ipFamily": "ipv4",
        "subnetIds": "made here",
    }
    before_end = created["cluster-deletion-guard-before-end"]
    assert before_end["made"] == {"cluster": NEW, "network": "network-id"}
    differing = {"made": None, "outlives_cluster": None}
    assert before_end | differing == created["cluster-deletion-guard"] | differing
    assert created["cluster-deletion-guard"]["outlives_cluster"]
    assert not before_end["outlives_cluster"]
    assert retained["cluster-deletion-guard-before-end"]["retained"] == ["cluster", "network"]


def test_an_oidc_provider_that_the_stack_created_is_remembered_until_the_destroy() -> None:
    provider = _DeletionGuardProvider()
    with_irsa = held(shared={"definitions": [], "oidcProvider": "arn:aws:iam::1:oidc-provider/a"})
    without = held(shared={"definitions": []})

    changed = provider.update("id", with_irsa, without).outs
    assert changed is not None
    assert changed["shared"] == with_irsa["shared"]
    assert not provider.diff("id", changed, without).changes
    # The stack does not own a provider that already exists.
    existing = held(shared={"definitions": [], "oidcProvider": ""})
    assert provider.diff("id", changed, existing).changes
    assert provider.update("id", changed, existing).outs == existing
