"""Resources without a name in the program get one, and keep it."""

from __future__ import annotations

from typing import Any

from testbed.plugins.naming import is_default, name_automatically
from testbed.plugins.provider import Proposal


def proposal(old: dict[str, Any] | None = None, **more: Any) -> Proposal:
    return Proposal(type="aws:iam/role:Role", name="node", old=old or {}, new={}, **more)


def named(asked: Proposal, inputs: dict[str, Any] | None = None, limit: int = 64) -> dict[str, Any]:
    inputs = {} if inputs is None else inputs
    name_automatically(asked, inputs, "name", limit=limit)
    return inputs


def test_a_generated_name_follows_the_resource_and_the_engines_seed() -> None:
    seeded = named(proposal(random_seed=bytes.fromhex("0123456789abcdef")))

    assert seeded["name"] == "node-0123456"
    assert is_default(seeded, "name")


def test_a_name_given_by_the_program_is_kept() -> None:
    given = named(proposal(), {"name": "mine"})

    assert given == {"name": "mine"}
    assert not is_default(given, "name")


def test_a_generated_name_is_kept() -> None:
    first = named(proposal())

    assert named(proposal(old=first))["name"] == first["name"]


def test_a_name_removed_by_the_program_is_not_kept() -> None:
    assert named(proposal(old={"name": "mine"}))["name"] != "mine"


def test_the_engines_proposed_name_has_precedence() -> None:
    assert named(proposal(proposed_name="as-configured"))["name"] == "as-configured"


def test_a_long_name_is_shortened_to_the_limit_of_the_service() -> None:
    assert len(named(proposal(), limit=10)["name"]) == len("no-0123456")
