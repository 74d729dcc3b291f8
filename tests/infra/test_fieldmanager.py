"""The field manager of the objects, and objects with field managers of earlier versions."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra.clusterapi import ApiError, ClusterApi, ClusterLocation
from infra.lifecycle import fieldmanager
from infra.lifecycle.fieldmanager import ANNOTATIONS, MANAGER, take_over_fields
from tests.infra.test_program import run, standard

HERE = ClusterLocation("joiner", "us-west-2")
PATH = "/apis/karpenter.sh/v1/nodepools/web"
DRAWN = "pulumi-kubernetes-4b2b0a96"


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Run as in `pulumi up`, on a cluster that records each change."""
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    monkeypatch.setattr(fieldmanager, "is_destroying", lambda: False)
    return []


def have(
    monkeypatch: pytest.MonkeyPatch, changes: list[dict[str, Any]], *managed: dict[str, Any]
) -> None:
    class Cluster:
        def get(self, path: str) -> Any:
            metadata = {"resourceVersion": "7", "managedFields": list(managed)}
            return {"metadata": metadata} if path == PATH else None

        def merge(self, path: str, change: dict[str, Any]) -> None:
            changes.append(change)

    monkeypatch.setattr(ClusterApi, "find", lambda location: Cluster())


def entry(manager: str, operation: str, *fields: str) -> dict[str, Any]:
    owned: dict[str, Any] = {f"f:{field}": {} for field in fields}
    return {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": owned}}


@pytest.mark.usefixtures("entries", "hooks")
def test_every_object_of_the_program_names_one_field_manager() -> None:
    made = standard(createNamespace="true", namespace="joiner", env='{"HTTPS_PROXY": "http://p"}')
    objects = [
        (token, inputs["metadata"]["annotations"])
        for token, _, inputs in made.resources
        if token.startswith("kubernetes:")
    ]

    assert {"Namespace", "Deployment", "NodePool", "CustomResourceDefinition"} <= {
        token.rpartition(":")[2] for token, _ in objects
    }
    assert all(ANNOTATIONS.items() <= annotations.items() for _, annotations in objects)


def test_fields_of_drawn_field_managers_become_those_of_one(
    monkeypatch: pytest.MonkeyPatch, changes: list[dict[str, Any]]
) -> None:
    status = {**entry(DRAWN, "Update", "limits"), "subresource": "status"}
    foreign = [entry("me", "Apply", "weight"), status]
    have(
        monkeypatch,
        changes,
        *foreign,
        entry(DRAWN, "Apply", "template", "replicas"),
        entry("pulumi-kubernetes-0badcafe", "Apply", "template", "disruption"),
    )

    take_over_fields(HERE, [PATH, f"{PATH}2"])

    joined = entry(MANAGER, "Apply", "template", "replicas", "disruption")
    changed = {"managedFields": [*foreign, joined], "resourceVersion": "7"}
    assert changes == [{"metadata": changed}]


@pytest.mark.parametrize("manager", [DRAWN, MANAGER, "pulumi-kubernetes"])
def test_fields_of_an_object_that_was_created_by_post_become_applied_ones(
    monkeypatch: pytest.MonkeyPatch, changes: list[dict[str, Any]], manager: str
) -> None:
    have(monkeypatch, changes, entry(manager, "Update", "instanceProfile"))

    take_over_fields(HERE, [PATH])

    applied = entry(MANAGER, "Apply", "instanceProfile")
    assert changes == [{"metadata": {"managedFields": [applied], "resourceVersion": "7"}}]


def test_objects_of_others_keep_their_field_managers(
    monkeypatch: pytest.MonkeyPatch, changes: list[dict[str, Any]]
) -> None:
    have(monkeypatch, changes, entry(DRAWN, "Apply", "template"))

    take_over_fields(HERE, [PATH], is_ours=lambda wire: False)

    assert changes == []


def test_objects_with_one_field_manager_are_not_changed(
    monkeypatch: pytest.MonkeyPatch, changes: list[dict[str, Any]]
) -> None:
    have(monkeypatch, changes, entry(MANAGER, "Apply", "template"), entry("me", "Apply", "weight"))

    take_over_fields(HERE, [PATH])

    assert changes == []


@pytest.mark.parametrize("operation", ["is_dry_run", "is_destroying"])
def test_a_preview_or_a_destroy_changes_no_field_manager(
    monkeypatch: pytest.MonkeyPatch, changes: list[dict[str, Any]], operation: str
) -> None:
    where = pulumi.runtime if operation == "is_dry_run" else fieldmanager
    monkeypatch.setattr(where, operation, lambda: True)
    have(monkeypatch, changes, entry(DRAWN, "Apply", "template"))

    take_over_fields(HERE, [PATH])

    assert changes == []


def test_a_refused_transfer_leaves_the_failure_to_the_provider(
    monkeypatch: pytest.MonkeyPatch, changes: list[dict[str, Any]]
) -> None:
    have(monkeypatch, changes, entry(DRAWN, "Apply", "template"))
    refused = ApiError(409, "the object has been modified")

    class Refusing:
        def get(self, path: str) -> Any:
            raise refused

    monkeypatch.setattr(ClusterApi, "find", lambda location: Refusing())

    take_over_fields(HERE, [PATH])

    assert changes == []


@pytest.mark.usefixtures("entries", "hooks")
def test_objects_that_an_up_has_created_are_taken_over_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[list[str]] = []
    monkeypatch.setattr(
        "infra.nodepools.take_over_fields", lambda _, paths, **more: taken.append(list(paths))
    )

    run()

    before, after = taken
    assert before == after
    assert any("nodepools/default" in path for path in after)
