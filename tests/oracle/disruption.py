"""Replay a course of disruption, pass by pass.

The oracle checks the decisions of a pass against the cluster at that time. It checks which nodes
may be disrupted (conditions, annotations, budgets of NodePools, PodDisruptionBudgets). Where the
pods go is an answer like that of a solve, and is replayed as one. Then the oracle executes the
commands and checks the next pass.

A pass is a list of commands in the format of `docs/reference/formats.md`.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from croniter import croniter

from tests.oracle.nodeinfos import INSTANCE_TYPE, ZONE, Choice
from tests.oracle.replay import NODE_POOL, Finding, Replay
from tests.oracle.rules import Object, key_of, node_selected, selected, tolerates

Pass = Sequence[Object]

CAPACITY_TYPE = "karpenter.sh/capacity-type"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
SPOT_GATE = "spottospotconsolidation=true"
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
EPSILON = 1e-6


class Disruption:
    """A cluster whose nodes are being disrupted."""

    def __init__(self, world: Object, types: Sequence[Object], now: datetime) -> None:
        """Start with the world; `types` lists its instance types."""
        self.world = dict(world)
        self.moves: Counter[str] = Counter()
        """How often each pod has been moved, by key."""
        self._types, self._now = types, now
        self._prices: dict[tuple[str, ...], float] = {
            (kind["name"], *_place(offering["requirements"])): float(offering["price"])
            for kind in types
            for offering in kind["offerings"]
        }
        self._pools = _by_name(world["nodePools"])
        self._findings: list[Finding] = []
        self._index()

    def _index(self) -> None:
        """Index nodes by name, and NodeClaims and pods by their node."""
        self._nodes = _by_name(self.world["nodes"])
        by_id = {claim["status"].get("providerID"): claim for claim in self.world["nodeClaims"]}
        self._claims = {
            name: by_id[node["spec"].get("providerID")]
            for name, node in self._nodes.items()
            if node["spec"].get("providerID") in by_id
        }
        self._on: defaultdict[str, list[Object]] = defaultdict(list)
        for pod in self.world["pods"]:
            self._on[pod["spec"].get("nodeName", "")].append(pod)

    @property
    def cost(self) -> float:
        """The current cost of all nodes, in $/h."""
        return sum(self._price(node) for node in self.world["nodes"])

    def replay_pass(self, commands: Pass) -> list[Finding]:
        """Return the rules that the commands of one pass break, and execute the commands."""
        self._findings = []
        going = Counter(name for command in commands for name in command["nodes"])
        for name in going.keys() - self._nodes.keys():
            self._report("existence", name, "no such node")
        for name, times in going.items():
            if times > 1:
                self._report("one command", name, f"in {times} commands")
        if self._findings:
            return self._findings
        for command in commands:
            self._may_go(command)
            self._stated(command)
            for name in command["existingNodes"]:
                self._may_take(name, set(going))
        self._budgets(commands)
        replay = self._replay(commands, set(going))
        self._findings += replay.findings()
        if not any(finding.rule == "conservation" for finding in self._findings):
            self._happen(commands, set(going), replay)
        return sorted(set(self._findings))

    def _report(self, rule: str, subject: str, text: str) -> None:
        self._findings.append(Finding(rule, subject, text))

    # Which nodes may be disrupted.

    def _may_go(self, command: Object) -> None:
        nodes, claims = self._nodes, self._claims
        reason = command["reason"]
        for name in command["nodes"]:
            node, claim = nodes[name], claims.get(name)
            pool = self._pools.get(node["metadata"]["labels"].get(NODE_POOL, ""))
            if claim is None or pool is None:
                self._report("managed", name, "not ours")
                continue
            if node["metadata"]["labels"].get("karpenter.sh/initialized") != "true":
                self._report("initialized", name, "not yet")
            if claim["metadata"].get("deletionTimestamp"):
                self._report("leaving", name, "already")
            if node["metadata"].get("annotations", {}).get(DO_NOT_DISRUPT) == "true":
                self._report("do-not-disrupt", name, "the node's own annotation")
            self._reason(reason, name, claim, pool)
            forced = reason == "Drifted" and claim["spec"].get("terminationGracePeriod")
            for pod in () if forced else self._on[name]:
                self._protected(pod)

    def _reason(self, reason: str, name: str, claim: Object, pool: Object) -> None:
        disruption = pool["spec"].get("disruption", {})
        busy = any(reschedulable(pod) for pod in self._on[name])
        if reason == "Drifted":
            if not _is_true(claim, "Drifted"):
                self._report("reason", name, "has not drifted")
            return
        if not _is_true(claim, "Consolidatable"):
            self._report("reason", name, "not consolidatable")
        if disruption.get("consolidateAfter", "0s") == "Never":
            self._report("policy", name, "never consolidated")
        if reason == "Empty" and busy:
            self._report("reason", name, "not empty")
        if reason == "Underutilized" and disruption.get("consolidationPolicy") == "WhenEmpty":
            self._report("policy", name, "only when empty")

    def _protected(self, pod: Object) -> None:
        wanted = pod["metadata"].get("annotations", {}).get(DO_NOT_DISRUPT)
        if wanted is not None and self._is_shielded(pod, wanted):
            self._report("do-not-disrupt", key_of(pod), str(wanted))
        if not reschedulable(pod):
            return
        guards = [
            guard
            for guard in self.world.get("podDisruptionBudgets", [])
            if guard["metadata"].get("namespace", "default") == key_of(pod).split("/")[0]
            and selected(pod["metadata"].get("labels", {}), guard["spec"].get("selector"))
        ]
        if len(guards) > 1:
            self._report("PodDisruptionBudget", key_of(pod), "more than one")
        for guard in guards:
            if not guard.get("status", {}).get("disruptionsAllowed", 0):
                self._report("PodDisruptionBudget", key_of(pod), guard["metadata"]["name"])

    def _is_shielded(self, pod: Object, wanted: str) -> bool:
        if wanted == "true":
            return True
        lasting = duration(wanted)
        started = pod.get("status", {}).get("startTime")
        if lasting is None:
            return False
        return started is None or self._now < datetime.fromisoformat(started) + lasting

    def _budgets(self, commands: Pass) -> None:
        """Check that no more nodes are disrupted at once, by reason, than the budgets allow."""
        nodes, claims = self._nodes, self._claims
        total: Counter[str] = Counter()
        out: Counter[str] = Counter()
        for name, node in nodes.items():
            labels = node["metadata"]["labels"]
            if name in claims and labels.get("karpenter.sh/initialized") == "true":
                total[labels[NODE_POOL]] += 1
                gone = claims[name]["metadata"].get("deletionTimestamp")
                out[labels[NODE_POOL]] += bool(gone or not _is_true(node, "Ready"))
        going: defaultdict[tuple[str, str], int] = defaultdict(int)
        for command in commands:
            for name in command["nodes"]:
                going[nodes[name]["metadata"]["labels"].get(NODE_POOL, ""), command["reason"]] += 1
        for (pool, reason), number in going.items():
            allowed = self._allowed(self._pools[pool], reason, total[pool]) - out[pool]
            if number > max(allowed, 0):
                self._report("budget", pool, f"{number} of {allowed} {reason}")

    def _allowed(self, pool: Object, reason: str, nodes: int) -> float:
        fewest = math.inf
        for budget in pool["spec"].get("disruption", {}).get("budgets", [{"nodes": "10%"}]):
            if budget.get("reasons") and reason not in budget["reasons"]:
                continue
            if budget.get("schedule") and not self._is_open(budget):
                continue
            text = str(budget.get("nodes", "10%"))
            share = text.endswith("%")
            fewest = min(fewest, math.ceil(int(text[:-1]) * nodes / 100) if share else int(text))
        return fewest

    def _is_open(self, budget: Object) -> bool:
        lasting = duration(budget["duration"])
        assert lasting is not None
        last: datetime = croniter(budget["schedule"], self._now - lasting).get_next(datetime)
        return last <= self._now

    # Where pods go.

    def _stated(self, command: Object) -> None:
        nodes = self._nodes
        bought = 0.0
        for new in command["newNodes"]:
            place = (new["instanceType"], new["zone"], new["capacityType"])
            if new["instanceType"] not in new["instanceTypes"] and new["instanceTypes"]:
                self._report("launch", new["name"], f"{new['instanceType']} is not of its types")
            if abs(self._prices.get(place, math.inf) - new["price"]) > EPSILON:
                self._report("launch", new["name"], f"{place} for {new['price']} is not offered")
            bought += new["price"]
        gone = sum(self._price(nodes[name]) for name in command["nodes"])
        subject = ", ".join(command["nodes"][:3])
        if abs(gone - bought - command["saving"]) > EPSILON:
            self._report("saving", subject, f"{command['saving']} instead of {gone - bought}")
        if command["reason"] == "Underutilized" and gone - bought <= 0:
            self._report("saving", subject, f"{gone} become {bought}")
        moved = sum(len(keys) for keys in command["existingNodes"].values())
        moved += sum(len(new["pods"]) for new in command["newNodes"])
        if moved != command["evictions"]:
            self._report("evictions", subject, f"{command['evictions']} instead of {moved}")
        gates = self.world.get("settings", {}).get("FEATURE_GATES", "").replace(" ", "").lower()
        kinds = {nodes[name]["metadata"]["labels"].get(CAPACITY_TYPE) for name in command["nodes"]}
        if command["reason"] == "Underutilized" and kinds == {"spot"} and SPOT_GATE not in gates:
            for new in command["newNodes"]:
                if new["capacityType"] == "spot":
                    self._report("spot to spot", subject, new["instanceType"])

    def _may_take(self, name: str, going: set[str]) -> None:
        """Check that moved pods go to initialized nodes that stay."""
        node = self._nodes.get(name)
        if name in going:
            self._report("destination", name, "goes itself")
        elif node is None or node["metadata"]["labels"].get("karpenter.sh/initialized") != "true":
            self._report("destination", name, "is not up")
        elif self._claims.get(name, node)["metadata"].get("deletionTimestamp"):
            self._report("destination", name, "is on its way out")

    def _replay(self, commands: Pass, going: set[str]) -> Replay:
        """Return the pass as a solve.

        The candidates are removed, and their pods are pending with their planned nodes.
        """
        left = self._without(going)
        left["pods"] = [
            *(pod for pod in self.world["pods"] if self._stays(pod, going)),
            *(
                _unbound(pod)
                for name in sorted(going)
                for pod in self._on[name]
                if reschedulable(pod)
            ),
        ]
        waiting = [key_of(pod) for pod in self._on[""]]
        places: defaultdict[str, list[str]] = defaultdict(list)
        for command in commands:
            for name, keys in command["existingNodes"].items():
                places[name] += keys
        new = [node for command in commands for node in command["newNodes"]]
        answer = {
            "newNodes": new,
            "existingNodes": {k: v for k, v in places.items() if k not in going},
            "unschedulable": dict.fromkeys(waiting, ("waits as before",)),
            "cost": sum(node["price"] for node in new),
        }
        return Replay(left, answer, self._types)

    def _without(self, going: set[str]) -> dict[str, Any]:
        claims = {self._claims[name]["metadata"]["name"] for name in going & self._claims.keys()}
        return {
            **self.world,
            "nodes": [
                node for node in self.world["nodes"] if node["metadata"]["name"] not in going
            ],
            "nodeClaims": [
                claim
                for claim in self.world["nodeClaims"]
                if claim["metadata"]["name"] not in claims
            ],
        }

    @staticmethod
    def _stays(pod: Object, going: set[str]) -> bool:
        return pod["spec"].get("nodeName") not in going

    # Execution of the commands.

    def _happen(self, commands: Pass, going: set[str], replay: Replay) -> None:
        place = {
            key: name
            for command in commands
            for name, keys in command["existingNodes"].items()
            for key in keys
        }
        world = self._without(going)
        daemons: list[Object] = []
        nodes, claims = list(world["nodes"]), list(world["nodeClaims"])
        for new in (node for command in commands for node in command["newNodes"]):
            place |= dict.fromkeys(new["pods"], new["name"])
            node, claim = self._launched(new, replay)
            nodes.append(node)
            claims.append(claim)
            daemons += self._daemons(node)
        self.moves.update(place.keys())
        pods = []
        for pod in self.world["pods"]:
            if key_of(pod) in place:
                pods.append(_bound(pod, place[key_of(pod)], self._now))
            elif self._stays(pod, going):
                pods.append(pod)
        self.world = {**self.world, "nodes": nodes, "nodeClaims": claims, "pods": pods + daemons}
        self._index()

    def _launched(self, new: Object, replay: Replay) -> tuple[Object, Object]:
        kind = replay.types[new["instanceType"]]
        offering = next(
            offering
            for offering in kind["offerings"]
            if _place(offering["requirements"]) == (new["zone"], new["capacityType"])
        )
        node_info = replay.launched(new, new["name"], Choice(kind, offering), random.Random(0))
        allocatable = {name: f"{amount}n" for name, amount in node_info.allocatable.items()}
        up = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
        identity = {"providerID": f"new:///{new['name']}"}
        amounts = {"capacity": dict(kind["capacity"]), "allocatable": allocatable}
        true = ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")
        conditions = [{"type": kind, "status": "True"} for kind in true]
        node = {
            "metadata": {"name": new["name"], "labels": node_info.labels | up},
            "spec": {**identity, "taints": list(node_info.taints)},
            "status": {**amounts, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        claim = {
            "metadata": {"name": new["name"], "labels": node_info.labels},
            "spec": {"taints": list(node_info.taints)},
            "status": {
                **identity,
                **amounts,
                "nodeName": new["name"],
                "conditions": conditions,
            },
        }
        return node, claim

    def _daemons(self, node: Object) -> Iterable[Object]:
        """Return the daemon pods that start on a node."""
        name, labels = node["metadata"]["name"], node["metadata"]["labels"]
        for daemon in self.world.get("daemonSets", []):
            template = daemon["spec"]["template"]
            if tolerates(template, node["spec"]["taints"]) and node_selected(
                template, labels, name
            ):
                owner = {
                    "apiVersion": "apps/v1",
                    "kind": "DaemonSet",
                    "name": daemon["metadata"]["name"],
                }
                yield {
                    "metadata": {
                        "name": f"{daemon['metadata']['name']}-{name}",
                        "namespace": daemon["metadata"].get("namespace", "default"),
                        "labels": template.get("metadata", {}).get("labels", {}),
                        "ownerReferences": [owner],
                    },
                    "spec": {**template["spec"], "nodeName": name},
                    "status": {"phase": "Running"},
                }

    # Lookups.

    def _price(self, node: Object) -> float:
        labels = node["metadata"]["labels"]
        if labels.get(NODE_POOL) not in self._pools:
            return 0.0
        return self._prices.get((labels.get(INSTANCE_TYPE, ""), *_place(labels)), 0.0)


def played(
    world: Object, types: Sequence[Object], passes: Iterable[Pass], now: datetime
) -> tuple[Disruption, list[Finding]]:
    """Replay a whole course; return the final cluster and every broken rule."""
    cluster = Disruption(world, types, now)
    findings: list[Finding] = []
    for commands in passes:
        findings += cluster.replay_pass(commands)
    return cluster, findings


def reschedulable(pod: Object) -> bool:
    """Whether a pod needs another node if its node is removed."""
    owners = {owner.get("kind") for owner in pod["metadata"].get("ownerReferences", [])}
    return (
        not owners & {"DaemonSet", "Node"}
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        and not pod["metadata"].get("deletionTimestamp")
    )


def duration(text: str) -> timedelta | None:
    """Return the duration of a text such as `1h30m`; None if it is not one."""
    if re.fullmatch(r"(\d+(\.\d+)?[hms])+", text) is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    return timedelta(seconds=sum(float(number) * UNITS[unit] for number, unit in parts))


def _place(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, "")


def _by_name(objects: Iterable[Object]) -> dict[str, Object]:
    return {wire["metadata"]["name"]: wire for wire in objects}


def _is_true(wire: Object, condition: str) -> bool:
    conditions = wire.get("status", {}).get("conditions", [])
    return any(held["type"] == condition and held["status"] == "True" for held in conditions)


def _unbound(pod: Object) -> Object:
    return {**pod, "spec": {k: v for k, v in pod["spec"].items() if k != "nodeName"}}


def _bound(pod: Object, node: str, now: datetime) -> Object:
    started = {"phase": "Running", "startTime": now.isoformat()}
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": started}
