"""docs/reference/messages.md lists every message that users can see, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.docs import messages, written

PAGE = written.CHECKOUT / "docs" / "reference" / "messages.md"

NO_REASONS = {
    "Answer", "CapacityBuffer", "Declined", "Deployment", "DoNotSchedule", "Done", "EventStatus",
    "Failed", "False", "In", "InstanceStatus", "Name", "Never", "Node", "NodeClaim", "NodeOverlay",
    "NodePool", "Normal", "Parallel", "Pod", "PodScheduled", "Pods", "Proposed", "Recreate",
    "ReplicaSet", "ReservedCapacity", "Result", "StaticCapacity", "SystemStatus", "True",
    "Underway", "Unknown", "Unschedulable", "Warning", "Withdrawn",
}  # fmt: skip
"""Words of the reconcilers that look like reasons: kinds, values of fields, names in the log."""


@pytest.fixture(scope="module")
def known() -> Mapping[str, Any]:
    return messages.meanings()


def conditions(known: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for kind, types in known["conditions"].items():
        for type_, entry in types.items():
            yield kind, type_, entry


def reasons(known: Mapping[str, Any]) -> set[str]:
    own = {reason for _, _, entry in conditions(known) for reason in entry.get("reasons", ())}
    return {*own, *known["rolled_up"], *known["aws"]}


def test_the_page_equals_the_output_of_the_generator() -> None:
    assert PAGE.read_text() == messages.page(), (
        "python -m tests.docs.messages > docs/reference/messages.md"
    )


def test_each_link_of_the_page_has_a_target() -> None:
    text = PAGE.read_text()
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines()}
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text)

    assert links
    for path, anchor in links:
        assert (PAGE.parent / path).is_file() if path else anchor in headings, (path, anchor)


def test_the_page_has_each_event_that_the_controller_publishes(known: Mapping[str, Any]) -> None:
    said = {
        written.Event(kind, entry["type"], reason)
        for reason, entry in known["events"].items()
        for kind in entry["objects"]
    }

    assert said == written.events()
    assert {event.kind for event in said} == set(messages.OBJECTS)


def test_the_page_has_each_type_of_condition_that_the_code_sets(known: Mapping[str, Any]) -> None:
    assert {(kind, type_) for kind, type_, _ in conditions(known)} == written.condition_types()


def test_each_module_that_sets_conditions_is_read() -> None:
    unread = {
        path
        for path in written.condition_writers() - written.CONDITIONS_OF_OTHERS
        if not path.startswith(tuple(written.CONDITION_WRITERS))
    }

    assert unread == set(), "say in CONDITION_WRITERS of which kind its conditions are"


def test_the_page_has_each_reason_of_a_condition(known: Mapping[str, Any]) -> None:
    types = {type_ for _, type_, _ in conditions(known)}

    unknown = written.condition_reasons() - reasons(known) - known["events"].keys() - types

    assert unknown - NO_REASONS == set(), "explain it in messages.yaml; no reason: NO_REASONS"


def test_the_code_has_each_reason_of_the_page(known: Mapping[str, Any]) -> None:
    assert reasons(known) - written.condition_reasons() == set()


def test_a_reason_is_listed_under_the_condition_that_has_it(
    known: Mapping[str, Any],
) -> None:
    said = {
        (kind, type_, reason)
        for kind, type_, entry in conditions(known)
        for reason in entry.get("reasons", ())
    }
    given = written.reasons_by_condition()

    assert ("NodeClaim", "Registered", "MultipleNodesFound") in given
    assert given - said == set()


def test_the_page_has_each_error_of_the_stack(known: Mapping[str, Any]) -> None:
    assert known["stack"].keys() == written.errors("infra")


def test_the_page_has_each_error_that_ends_a_command(known: Mapping[str, Any]) -> None:
    assert known["commands"].keys() == written.errors(*written.COMMAND_ERRORS)


def test_each_entry_has_a_meaning_and_a_remedy(known: Mapping[str, Any]) -> None:
    parts = ["events", "rolled_up", "aws", "stack", "commands"]
    entries = [*((name, entry) for part in parts for name, entry in known[part].items())]
    for _, type_, condition in conditions(known):
        assert condition["meaning"].endswith("."), type_
        entries += condition.get("reasons", {}).items()

    wanting = [
        name
        for name, entry in entries
        if not all(
            str(entry.get(part, "")).endswith((".", ")", "`")) for part in ("meaning", "remedy")
        )
    ]

    assert wanting == []
