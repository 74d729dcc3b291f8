"""Features about constraints between pods."""

from __future__ import annotations

from typing import Any

from bench.parity.generated.draft import (
    RACK,
    Draft,
    make_namespace,
    pool,
    preferred_pods,
    required_affinity,
    required_pods,
    spread,
    term,
)
from bench.parity.generated.nodes import preferred_node_affinity
from bench.parity.worlds import CAPACITY_TYPE, HOSTNAME, ZONE, ZONES, Object, requirement


def zone_spread(draft: Draft) -> None:
    """Add topology spread over zones, with one option or none; some have other features."""
    chance = draft.chance
    for _ in range(chance.randint(1, 2)):
        name = draft.name()
        more = chance.choice(
            (
                {},
                {"maxSkew": chance.randint(1, 4)},
                {"minDomains": chance.randint(2, 3)},
                {"minDomains": 4},
                {"nodeAffinityPolicy": "Ignore"},
                {"whenUnsatisfiable": "ScheduleAnyway"},
            )
        )
        spec: dict[str, Any] = {"topologySpreadConstraints": [spread({"app": name}, ZONE, **more)]}
        if chance.random() < 0.4:
            spec["affinity"] = required_affinity(
                [requirement(ZONE, *sorted(chance.sample(ZONES, 2)))]
            )
        draft.group(spec, name=name, number=draft.number(3, 9))


def hostname_spread(draft: Draft) -> None:
    """Add topology spread over nodes, alone or together with zones."""
    chance = draft.chance
    name = draft.name()
    constraints = [spread({"app": name}, HOSTNAME, maxSkew=chance.randint(1, 3))]
    if chance.random() < 0.4:
        constraints.append(spread({"app": name}, ZONE, maxSkew=chance.randint(1, 2)))
    if chance.random() < 0.3:
        constraints[0]["whenUnsatisfiable"] = "ScheduleAnyway"
    draft.group({"topologySpreadConstraints": constraints}, name=name, number=draft.number(2, 6))


def other_spread(draft: Draft) -> None:
    """Add topology spread over capacity types and over a label of the NodePools."""
    chance = draft.chance
    name = draft.name()
    draft.group(
        {"topologySpreadConstraints": [spread({"app": name}, CAPACITY_TYPE)]},
        name=name,
        number=draft.number(2, 6),
    )
    draft.pools(pool("default", requirements=[requirement(RACK, "1", "2", "3")]))
    name = draft.name()
    constraint = spread({"app": name}, RACK, maxSkew=chance.randint(1, 2))
    draft.group({"topologySpreadConstraints": [constraint]}, name=name, number=draft.number(2, 6))


def spread_of_others(draft: Draft) -> None:
    """Add topology spread that also counts pods of other groups, or only those."""
    shared = {"tier": draft.name()}
    draft.group(
        {"topologySpreadConstraints": [spread(shared, ZONE)]},
        labels=shared,
        number=draft.number(2, 6),
    )
    draft.group(labels=shared, number=draft.number(1, 3))
    draft.group({"topologySpreadConstraints": [spread(shared, ZONE, maxSkew=2)]}, number=2)


def match_label_keys(draft: Draft) -> None:
    """Add two revisions of an application, each with its own topology spread or anti-affinity."""
    app = {"app": draft.name()}
    key = draft.chance.choice((ZONE, HOSTNAME))
    for revision in ("one", "two"):
        labels = {**app, "pod-template-hash": revision}
        constraint = spread(app, key, matchLabelKeys=["pod-template-hash"])
        draft.group(
            {"topologySpreadConstraints": [constraint]}, labels=labels, number=draft.number(2, 4)
        )
    for revision in ("one", "two"):
        labels = {"app": "apart", "pod-template-hash": revision}
        # The API server writes matchLabelKeys of an affinity term into its selector.
        selector = {
            "matchLabels": {"app": "apart"},
            "matchExpressions": [requirement("pod-template-hash", revision)],
        }
        term = {
            "labelSelector": selector,
            "topologyKey": HOSTNAME,
            "matchLabelKeys": ["pod-template-hash"],
        }
        draft.group({"affinity": required_pods("podAntiAffinity", term)}, labels=labels, number=2)


def taints_policy(draft: Draft) -> None:
    """Add topology spread with a `nodeTaintsPolicy`, and a zone whose NodePool is tainted."""
    chance = draft.chance
    taint = {"key": "closed", "value": "yes", "effect": "NoSchedule"}
    draft.pools(
        pool("open", requirements=[requirement(ZONE, *ZONES[:2])]),
        pool("closed", requirements=[requirement(ZONE, ZONES[2])], taints=[taint]),
    )
    name = draft.name()
    policy = chance.choice(("Honor", "Ignore"))
    constraint = spread({"app": name}, ZONE, nodeTaintsPolicy=policy)
    draft.group({"topologySpreadConstraints": [constraint]}, name=name, number=draft.number(2, 5))


def pod_affinity(draft: Draft) -> None:
    """Add pod affinity: to the pods' own group, to other groups, to pods that do not exist."""
    chance = draft.chance
    key = chance.choice((ZONE, HOSTNAME))
    name = draft.name()
    draft.group(
        {"affinity": required_pods("podAffinity", term({"app": name}, key))},
        name=name,
        number=draft.number(2, 6),
        cpu=chance.choice((100, 500, 1000)),
    )
    leader = draft.name()
    draft.group(name=leader, number=draft.number(1, 2))
    draft.group({"affinity": required_pods("podAffinity", term({"app": leader}, ZONE))})
    if chance.random() < 0.3:
        draft.group(
            {"affinity": required_pods("podAffinity", term({"app": "nobody"}, ZONE))}, number=2
        )


def preferred_pod_affinity(draft: Draft) -> None:
    """Add preferred pod affinity and anti-affinity."""
    chance = draft.chance
    for kind in ("podAffinity", "podAntiAffinity"):
        name = draft.name()
        weighted = [
            (chance.randint(1, 100), term({"app": name}, chance.choice((ZONE, HOSTNAME)))),
            (chance.randint(1, 100), term({"app": "nobody"}, ZONE)),
        ]
        chosen = weighted[: chance.randint(1, 2)]
        draft.group(
            {"affinity": preferred_pods(kind, *chosen)}, name=name, number=draft.number(2, 6)
        )


def anti_affinity(draft: Draft) -> None:
    """Add anti-affinity by node or by zone, to the pods' own group or to others."""
    chance = draft.chance
    name = draft.name()
    draft.group(
        {"affinity": required_pods("podAntiAffinity", term({"app": name}, HOSTNAME))},
        name=name,
        number=draft.number(2, 5),
    )
    if chance.random() < 0.5:
        name = draft.name()
        draft.group(
            {"affinity": required_pods("podAntiAffinity", term({"app": name}, ZONE))},
            name=name,
            number=chance.randint(2, 4),
        )
    loud = draft.name()
    draft.group(name=loud)
    key = chance.choice((ZONE, HOSTNAME))
    draft.group({"affinity": required_pods("podAntiAffinity", term({"app": loud}, key))})


def namespaces(draft: Draft) -> None:
    """Add affinity or anti-affinity to pods of other namespaces: by name, by label, or all."""
    chance = draft.chance
    draft.add(
        "namespaces", make_namespace("blue", color="blue"), make_namespace("red", color="red")
    )
    name = draft.name()
    for namespace in ("default", "blue", "red"):
        draft.group(name=name, labels={"app": name}, namespace=namespace, number=2)
    reach: Object = chance.choice(
        (
            {},
            {"namespaces": ["blue"]},
            {"namespaces": ["red", "default"]},
            {"namespaceSelector": {"matchLabels": {"color": "blue"}}},
            {"namespaceSelector": {}},
            {"namespaces": ["red"], "namespaceSelector": {"matchLabels": {"color": "blue"}}},
        )
    )
    kind = chance.choice(("podAffinity", "podAntiAffinity"))
    key = ZONE if kind == "podAffinity" else HOSTNAME
    draft.group(
        {"affinity": required_pods(kind, term({"app": name}, key, **reach))},
        namespace=chance.choice(("default", "blue")),
        number=draft.number(1, 4),
    )


def ignored_preferences(draft: Draft) -> None:
    """Add preferences of nodes, pods and spread, with `PREFERENCE_POLICY=Ignore`."""
    draft.settings["PREFERENCE_POLICY"] = "Ignore"
    preferred_node_affinity(draft)
    preferred_pod_affinity(draft)
    name = draft.name()
    constraint = spread({"app": name}, ZONE, whenUnsatisfiable="ScheduleAnyway")
    draft.group({"topologySpreadConstraints": [constraint]}, name=name)
