"""The controller's statements beside those that Karpenter publishes, one by one.

Each difference is in the table of docs/reference/iam.md, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra import policies
from testbed.cloud.iam import reference
from testbed.cloud.protocol.filters import like
from testbed.environment import CHECKOUT
from tests.infra.karpenterpolicies import NODE_ROLE, QUEUE, STATEMENTS

PAGE = CHECKOUT / "docs" / "reference" / "iam.md"
PLACE = policies.Place("${Partition}", "${Region}", "${Account}", "${Cluster}")
INSTALLATION = "${Installation}"
OURS = [
    statement
    for document in (
        policies.node_lifecycle(PLACE, installation=INSTALLATION),
        policies.launch_templates(PLACE, installation=INSTALLATION),
        policies.iam_integration(PLACE, node_role_arns=[NODE_ROLE]),
        policies.instance_profiles(PLACE, installation=INSTALLATION),
        policies.eks_integration(PLACE),
        policies.interruption(QUEUE, "${QueueKey}"),
        policies.zonal_shift(PLACE),
        policies.resource_discovery(PLACE),
        policies.image_parameters(PLACE, ["${Parameter}"]),
    )
    for statement in document["Statement"]
]
NAMED = (NODE_ROLE, QUEUE, "${QueueKey}")
"""Resources whose ARNs are known only when they exist."""

Conditions = frozenset[tuple[str, str, str]]
Atom = tuple[str, str]
"""An action and a pattern of resources."""


def conditions(given: Mapping[str, Mapping[str, Any]]) -> Conditions:
    """Each condition as operator, key and the allowed values."""
    return frozenset(
        (operator, key, " ".join(sorted([value] if isinstance(value, str) else value)))
        for operator, keys in given.items()
        for key, value in keys.items()
    )


def atoms(actions: Any, resources: Any, held: Conditions = frozenset()) -> Iterator[Atom]:
    """Yield the pairs of action and resource that AWS can allow under the conditions."""
    for action in actions:
        kinds = reference.resource_types(action)
        for resource in resources:
            fitting = [kind for kind in kinds if kind.contains(resource) or resource in NAMED]
            if any(all(kind.has_key(key) for _, key, _ in held) for kind in fitting):
                yield action, resource


def granting(atom: Atom, held: Conditions) -> tuple[dict[str, Any], str] | None:
    """Return our statement that is most like Karpenter's for an action, and its resource."""
    action, resource = atom
    found = [
        (statement, pattern)
        for statement in OURS
        for one, pattern in atoms(statement["Action"], statement["Resource"])
        if one == action and (pattern == resource or like(pattern, resource))
    ]
    return min(found, key=lambda it: len(held ^ of(it[0])), default=None)


def of(statement: Mapping[str, Any]) -> Conditions:
    return conditions(statement.get("Condition", {}))


def differences(sid: str) -> tuple[set[str], set[str]]:
    """Return our statements for one of Karpenter's, and how they differ."""
    actions, resources, given = STATEMENTS[sid]
    held, sids, found = conditions(given), set(), set()
    for atom in atoms(actions, resources, held):
        if (match := granting(atom, held)) is None:
            found.add(f"lacks {atom[0]} on {atom[1]}")
            continue
        statement, pattern = match
        sids.add(statement["Sid"])
        if pattern != atom[1]:
            found.add(f"only on {pattern.rpartition(':')[2]}")
        ours, theirs = ({key for _, key, _ in each} for each in (of(statement), held))
        changed = {key for _, key, _ in of(statement) ^ held}
        found |= {f"adds {key}" for key in ours - theirs}
        found |= {f"lacks {key}" for key in theirs - ours}
        found |= {f"other values of {key}" for key in changed & ours & theirs}
    return sids, found


def computed() -> dict[str, tuple[str, str]]:
    """Return the first columns of the table: statement, ours and the difference."""
    rows = {}
    for sid in STATEMENTS:
        sids, found = differences(sid)
        cells = (sorted(sids), sorted(found))
        rows[f"`{sid}`"] = tuple(", ".join(f"`{each}`" for each in cell) for cell in cells)
    karpenters = {atom for actions, on, _ in STATEMENTS.values() for atom in atoms(actions, on)}
    for statement in OURS:
        alone = [
            action
            for action, resource in atoms(statement["Action"], statement["Resource"])
            if not any(action == one and like(resource, on) for one, on in karpenters)
        ]
        if alone:
            rows[f"only ours: `{statement['Sid']}`"] = (
                f"`{statement['Sid']}`",
                ", ".join(f"`{action}`" for action in dict.fromkeys(alone)),
            )
    return rows  # type: ignore[return-value]


def written() -> dict[str, list[str]]:
    """Return the cells of the page's table by the first."""
    lines = PAGE.read_text().splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if "| `" in line]
    return {first: rest for first, *rest in cells}


def test_each_difference_from_karpenters_statements_is_in_the_page_with_its_reason() -> None:
    page = written()

    assert {first: (rest[0], rest[1]) for first, rest in page.items()} == computed()
    assert [first for first, rest in page.items() if rest[1] and not rest[2]] == []
