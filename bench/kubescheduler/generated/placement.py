"""Features about which nodes a pod selects and tolerates, whatever runs there."""

from __future__ import annotations

from bench.kubescheduler.generated.draft import NUMBER, RACK, Draft, ready
from bench.parity.worlds import HOSTNAME, ZONE, ZONES, Object

KEYS = {RACK: ("1", "2", ""), ZONE: ZONES, NUMBER: ("1", "5", "10", "x")}
EFFECTS = ("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule")


def node_selector(draft: Draft) -> None:
    """Select nodes by a label that some lack, or that has an empty value."""
    key = draft.chance.choice(tuple(KEYS))
    draft.spec["nodeSelector"] = {key: draft.chance.choice(KEYS[key])}


def node_affinity(draft: Draft) -> None:
    """Require nodes by terms with every operator, and by their names."""
    terms = [_term(draft) for _ in range(draft.chance.randint(1, 3))]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    draft.spec.setdefault("affinity", {})["nodeAffinity"] = required


def _term(draft: Draft) -> Object:
    """Return a term; an empty one matches no node."""
    chance = draft.chance
    term: Object = {}
    if draft.likely(0.85):
        term["matchExpressions"] = [
            node_expression(draft) for _ in range(chance.choice((1, 1, 1, 2)))
        ]
    if draft.likely(0.2):
        field = {"key": "metadata.name", "operator": chance.choice(("In", "In", "NotIn"))}
        term["matchFields"] = [field | {"values": [draft.node()["metadata"]["name"]]}]
    return term


def node_expression(draft: Draft) -> Object:
    """Return an expression about the labels of nodes."""
    chance = draft.chance
    key = chance.choice((*KEYS, HOSTNAME, "example.com/absent"))
    operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    if operator in ("Gt", "Lt"):
        key = chance.choice((NUMBER, NUMBER, RACK))
        values = [chance.choice(("0", "1", "5", "7", "07"))]
    else:
        names = tuple(node["metadata"]["name"] for node in draft.nodes)
        known = {**KEYS, HOSTNAME: names, "example.com/absent": ("1",)}[key]
        values = sorted(chance.sample(known, chance.randint(1, len(known))))
    expression: Object = {"key": key, "operator": operator}
    return expression if operator in ("Exists", "DoesNotExist") else expression | {"values": values}


def taints(draft: Draft) -> None:
    """Taint nodes in every form, and tolerate some taints in every form."""
    chance = draft.chance
    for node in draft.nodes:
        if draft.likely(0.7):
            node["spec"]["taints"] = [
                {
                    "key": key,
                    "value": chance.choice(("", "a", "b")),
                    "effect": chance.choice(EFFECTS),
                }
                for key in chance.sample(("team", "gpu"), chance.randint(1, 2))
            ]
    draft.spec["tolerations"] = [_toleration(draft) for _ in range(chance.randint(1, 3))]


def _toleration(draft: Draft) -> Object:
    chance = draft.chance
    toleration: Object = {}
    if chance.random() < 0.95:
        toleration["key"] = chance.choice(("team", "gpu"))
    if "key" not in toleration or chance.random() < 0.4:
        toleration["operator"] = "Exists"
    else:
        if chance.random() < 0.5:
            toleration["operator"] = "Equal"
        if chance.random() < 0.8:
            toleration["value"] = chance.choice(("", "a", "b"))
    if chance.random() < 0.6:
        toleration["effect"] = chance.choice(EFFECTS)
    if toleration.get("effect") == "NoExecute" and chance.random() < 0.5:
        toleration["tolerationSeconds"] = 60
    return toleration


def unready_nodes(draft: Draft) -> None:
    """Make nodes cordoned, not ready, or unreachable, with the taints of the node controller."""
    chance = draft.chance
    for node in draft.nodes:
        state = chance.choice(("ready", "cordoned", "not-ready", "unreachable"))
        if state == "cordoned":
            node["spec"]["unschedulable"] = True
            # The controller adds the taint a moment later than the field is set.
            if draft.likely(0.5):
                _with_taint(node, "unschedulable", "NoSchedule")
        elif state != "ready":
            status = {"not-ready": "False", "unreachable": "Unknown"}[state]
            node["status"]["conditions"] = [ready(status)]
            for effect in chance.choice((("NoSchedule",), ("NoSchedule", "NoExecute"))):
                _with_taint(node, state, effect)
    for condition in ("not-ready", "unreachable", "unschedulable"):
        if draft.likely(0.3):
            toleration = {"key": f"node.kubernetes.io/{condition}", "operator": "Exists"}
            draft.spec.setdefault("tolerations", []).append(toleration)


def _with_taint(node: Object, condition: str, effect: str) -> None:
    taint = {"key": f"node.kubernetes.io/{condition}", "effect": effect}
    node["spec"].setdefault("taints", []).append(taint)
