"""Features about other pods: topology spread, affinity and anti-affinity."""

from __future__ import annotations

import random

from bench.kubescheduler.generated.draft import (
    APPS,
    NAMESPACES,
    RACK,
    Draft,
    expressions,
    make_pod,
    pod_selector,
)
from bench.kubescheduler.generated.placement import node_affinity, taints
from bench.parity.worlds import HOSTNAME, ZONE, Object

KEYS = (ZONE, ZONE, HOSTNAME, RACK)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
DO_NOT = "DoNotSchedule"


def neighbours(draft: Draft) -> None:
    """Run pods of several applications, of which some have ended or are terminating."""
    for _ in range(draft.chance.randint(2, 8)):
        pod = draft.run()
        if draft.likely(0.15):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        elif draft.likely(0.1):
            pod["status"] = {"phase": "Succeeded"}


def spread(draft: Draft) -> None:
    """Spread pods by one or two constraints with every option."""
    neighbours(draft)
    constraints = [_constraint(draft) for _ in range(draft.chance.choice((1, 1, 1, 2)))]
    # The API server refuses two constraints with one key.
    by_key = {constraint["topologyKey"]: constraint for constraint in constraints}
    draft.spec["topologySpreadConstraints"] = list(by_key.values())


def _constraint(draft: Draft) -> Object:
    chance = draft.chance
    constraint: Object = {
        "maxSkew": chance.choice((1, 1, 2)),
        "topologyKey": chance.choice(KEYS),
        "whenUnsatisfiable": DO_NOT,
    }
    if draft.likely(0.95):
        constraint["labelSelector"] = pod_selector(chance)
    if draft.likely(0.25):
        constraint["minDomains"] = chance.randint(1, 4)
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if draft.likely(0.4):
            constraint[policy] = chance.choice(("Honor", "Ignore"))
    # The API server refuses a key that the selector has too.
    if draft.likely(0.2) and "version" not in str(constraint.get("labelSelector", "version")):
        constraint["matchLabelKeys"] = ["version"]
    if draft.likely(0.1):
        constraint["whenUnsatisfiable"] = "ScheduleAnyway"
        constraint.pop("minDomains", None)
    return constraint


def spread_over_some_nodes(draft: Draft) -> None:
    """Spread pods where node affinity and taints exclude nodes, which the policies may count."""
    spread(draft)
    if draft.likely(0.7):
        node_affinity(draft)
    if draft.likely(0.7):
        taints(draft)


def spread_of_replicas(draft: Draft) -> None:
    """Spread replicas over nodes of which a taint or a selector excludes some.

    The policies, terminating replicas and the number of domains decide.
    """
    chance = draft.chance
    own = draft.pod["metadata"]
    for node in draft.nodes:
        if draft.likely(0.4):
            node["spec"]["taints"] = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
        for _ in range(chance.randint(0, 2)):
            replica = draft.run(node)["metadata"]
            replica |= {"namespace": own["namespace"], "labels": dict(own["labels"])}
            if draft.likely(0.2):
                replica["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    if draft.likely(0.5):
        draft.spec["nodeSelector"] = {RACK: "1"}
    if draft.likely(0.3):
        draft.spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    constraint: Object = {
        "maxSkew": 1,
        "topologyKey": chance.choice((ZONE, HOSTNAME)),
        "whenUnsatisfiable": DO_NOT,
        "labelSelector": {"matchLabels": {"app": own["labels"]["app"]}},
        "nodeTaintsPolicy": chance.choice(("Honor", "Ignore")),
        "nodeAffinityPolicy": chance.choice(("Honor", "Ignore")),
    }
    if draft.likely(0.3):
        constraint["minDomains"] = chance.randint(2, 4)
    draft.spec["topologySpreadConstraints"] = [constraint]


def affinity(draft: Draft) -> None:
    """Require pods nearby, by one or two terms."""
    neighbours(draft)
    _require(draft, draft.pod, "podAffinity")


def anti_affinity(draft: Draft) -> None:
    """Require that pods are elsewhere, by one or two terms."""
    neighbours(draft)
    _require(draft, draft.pod, "podAntiAffinity")


def both_affinities(draft: Draft) -> None:
    """Require some pods nearby and others elsewhere."""
    affinity(draft)
    _require(draft, draft.pod, "podAntiAffinity")


def anti_affinity_of_running_pods(draft: Draft) -> None:
    """Run pods that require the pending pod's kind to be elsewhere."""
    neighbours(draft)
    for pod in draft.chance.sample(draft.running, min(3, len(draft.running))):
        _require(draft, pod, "podAntiAffinity")
        if draft.likely(0.2):
            _require(draft, pod, "podAffinity")


def first_of_its_kind(draft: Draft) -> None:
    """Require pods nearby like the pending pod itself, of which none or few run."""
    neighbours(draft)
    draft.pod["metadata"]["labels"]["app"] = draft.chance.choice((*APPS, "new"))
    labels = {"matchLabels": {"app": draft.pod["metadata"]["labels"]["app"]}}
    term: Object = {"labelSelector": labels, "topologyKey": draft.chance.choice(KEYS)}
    if draft.likely(0.3):
        term["namespaces"] = [draft.chance.choice(NAMESPACES)]
    terms = [term, _term(draft)] if draft.likely(0.3) else [term]
    draft.spec.setdefault("affinity", {})["podAffinity"] = {REQUIRED: terms}


def companions(chance: random.Random) -> list[Object]:
    """Return leaders, and pods that must run beside a leader and have rules among themselves.

    Some leaders need a node with a hostname, which a new node has too.
    """
    leaders = [_member("leader", number, chance) for number in range(chance.randint(1, 4))]
    if chance.random() < 0.5:
        for leader in leaders:
            leader["spec"]["affinity"] = {"podAntiAffinity": _beside("leader")}
    if chance.random() < 0.3:
        named = {"matchExpressions": [{"key": HOSTNAME, "operator": "Exists"}]}
        for leader in leaders:
            affinity = leader["spec"].setdefault("affinity", {})
            affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [named]}}
    followers = [_member("follower", number, chance) for number in range(chance.randint(2, 6))]
    rule = chance.choice(("apart", "spread", "port"))
    for follower in followers:
        spec = follower["spec"]
        spec["affinity"] = {"podAffinity": _beside("leader")}
        if rule == "apart":
            spec["affinity"]["podAntiAffinity"] = _beside("follower")
        elif rule == "port":
            spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
        else:
            constraint = {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": DO_NOT}
            spec["topologySpreadConstraints"] = [constraint | _selector_of("follower")]
    return [*leaders, *followers]


def _member(app: str, number: int, chance: random.Random) -> Object:
    pod = make_pod(f"{app}-{number}", chance, cpu=chance.choice((100, 900)))
    pod["metadata"] |= {"namespace": "default", "labels": {"app": app}}
    return pod


def _beside(app: str) -> Object:
    return {REQUIRED: [{"topologyKey": HOSTNAME, **_selector_of(app)}]}


def _selector_of(app: str) -> Object:
    return {"labelSelector": {"matchLabels": {"app": app}}}


def _require(draft: Draft, pod: Object, kind: str) -> None:
    terms = [_term(draft) for _ in range(draft.chance.choice((1, 1, 2)))]
    pod["spec"].setdefault("affinity", {})[kind] = {REQUIRED: terms}


def _term(draft: Draft) -> Object:
    chance = draft.chance
    term: Object = {"topologyKey": chance.choice(KEYS)}
    if draft.likely(0.95):
        term["labelSelector"] = pod_selector(chance)
    if draft.likely(0.2):
        term["namespaces"] = sorted(chance.sample(NAMESPACES, chance.randint(1, 2)))
    if draft.likely(0.25):
        colors = {"color": NAMESPACES}
        term["namespaceSelector"] = chance.choice(
            (
                {},
                {"matchLabels": {"color": "blue"}},
                {"matchExpressions": expressions(chance, colors)},
            )
        )
    if draft.likely(0.25) and "labelSelector" in term and "version" not in str(term):
        term[chance.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
    return term
