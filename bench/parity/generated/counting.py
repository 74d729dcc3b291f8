"""Features about which pods, nodes and domains a topology rule counts."""

from __future__ import annotations

from typing import Any

from bench.parity.generated.draft import SIZE, Draft, pool, required_pods, spread, term
from bench.parity.generated.existing import MOMENT, default_pool, running_pod, stand
from bench.parity.worlds import CAPACITY_TYPE, HOSTNAME, ZONE, ZONES, Object, requirement


def several_affinity_terms(draft: Draft) -> None:
    """Add pods with several affinity terms, which no pod, one pod or the pods themselves match."""
    chance = draft.chance
    default_pool(draft)
    here, there = {"app": "here"}, {"tier": "there"}
    for labels in chance.sample((here, there, {**here, **there}), chance.randint(1, 3)):
        stand(draft, pods=[running_pod(draft, labels)])
    keys = chance.choice(((ZONE, ZONE), (ZONE, HOSTNAME)))
    terms = [term(labels, key) for labels, key in zip((here, there), keys, strict=True)]
    own = chance.choice(({"app": "own"}, here, {**here, **there}))
    draft.group({"affinity": required_pods("podAffinity", *terms)}, labels=own, number=3)


def terminating_neighbours(draft: Draft) -> None:
    """Add terminating pods that match the affinity, anti-affinity or spread of pending pods."""
    chance = draft.chance
    default_pool(draft)
    app = {"app": draft.name()}
    repelling = required_pods("podAntiAffinity", term({"app": "new"}, HOSTNAME))
    for affinity in ({}, repelling):
        ending = running_pod(draft, app, **({"affinity": affinity} if affinity else {}))
        ending["metadata"] |= {"deletionTimestamp": MOMENT, "deletionGracePeriodSeconds": 3600}
        stand(draft, pods=[ending, running_pod(draft)], zone=chance.choice(ZONES))
    key = chance.choice((ZONE, HOSTNAME))
    rule: dict[str, Any] = chance.choice(
        (
            {"affinity": required_pods("podAffinity", term(app, key))},
            {"affinity": required_pods("podAntiAffinity", term(app, key))},
            {"topologySpreadConstraints": [spread(app, key)]},
        )
    )
    draft.group(rule, labels=app, number=chance.randint(1, 4))
    draft.group(labels={"app": "new"}, number=2)


def narrow_zones(draft: Draft) -> None:
    """Add a spread over zones, in one of which no node for its pods can be launched.

    In some worlds a node exists there, or other pods need one there or may use it.
    """
    chance = draft.chance
    third = [requirement(ZONE, ZONES[2])]
    name = draft.name()
    spec: dict[str, Any] = {
        "topologySpreadConstraints": [
            spread({"app": name}, ZONE, **chance.choice(({}, {"maxSkew": 2}, {"minDomains": 2})))
        ]
    }
    narrow: dict[str, Any] = {"requirements": third}
    match chance.randrange(4):
        case 0:
            narrow["limits"] = {"cpu": chance.choice(("0", "2"))}
        case 1:
            narrow["requirements"] = [*third, requirement(SIZE, "large")]
        case 2:
            narrow["taints"] = [{"key": "own", "value": "yes", "effect": "NoSchedule"}]
        case _:
            narrow["labels"] = {"edge": "yes"}
            spec["affinity"] = {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [requirement("edge", operator="DoesNotExist")]}
                        ]
                    }
                }
            }
            spec["topologySpreadConstraints"][0]["nodeAffinityPolicy"] = "Ignore"
    draft.pools(
        pool("wide", requirements=[requirement(ZONE, *ZONES[:2])]), pool("narrow", **narrow)
    )
    draft.group(spec, name=name, cpu=chance.choice((500, 3000)), number=draft.number(2, 6))
    if chance.random() < 0.3:
        stand(draft, stage="unmanaged", zone=ZONES[2])
    if chance.random() < 0.4:
        draft.group(cpu=250, number=draft.number(1, 4))
    if chance.random() < 0.3:
        draft.group({"nodeSelector": {ZONE: ZONES[2]}}, cpu=250, number=1)


def hosts_with_pods(draft: Draft) -> None:
    """Add a spread over nodes whose pods run on all existing nodes, or on most of them."""
    chance = draft.chance
    default_pool(draft)
    name = draft.name()
    app = {"app": name}
    for _ in range(chance.randint(2, 4)):
        count = chance.choice((1, 1, 2, 0))
        stand(draft, pods=[running_pod(draft, app) for _ in range(count)])
    options: Object = chance.choice(({}, {"maxSkew": 2}, {"minDomains": 4}))
    constraints = [spread(app, HOSTNAME, **options)]
    if chance.random() < 0.3:
        constraints.append(spread(app, ZONE))
    draft.group({"topologySpreadConstraints": constraints}, name=name, cpu=250, number=4)
    if chance.random() < 0.5:
        draft.group(cpu=3000, number=2)


def minimums_of_offerings(draft: Draft) -> None:
    """Add a NodePool that requires several zones or capacity types, and pods that allow fewer."""
    chance = draft.chance
    key, values = chance.choice(((ZONE, ZONES), (CAPACITY_TYPE, ("on-demand", "spot"))))
    minimum: Object = {**requirement(key, operator="Exists"), "minValues": 2}
    draft.pools(pool("several", requirements=[minimum], weight=10))
    if chance.random() < 0.5:
        draft.pools(pool("other"))
    draft.settings["MIN_VALUES_POLICY"] = chance.choice(("Strict", "BestEffort"))
    draft.group()
    draft.group({"nodeSelector": {key: chance.choice(values)}}, number=2)
    name = draft.name()
    rule = {"topologySpreadConstraints": [spread({"app": name}, key)]}
    draft.group(rule, name=name, number=3)
