"""What our own resources do when they change, are replaced, and end."""

from __future__ import annotations

from typing import Any

import pytest

from infra.statefulprovider import ChangedPlaceError, ClusterMadeAnewError, StatefulProvider

HERE = {"cluster_name": "joiner", "region": "us-west-2", "installation": "organization/joiner/dev"}


class Recording(StatefulProvider):
    """Keeps what it was asked to end."""

    identity = ("cluster_name", "role_arn")

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[dict[str, Any]] = []

    def end(self, props: dict[str, Any]) -> None:
        self.ended.append(props)


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"cluster_name": "other"}, "joiner:clusterName was joiner and would be other"),
        ({"region": "eu-west-1"}, "joiner:region was us-west-2 and would be eu-west-1"),
        ({"installation": "x"}, "joiner:installation was organization/joiner/dev and would be x"),
    ],
)
def test_a_stack_does_not_move(changed: dict[str, str], setting: str) -> None:
    with pytest.raises(ChangedPlaceError, match=setting):
        StatefulProvider().diff("id", HERE, HERE | changed)


def test_a_cluster_that_was_made_anew_under_its_name_is_told_from_the_former() -> None:
    former = HERE | {"cluster_made_at": "2026-01-01T00:00:00+00:00"}
    anew = HERE | {"cluster_made_at": "2026-02-01T00:00:00+00:00"}

    with pytest.raises(ClusterMadeAnewError) as refused:
        StatefulProvider().diff("id", former, anew)

    assert "one of 2026-01-01T00:00:00+00:00, and EKS has one of 2026-02-01" in str(refused.value)
    assert "PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy" in str(refused.value)
    assert not StatefulProvider().diff("id", former, former).changes
    assert StatefulProvider().diff("id", HERE, former).changes, "it is remembered from then on"
    StatefulProvider().diff("id", former, HERE)


def test_what_an_older_version_did_not_remember_is_no_move() -> None:
    before = {key: value for key, value in HERE.items() if key != "installation"}

    answer = StatefulProvider().diff("id", before, HERE)

    assert (answer.changes, answer.replaces) == (True, [])


def test_other_changes_are_kept_and_nothing_is_deleted_first() -> None:
    provider = Recording()

    kept = provider.diff("id", HERE | {"kubeconfig": "a"}, HERE | {"kubeconfig": "b"})
    replaced = provider.diff("id", HERE | {"role_arn": "a"}, HERE | {"role_arn": "b"})

    assert (kept.changes, kept.replaces) == (True, [])
    assert (replaced.replaces, replaced.delete_before_replace) == (["role_arn"], False)
    assert not provider.diff("id", HERE, HERE | {"__provider": "code"}).changes


def test_what_was_made_again_is_replaced_and_not_ended() -> None:
    provider = Recording()
    props = HERE | {"role_arn": "made-again"}

    made = provider.create(props)
    provider.delete(made.id, props)

    assert provider.ended == []


def test_what_makes_room_for_something_else_and_what_is_destroyed_ends() -> None:
    provider = Recording()
    provider.create(HERE | {"role_arn": "new"})

    provider.delete("joiner-old-Recording", HERE | {"role_arn": "old"})

    assert provider.ended == [HERE | {"role_arn": "old"}]
